"""The image of the lab's guest: a Debian cloud kernel, and an initramfs that is its only root file system.

The image is built on this machine from downloaded packages and is never committed. Its folder is named after a hash of
its recipe. Package versions are not part of the hash, so a built image is used until its recipe changes or its folder
is deleted. The image is built in a temporary folder beside its final folder and then renamed, so that a crash leaves
only a `making-*` folder, which the next build removes.
"""

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node_agent.lab.initramfs import modules, newc
from node_agent.lab.initramfs.packages import Apt, PackagesUnavailable

CMDLINE: Final = (
    "console=ttyS0 quiet panic=-1 i8042.noaux i8042.nokbd"
    # An emulated processor spends a third of the boot on self-tests, on measuring its speed and on protection that a
    # lab guest does not need.
    " mitigations=off nokaslr cryptomgr.notests no_timer_check tsc=reliable lpj=4000000"
    # One processor could use faster instructions, but to replace them takes longer than the guest lives.
    " noreplace-smp"
)
_RECIPE: Final = Path(__file__).with_name("initramfs")
_KERNEL: Final = "linux-image-cloud-amd64"
_SSH: Final = ("dropbear", "dropbearkey")
_LZ4: Final = "lz4"
_LIBRARIES: Final = ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")
_LOADER: Final = "lib64/ld-linux-x86-64.so.2"
_TARGETS: Final = {
    "init": "init",
    "inittab": "etc/inittab",
    "dhcp-client": "etc/dhcp-client",
    "dhcp-lease": "etc/dhcp-lease",
    "ssh-server": "etc/ssh-server",
    "power-button": "etc/acpi/PWRF/00000080",
}
_TEXTS: Final = {
    "etc/passwd": "root:*:0:0:root:/root:/bin/sh\n",
    "etc/group": "root:x:0:\n",
    "etc/shells": "/bin/sh\n",
    "etc/profile": "export PATH=/usr/sbin:/usr/bin:/sbin:/bin\n",
    "etc/os-release": "NAME='Sliceplane lab guest'\nID=sliceplane-lab\n",
}


@dataclass(frozen=True, slots=True)
class GuestImage:
    """The lab's guest image: kernel and initramfs for the direct boot of a libvirt domain. `bootable` is the same
    kernel as a file that a boot loader can start.

    The kernel is not compressed, because an emulated processor decompresses it in half a second. QEMU starts it by its
    PVH entry. The domain needs 96 MiB of memory, a virtio disk with the NoCloud seed, a virtio network card and
    virtio-rng.
    """

    kernel: Path
    initrd: Path
    bootable: Path
    cmdline: str = CMDLINE


def ensure_guest(folder: Path, progress: Callable[[str], None], tools: tuple[str, ...] = ()) -> GuestImage:
    """Return the lab's guest image below `folder`; build a missing image first (about ten seconds, mostly download).

    `progress` is called with a description before each long step. `tools` are additional programs, each from the Debian
    package of the same name; without them, the image is smaller and boots faster. Raises `PackagesUnavailable`.
    """
    built = folder / _recipe_hash(tools)
    if not built.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("making-*"):
            shutil.rmtree(left, ignore_errors=True)
        _build(folder, built, progress, tools)
    return GuestImage(built / "vmlinux", built / "initrd", built / "vmlinuz")


def _build(folder: Path, built: Path, progress: Callable[[str], None], tools: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder) as name:
        work = Path(name)
        progress("downloading the guest's kernel, busybox and dropbear")
        root = work / "root"
        _fetch(Apt(work / "apt"), root, tools)
        progress("building the guest's root file system")
        image = work / "image"
        image.mkdir()
        shutil.copyfile(next((root / "boot").glob("vmlinuz-*")), image / "vmlinuz")
        _decompress(image / "vmlinuz", image / "vmlinux", root / "usr" / "bin" / _LZ4)
        (image / "initrd").write_bytes(newc.archive(_entries(root, tools)))
        # A concurrent build may have finished first; its image is identical.
        if not built.exists():
            os.rename(image, built)


def _fetch(apt: Apt, root: Path, tools: tuple[str, ...]) -> None:
    try:
        _unpack(apt, root, tools)
    except PackagesUnavailable:
        apt.refresh()
        _unpack(apt, root, tools)


def _unpack(apt: Apt, root: Path, tools: tuple[str, ...]) -> None:
    kernel = apt.direct_dependency(_KERNEL, "linux-image-")
    needed = {name for package in ("dropbear-bin", *tools) for name in apt.with_dependencies(package)}
    apt.unpack((kernel, "busybox-static", _LZ4, *sorted(needed)), root)


def _decompress(image: Path, kernel: Path, lz4: Path) -> None:
    """Write the ELF file that a compressed kernel image contains (Linux's x86 boot protocol, `payload_offset`). `lz4`
    is the program for the kernel's compression. Raises `CalledProcessError` if the image is compressed otherwise.
    """
    content = image.read_bytes()
    setup_sectors, (offset, length) = content[0x1F1], struct.unpack_from("<II", content, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    # The last four bytes are the size of the kernel.
    payload = content[start : start + length - 4]
    with kernel.open("wb") as file:
        subprocess.run([lz4, "-d", "-c"], input=payload, stdout=file, check=True)


def _entries(root: Path, tools: tuple[str, ...]) -> Iterator[newc.Entry]:
    yield from (newc.folder(path) for path in ("proc", "sys", "dev", "run", "mnt", "etc/dropbear"))
    yield newc.folder("tmp", 0o1777)
    yield from (newc.folder(path, 0o700) for path in ("root", "root/.ssh"))
    yield newc.file("root/.ssh/authorized_keys", b"", 0o600)
    # The kernel opens /dev/console for the first process before any file system is mounted.
    yield newc.character_device("dev/console", 5, 1)
    yield from (newc.file(path, text.encode()) for path, text in _TEXTS.items())
    for name, target in _TARGETS.items():
        permissions = 0o644 if name == "inittab" else 0o755
        yield newc.file(target, (_RECIPE / "files" / name).read_bytes(), permissions)
    yield from _busybox(root)
    yield from _programs(root, (*_SSH, *tools))
    yield from _modules(root)


def _busybox(root: Path) -> Iterator[newc.Entry]:
    binary = root / "bin" / "busybox"
    yield newc.file("bin/busybox", binary.read_bytes(), 0o755)
    listing = subprocess.run([binary, "--list-full"], check=True, capture_output=True, text=True).stdout
    yield from (newc.link(path, "/bin/busybox") for path in listing.split() if path != "bin/busybox")


def _programs(root: Path, names: tuple[str, ...]) -> Iterator[newc.Entry]:
    needed: set[Path] = {root / _LOADER}
    for program in names:
        binary = next(path for path in root.glob(f"usr/*bin/{program}"))
        yield newc.file(f"usr/bin/{program}", binary.read_bytes(), 0o755)
        needed |= set(_libraries(root, binary))
    for library in sorted(needed):
        target = _LOADER if library.name in _LOADER else f"lib/x86_64-linux-gnu/{library.name}"
        yield newc.file(target, library.read_bytes(), 0o755)


def _libraries(root: Path, binary: Path) -> Iterator[Path]:
    """Yield the shared libraries that the guest's dynamic loader would load for `binary` (ld.so(8), `--list`)."""
    folders = ":".join(str(root / target) for target in _LIBRARIES)
    command = [str(root / _LOADER), "--library-path", folders, "--list", str(binary)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in listing.splitlines():
        path = line.partition("=> ")[2].partition(" (")[0]
        if path.startswith(str(root)):
            yield Path(path)


def _modules(root: Path) -> Iterator[newc.Entry]:
    tree = next((root / "lib" / "modules").iterdir())
    files = modules.in_load_order(tree)
    yield from (newc.file(f"lib/modules/{path.name}", path.read_bytes()) for path in files)
    yield newc.file("lib/modules/order", "".join(f"{path.name}\n" for path in files).encode())


def _recipe_hash(tools: tuple[str, ...]) -> str:
    """Return 16 hex digits of a hash of the guest image's recipe: its files, its code and the additional programs."""
    recipe = hashlib.sha256(" ".join(tools).encode())
    for path in sorted([Path(__file__), *_RECIPE.rglob("*.py"), *(_RECIPE / "files").iterdir()]):
        recipe.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return recipe.hexdigest()[:16]
