"""The folder of each slot, for what its machine boots from and what its console said.

`root` should not outlive the host's boot (a tmpfs below /run), as a transient domain does not either. Every folder
above it must be open to QEMU's user for passing through; libvirt hands that user the seed itself.

What another program put in the place of one slot's folder, a file or a link, is that slot's alone: it is told and taken
away like a folder, and no link is followed.
"""

import os
import shutil
import stat
from pathlib import Path

from node_agent.slices import HostRefused, HostUnreadable


class DisksFolder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, name: str) -> Path:
        return self._root / name

    def found(self, slot: str) -> tuple[str, ...]:
        folder = self.path(slot)
        try:
            inside = sorted(entry.name for entry in folder.iterdir()) if _is_folder(folder) else []
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise HostUnreadable(f"folder {folder}: {error}") from error
        return (slot, *(f"{slot}/{name}" for name in inside))

    def write(self, name: str, content: bytes) -> None:
        path = self.path(name)
        fresh = path.with_name(f".{path.name}.new")
        try:
            # Passable, not listable: QEMU opens what it was told the name of.
            path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
            fresh.write_bytes(content)
            os.replace(fresh, path)
        except OSError as error:
            raise HostRefused(f"file {path}: {error}") from error

    def wipe(self, slot: str) -> None:
        path = self.path(slot)
        try:
            if _is_folder(path):
                shutil.rmtree(path)
            else:
                path.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostRefused(f"folder {path}: {error}") from error


def _is_folder(path: Path) -> bool:
    """One itself, and no link to one. Raises `OSError` where nothing is."""
    return stat.S_ISDIR(path.lstat().st_mode)
