"""The lab's guest as a disk image, which boots in seconds by BIOS and by UEFI.

It is the same kernel and initial RAM disk that the lab's guest boots directly, so the root disk itself is empty behind
the first partition and is not mounted.
"""

import tempfile
from pathlib import Path
from typing import Final

from node_agent.lab.disk_images.boot_loader import BootFiles, make_disk
from node_agent.lab.guest import GuestImage
from node_agent.lab.initramfs.packages import Apt

_MEBIBYTES: Final = 48


def ensure_guest_disk(folder: Path, guest: GuestImage) -> Path:
    """Return the file of the disk image of `guest` below `folder`, a raw image; create it if it is missing.

    Raises `PackagesUnavailable`.
    """
    # The folder of a guest image is named after its recipe.
    path = folder / f"{guest.kernel.parent.name}.raw"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder) as name:
        work = Path(name)
        config = f"linux /sliceplane/vmlinuz {guest.cmdline}\ninitrd /sliceplane/initrd\nboot\n"
        files = {"sliceplane/vmlinuz": guest.bootable, "sliceplane/initrd": guest.initrd}
        made = work / "disk.raw"
        make_disk(made, BootFiles(config, files, _MEBIBYTES), Apt(work / "apt"), work)
        made.rename(path)
    return path
