"""The root disks of the slots' machines on a real host, one folder per slot below `slots/`.

A root disk is a qcow2 file that contains only the blocks that the guest changed of its disk image. The folder also
contains a hard link to the image, so that the image stays complete while a root disk uses it, and the UEFI variables of
the guest. A file is created with a name that begins with a dot, and gets its final name when it is complete.

When a slot is released, each file is overwritten with zeros before it is deleted: from its end to its beginning, and
truncated in the same steps, so that the next call continues after an interruption. The old data is then gone on file
systems that overwrite data in place, such as ext4. Old data can remain on file systems that write changed data to other
blocks, such as btrfs, and on a solid-state disk that keeps old blocks.
"""

import json
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from node_agent.drivers.machines.image_cache import ImageCache, hexadecimal
from node_agent.drivers.programs import reason
from node_agent.host.guests import DiskBoot
from node_agent.host.slices import HostRefused, HostUnreadable, ImageUnusable
from node_agent.settings import RootDiskSettings, SettingsRefused
from tasks.orders import RootDisk

GIB: Final = 2**30
CALL_SECONDS: Final = 10.0
"""Time in seconds after which one call pauses a download or the overwriting of a disk, so that the thread of the caller
can be stopped.
"""
_PIECE: Final = 16 * 2**20
_BASE: Final = "base-"
_QEMU_IMG_SECONDS: Final = 60.0
_NONE: Final = (
    "this node has no root disks, so it cannot use image {}; set root_disks in the settings of the agent"
)


class RootDisksFolder:
    """Implementation of `node_agent.aspects.hypervisors.RootDisks`: cached images and root disks below the folder of
    `settings`. A call pauses a download or the overwriting of a disk after `call_seconds`.

    Raises `SettingsRefused` if the folder cannot be created, or if the CA of the image store cannot be used.
    """

    def __init__(self, settings: RootDiskSettings, call_seconds: float = CALL_SECONDS) -> None:
        self._settings, self._seconds = settings, call_seconds
        self._slots = settings.folder / "slots"
        self._cache = ImageCache(settings, call_seconds)
        try:
            # QEMU's user needs to traverse the folders.
            self._slots.mkdir(mode=0o711, parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsRefused(
                f"cannot create root_disks.folder {settings.folder}: {error.strerror}"
            ) from error

    def found(self, slot: str) -> tuple[str, ...]:
        folder = self._slots / slot
        try:
            files = sorted(each.name for each in folder.iterdir()) if _is_folder(folder) else []
            return (slot, *(f"{slot}/{name}" for name in files))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise HostUnreadable(f"cannot read folder {folder}: {error}") from error

    def fetch(self, disk: RootDisk) -> None:
        self._cache.fetch(disk)

    def make(self, name: str, disk: RootDisk) -> None:
        path = self._slots / name
        draft = path.with_name(f".{path.name}.new")
        base = path.with_name(f"{_BASE}{hexadecimal(disk)}")
        try:
            # QEMU's user needs to search the folder; libvirt gives it access to the files.
            path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
            draft.unlink(missing_ok=True)
            self._cache.link(disk, base)
        except OSError as error:
            raise HostRefused(f"cannot create root disk {path}: {error}") from error
        virtual_bytes = self._checked(base, disk)
        if virtual_bytes > disk.size_gib * GIB:
            raise ImageUnusable(
                f"image {disk.digest} needs a disk of {virtual_bytes} bytes; the root disk has {disk.size_gib} GiB"
            )
        options = ("-q", "-f", "qcow2", "-F", disk.format, "-b", base.name)
        _qemu_img("create", *options, str(draft), f"{disk.size_gib}G")
        os.replace(draft, path)

    def wipe(self, slot: str) -> None:
        folder, until = self._slots / slot, time.monotonic() + self._seconds
        try:
            if not _is_folder(folder):
                folder.unlink()
                return
            for path in sorted(folder.iterdir()):
                if _is_folder(path):
                    shutil.rmtree(path)
                elif path.name.startswith(_BASE) or not stat.S_ISREG(path.lstat().st_mode):
                    # An image is not overwritten: the file is also in the cache, and has no data of a tenant.
                    path.unlink()
                else:
                    _overwrite(_hidden(path), until)
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostRefused(f"cannot delete the root disk in {folder}: {error}") from error

    def boot(self, name: str, disk: RootDisk) -> DiskBoot:
        path = self._slots / name
        if disk.firmware == "bios":
            return DiskBoot(path)
        code, variables = (self._settings.ovmf_folder / f"OVMF_{part}_4M.fd" for part in ("CODE", "VARS"))
        return DiskBoot(path, code, variables, path.with_suffix(".nvram"))

    def _checked(self, base: Path, disk: RootDisk) -> int:
        """Return the virtual size, in bytes, of the disk in the image file `base`. Raises `ImageUnusable` if the image
        refers to other files, or does not have the format of `disk`.
        """
        found: dict[str, Any] = json.loads(
            _qemu_img("info", "--output=json", "-f", disk.format, str(base), failure=ImageUnusable) or "{}"
        )
        specific = found.get("format-specific", {}).get("data", {})
        for name, value in {
            "backing file": found.get("backing-filename"),
            "data file": specific.get("data-file"),
        }.items():
            if value:
                # A tenant could read files of the host through such a reference.
                raise ImageUnusable(
                    f"image {disk.digest} has the {name} {value!r}; an image must be one file"
                )
        return int(found["virtual-size"])


class NoRootDisks:
    """Implementation of `node_agent.aspects.hypervisors.RootDisks` for a node without a folder for root disks."""

    def found(self, slot: str) -> tuple[str, ...]:
        return ()

    def fetch(self, disk: RootDisk) -> None:
        raise HostRefused(_NONE.format(disk.digest))

    def make(self, name: str, disk: RootDisk) -> None:
        raise HostRefused(_NONE.format(disk.digest))

    def wipe(self, slot: str) -> None:
        """Do nothing, because a node without a folder for root disks has no root disks that could be overwritten."""

    def boot(self, name: str, disk: RootDisk) -> DiskBoot:
        raise HostRefused(_NONE.format(disk.digest))


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder and not a link to a folder. Raises `OSError` if the path does not exist."""
    return stat.S_ISDIR(path.lstat().st_mode)


def _hidden(path: Path) -> Path:
    """Rename a file that is to be overwritten, so that an incomplete file is never used as a root disk. Return the new
    path.
    """
    if path.name.startswith(".wiping-"):
        return path
    return path.rename(path.with_name(f".wiping-{path.name}"))


def _overwrite(path: Path, until: float) -> None:
    """Overwrite a file with zeros and delete it. Raises `HostUnreadable` if this is not complete at the monotonic time
    `until`; the next call continues.
    """
    with path.open("r+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _PIECE)
            if _has_data(file.fileno(), start, end):
                os.pwrite(file.fileno(), bytes(end - start), start)
                os.fdatasync(file.fileno())
            file.truncate(start)
            end = start
            if end > 0 and time.monotonic() > until:
                raise HostUnreadable(
                    f"the file {path} is not completely erased: {end} bytes are left; the next attempt continues"
                )
    path.unlink()


def _has_data(descriptor: int, start: int, end: int) -> bool:
    """Return whether the file system has allocated any block of a file between the offsets `start` and `end` (lseek(2),
    SEEK_DATA).
    """
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA) < end
    except OSError:
        return False


def _qemu_img(*arguments: str, failure: type[HostRefused] = HostRefused) -> str:
    """Run qemu-img and return its output. Raises `failure` if qemu-img reports a failure, `HostRefused` if it is not
    installed, and `HostUnreadable` if it does not finish within `_QEMU_IMG_SECONDS`.
    """
    try:
        done = subprocess.run(
            ["qemu-img", *arguments],
            capture_output=True,
            check=True,
            text=True,
            timeout=_QEMU_IMG_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as missing:
        raise HostRefused("qemu-img is not installed; install the package qemu-utils") from missing
    except subprocess.CalledProcessError as error:
        raise failure(f"qemu-img {arguments[0]} failed: {reason(error)}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostUnreadable(f"qemu-img {arguments[0]} did not finish: {error}") from error
    return done.stdout
