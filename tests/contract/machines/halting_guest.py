"""Guest image for tests that need a running virtual machine but no booted guest: its kernel halts the processor.

A booting guest takes about two seconds of processor time, although most tests end before it has booted.
"""

from pathlib import Path
from typing import Final

from node_agent.lab.guest import GuestImage

_SECTOR: Final = 512
_SETUP_SECTORS: Final = 4
_FIELDS: Final[dict[int, bytes]] = {
    0x1F1: bytes([_SETUP_SECTORS]),
    0x1FE: b"\x55\xaa",
    0x200: b"\xeb\x66",  # jump to 0x268, the first byte after the header
    0x202: b"HdrS",
    0x206: (0x020C).to_bytes(2, "little"),  # version of the protocol
    0x211: b"\x01",  # the kernel is loaded at 1 MiB
    0x214: (0x100000).to_bytes(4, "little"),
    0x22C: (0x7FFFFFFF).to_bytes(4, "little"),  # highest address of the initial file system
    0x238: (2047).to_bytes(4, "little"),  # longest command line
    0x268: b"\xfa\xf4\xeb\xfd",  # cli; hlt; and a jump to hlt, after an interrupt that cannot be disabled
}
"""Fields of the header of Linux's x86 boot protocol, and the code after it, by their offsets."""


def halting_guest(folder: Path) -> GuestImage:
    """Write the image of a guest that halts the processor below `folder`, and return the image."""
    setup = bytearray(_SECTOR * (1 + _SETUP_SECTORS))
    for offset, value in _FIELDS.items():
        setup[offset : offset + len(value)] = value
    kernel, initrd = folder / "vmlinuz", folder / "initrd"
    kernel.write_bytes(bytes(setup) + bytes(8 * _SECTOR))
    initrd.write_bytes(bytes(_SECTOR))
    return GuestImage(kernel, initrd, bootable=kernel)
