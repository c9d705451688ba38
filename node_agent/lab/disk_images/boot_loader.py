"""GRUB on a raw disk image, so that the image boots by BIOS and by UEFI.

The first sector contains GRUB's boot code for BIOS and an MBR partition table; GRUB's core for BIOS is in the sectors
between it and the first partition. The first partition is a FAT file system that contains GRUB for UEFI, at the path
that a firmware without boot entries uses (UEFI specification, 3.5.1.1). Both read the same configuration file. The
packages of GRUB and mtools are downloaded and unpacked, and not installed.
"""

import os
import shutil
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node_agent.lab.initramfs.packages import Apt

PACKAGES: Final = ("grub-common", "grub-pc-bin", "grub-efi-amd64-bin", "mtools")
MIB: Final = 2**20
_SECTOR: Final = 512
_FIRST_PARTITION: Final = MIB
"""Offset of the first partition, in bytes: the usual one, which leaves room for GRUB's core."""
_BOOT_CODE_BYTES: Final = 440
_ESP, _LINUX = 0xEF, 0x83
_ACTIVE: Final = 0x80
_MODULES: Final = (
    "part_msdos",
    "fat",
    "ext2",
    "search",
    "search_fs_file",
    "search_label",
    "configfile",
    "normal",
    "linux",
)
_TARGETS: Final = {"i386-pc": ("core.img", ("biosdisk",)), "x86_64-efi": ("BOOTX64.EFI", ("efi_gop",))}


@dataclass(frozen=True, slots=True)
class BootFiles:
    """Content of the first partition: `files` by their paths, `grub_cfg` as GRUB's configuration. `mebibytes` is the
    size of the partition.
    """

    grub_cfg: str
    files: Mapping[str, Path]
    mebibytes: int


def make_disk(path: Path, boot: BootFiles, apt: Apt, work: Path, root: Path | None = None) -> None:
    """Create a raw disk image with GRUB. `root` is a file with the file system of a second partition, if there is one.

    `work` is a folder for temporary files. Raises `PackagesUnavailable`, `OSError` and `CalledProcessError`.
    """
    tools = work / "grub"
    apt.unpack(PACKAGES, tools)
    for target in _TARGETS:
        _make_core(target, tools, work)
    core = (work / "core.img").read_bytes()
    if len(core) > _FIRST_PARTITION - _SECTOR:
        raise OSError(f"GRUB's core of {len(core)} bytes does not fit before the first partition of {path}")
    esp, root_bytes = boot.mebibytes * MIB, 0 if root is None else root.stat().st_size
    with path.open("wb") as disk:
        disk.truncate(_FIRST_PARTITION + esp + root_bytes)
        disk.write(_first_sector(tools, esp, root_bytes))
        disk.write(core)
    _fill_esp(path, boot, tools, work)
    if root is not None:
        position = str((_FIRST_PARTITION + esp) // MIB)
        sparse = ["dd", f"if={root}", f"of={path}", "bs=1M", f"seek={position}", "conv=notrunc,sparse"]
        _run(*sparse)


def _make_core(target: str, tools: Path, work: Path) -> None:
    name, modules = _TARGETS[target]
    early = work / "early.cfg"
    early.write_text(
        "search --no-floppy --file --set=root /sliceplane/grub.cfg\nconfigfile ($root)/sliceplane/grub.cfg\n"
    )
    folder = tools / "usr" / "lib" / "grub" / target
    options = ("-d", folder, "-O", target, "-o", work / name, "-p", "/sliceplane", "-c", early)
    _run(tools / "usr/bin/grub-mkimage", *options, *_MODULES, *modules)


def _first_sector(tools: Path, esp: int, root_bytes: int) -> bytes:
    code = (tools / "usr/lib/grub/i386-pc/boot.img").read_bytes()[:_BOOT_CODE_BYTES]
    table = _partition(_FIRST_PARTITION, esp, _ESP, _ACTIVE)
    table += _partition(_FIRST_PARTITION + esp, root_bytes, _LINUX, 0) if root_bytes else bytes(16)
    return code.ljust(_BOOT_CODE_BYTES + 6, b"\x00") + table + bytes(32) + b"\x55\xaa"


def _partition(start: int, size: int, kind: int, flags: int) -> bytes:
    """Return an entry of an MBR partition table; `start` and `size` are in bytes."""
    # The positions in cylinders, heads and sectors are the highest ones: only the sector numbers count.
    return struct.pack(
        "<B3sB3sII", flags, b"\xfe\xff\xff", kind, b"\xfe\xff\xff", start // _SECTOR, size // _SECTOR
    )


def _fill_esp(path: Path, boot: BootFiles, tools: Path, work: Path) -> None:
    # The partition is made as a file: otherwise mformat would use the size of the rest of the disk.
    esp, grub_cfg = work / "esp", work / "grub.cfg"
    grub_cfg.write_text(boot.grub_cfg)
    esp.touch()
    os.truncate(esp, boot.mebibytes * MIB)
    mtools = tools / "usr" / "bin"
    files = {"EFI/BOOT/BOOTX64.EFI": work / "BOOTX64.EFI", "sliceplane/grub.cfg": grub_cfg, **boot.files}
    folders = sorted({str(each) for name in files for each in Path(name).parents if each != Path()})
    _run(mtools / "mformat", "-i", esp, "-F", "-H", str(_FIRST_PARTITION // _SECTOR), "::")
    for folder in folders:
        _run(mtools / "mmd", "-i", esp, f"::/{folder}")
    for name, source in files.items():
        _run(mtools / "mcopy", "-i", esp, source, f"::/{name}")
    with path.open("r+b") as disk, esp.open("rb") as content:
        disk.seek(_FIRST_PARTITION)
        shutil.copyfileobj(content, disk)
    esp.unlink()


def _run(*command: str | Path) -> None:
    subprocess.run(
        [str(word) for word in command],
        check=True,
        capture_output=True,
        env={**os.environ, "MTOOLS_SKIP_CHECK": "1"},
    )
