"""A Debian disk image with cloud-init, made on this machine from Debian packages: `python -m
node_agent.lab.disk_images.debian FOLDER`.

mmdebstrap installs the packages of the release of this machine into a folder, from its package sources; mkfs.ext4 makes
a file system of the folder, and GRUB boots it by BIOS and by UEFI. cloud-init grows the file system to the size of the
root disk, sets the host name and the SSH keys of the user `debian`, and runs user-data. It needs root, and takes two
minutes. The program prints the path, the size and the digest of the image, as `sliceplane images publish` needs them.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node_agent.lab.disk_images.boot_loader import MIB, BootFiles, make_disk
from node_agent.lab.initramfs.packages import Apt

RELEASE: Final = "bookworm"
MINIMUM_DISK_GIB: Final = 3
_PACKAGES: Final = (
    "linux-image-cloud-amd64",
    "systemd-sysv",
    "cloud-init",
    "cloud-guest-utils",
    "openssh-server",
    "netplan.io",
    "e2fsprogs",
    "iproute2",
    "sudo",
)
_SOURCES: Final = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
_LABEL: Final = "debian-root"
_ROOT_MIB: Final = 1800
_ESP_MIB: Final = 40
_CONFIG: Final = f"""\
set timeout=0
search --no-floppy --label --set=root {_LABEL}
linux /vmlinuz root=LABEL={_LABEL} ro console=ttyS0 net.ifnames=0
initrd /initrd.img
boot
"""
_FILES: Final = {
    "etc/fstab": f"LABEL={_LABEL} / ext4 errors=remount-ro 0 1\n",
    "etc/hostname": "localhost\n",
    "etc/machine-id": "",
    "etc/cloud/cloud.cfg.d/90-sliceplane.cfg": "datasource_list: [NoCloud]\n",
    "etc/netplan/50-dhcp.yaml": (
        "network:\n  version: 2\n  ethernets:\n    all:\n      match: {name: 'e*'}\n      dhcp4: true\n"
    ),
}


@dataclass(frozen=True, slots=True)
class DebianImage:
    """A Debian disk image in the format qcow2."""

    path: Path
    digest: str
    size_bytes: int


def ensure_debian(folder: Path, progress: Callable[[str], None]) -> DebianImage:
    """Return the Debian disk image in `folder`; make it if it is missing. `progress` is called before each long step.

    Raises `PackagesUnavailable` and `CalledProcessError`.
    """
    path = folder / f"debian-{_recipe()}.qcow2"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="making-", dir=folder) as name:
            _make(Path(name), path, progress)
    return DebianImage(path, f"sha256:{_digest(path)}", path.stat().st_size)


def _make(work: Path, path: Path, progress: Callable[[str], None]) -> None:
    apt, root = Apt(work / "apt"), work / "root"
    progress("installing Debian packages into a folder")
    apt.unpack(("mmdebstrap",), work / "tools")
    sources = next(each for each in _SOURCES if each.exists())
    options = ("--mode=root", "--variant=apt", f"--include={','.join(_PACKAGES)}")
    _run(work / "tools/usr/bin/mmdebstrap", *options, RELEASE, root, sources)
    for file, text in _FILES.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)
    # Each guest makes its own host keys at its first boot.
    for key in (root / "etc" / "ssh").glob("ssh_host_*"):
        key.unlink()
    progress("making the disk image")
    system = work / "root.ext4"
    system.touch()
    os.truncate(system, _ROOT_MIB * MIB)
    _run("mkfs.ext4", "-q", "-L", _LABEL, "-d", root, system)
    disk = work / "disk.raw"
    make_disk(disk, BootFiles(_CONFIG, {}, _ESP_MIB), apt, work, system)
    progress("compressing the disk image")
    made = work / "disk.qcow2"
    _run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-c", disk, made)
    made.rename(path)


def _run(*command: str | Path) -> None:
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    subprocess.run([str(word) for word in command], check=True, capture_output=True, env=environment)


def _recipe() -> str:
    """Return 16 hex digits of a hash of the code that makes the image."""
    files = (Path(__file__), Path(__file__).with_name("boot_loader.py"))
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()[:16]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: list[str]) -> int:
    """Make the image in the folder that the command line names. Return the exit code."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        image = ensure_debian(Path(arguments[0]), lambda step: print(f"... {step}", flush=True))
    except subprocess.CalledProcessError as error:
        print(f"{error}: {error.stderr.decode(errors='replace')[-2000:]}", file=sys.stderr)
        return 1
    print(f"path    {image.path}\ndigest  {image.digest}\nbytes   {image.size_bytes}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
