"""One folder per slot with the disks from which the slot's machine boots, and the output of the machine's console.

`root` must not survive a reboot of the host (use a tmpfs below /run), because transient domains do not survive it
either. QEMU's user needs search permission on every folder above `root`; libvirt gives that user access to the seed
(the disk with the guest's first-boot configuration).

If another program replaced the folder of a slot by a file or a link, the replacement is reported and removed like the
folder. The replacement affects only that slot, and links are not followed.
"""

import os
import shutil
import stat
import sys
from pathlib import Path

from node_agent.host.slices import HostRefused, HostUnreadable


class DisksFolder:
    """The folders with the machines' disks, one per slot, below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, name: str) -> Path:
        return self._root / name

    def found(self, slot: str) -> tuple[str, ...]:
        folder = self.path(slot)
        try:
            entries = sorted(each.name for each in folder.iterdir()) if _is_folder(folder) else []
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise HostUnreadable(f"cannot read folder {folder}: {error}") from error
        return (slot, *(f"{slot}/{name}" for name in entries))

    def write(self, name: str, content: bytes) -> None:
        path = self.path(name)
        fresh = path.with_name(f".{path.name}.new")
        try:
            # Search permission without read permission is enough: QEMU opens files by name.
            path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
            fresh.write_bytes(content)
            os.replace(fresh, path)
        except OSError as error:
            raise HostRefused(f"cannot write file {path}: {error}") from error

    def read_log(self, name: str, most: int) -> tuple[bytes, int]:
        newest = self.path(name)
        content, size = b"", 0
        try:
            # virtlogd renames `console.log` to `console.log.0`, `console.log.0` to `console.log.1` and so on.
            for part in (newest, *sorted(newest.parent.glob(f"{newest.name}.*"), key=_rotation)):
                with part.open("rb") as file:
                    length = os.fstat(file.fileno()).st_size
                    wanted = most - len(content)
                    file.seek(max(0, length - wanted))
                    content, size = file.read(wanted) + content, size + length
        except FileNotFoundError:
            # There is no log yet, or a part was renamed or deleted since the folder was read.
            return content, size
        except OSError as error:
            raise HostUnreadable(f"cannot read log file {newest}: {error}") from error
        return content, size

    def wipe(self, slot: str) -> None:
        path = self.path(slot)
        try:
            if _is_folder(path):
                for seed in path.glob("seed-*"):
                    if not _is_folder(seed):
                        seed.unlink()
                shutil.rmtree(path)
            else:
                path.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostRefused(f"cannot remove folder {path}: {error}") from error


def _rotation(part: Path) -> int:
    """Return the sort key of a rotated log file: the number at the end of its name, 0 for the newest. A file without a
    number sorts last.
    """
    number = part.name.rpartition(".")[2]
    return int(number) if number.isascii() and number.isdigit() else sys.maxsize


def _is_folder(path: Path) -> bool:
    """Return whether the path is a folder and not a link to a folder. Raises `OSError` if the path does not exist."""
    return stat.S_ISDIR(path.lstat().st_mode)
