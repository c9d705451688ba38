"""Parsers of the files in which the kernel and its drivers describe a PCI function.

Sources: Documentation/ABI/testing/sysfs-bus-pci and PCI/sysfs-pci.rst of the kernel (`resource`: a line with start, end
and flags for each region), ABI/stable/sysfs-class-infiniband (`state`, `phys_state`, `rate`, `link_layer`),
ABI/testing/sysfs-class-net (`mtu`, `operstate`, `speed`, `phys_port_name`), include/linux/ioport.h (flags of regions),
and the chapter about /proc in the README of NVIDIA's driver (`gpus/<address>/information`).
"""

import re
from collections.abc import Iterator
from typing import Final

from events.values import InvalidValue, PciAddress, pci_address

_PCI_ROOT: Final = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_PREFETCHABLE_64: Final = 0x0010_2200
"""Flags IORESOURCE_MEM, IORESOURCE_PREFETCH and IORESOURCE_MEM_64, which a prefetchable 64-bit BAR has in
`resource`.
"""
_STANDARD_BARS: Final = 6
"""Number of lines at the beginning of `resource` that describe the standard BARs. Further lines describe the ROM, the
BARs of virtual functions and the windows of bridges.
"""
_MIB: Final = 1024 * 1024
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?) Gb/sec")
_STATE: Final = re.compile(r"\d+: (.+)")


def root_port(path: str) -> PciAddress | None:
    """Return the topmost bridge in the path of a PCI function below /sys/devices; None for a function on a root bus.

    Below a controller with a PCI domain of its own, such as Intel VMD, it is the topmost bridge of that domain.
    """
    parts = path.split("/")
    roots = [position for position, part in enumerate(parts) if _PCI_ROOT.fullmatch(part)]
    below = parts[roots[-1] + 1 :] if roots else []
    try:
        return pci_address(below[0]) if len(below) > 1 else None
    except InvalidValue:
        return None


def largest_bar(resource: str) -> tuple[int, int] | None:
    """Return number and size in MiB of the largest prefetchable 64-bit BAR in a function's `resource`; None if all are
    smaller than 1 MiB or of another type.
    """
    sizes = (
        (size, number)
        for number, size in enumerate(_bars(resource.splitlines()[:_STANDARD_BARS]))
        if size >= _MIB
    )
    size, number = max(sizes, default=(0, 0))
    return (number, size // _MIB) if size else None


def prefetchable_bars(resource: str) -> tuple[int, ...]:
    """Return the sizes in bytes of a function's prefetchable 64-bit BARs from its `resource`. Firmware places only
    these above 4 GiB.
    """
    return tuple(size for size in _bars(resource.splitlines()[:_STANDARD_BARS]) if size)


def _bars(lines: list[str]) -> Iterator[int]:
    for line in lines:
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            yield 0
            continue
        yield end - start + 1 if flags & _PREFETCHABLE_64 == _PREFETCHABLE_64 and end > start else 0


def bar_sizes(resource: str) -> tuple[int, ...]:
    """Return the sizes in bytes of a function's BARs from its `resource`, in the order of their numbers and without
    those that it does not have.
    """
    sizes = []
    for line in resource.splitlines()[:_STANDARD_BARS]:
        try:
            start, end, _ = (int(word, 16) for word in line.split())
        except ValueError:
            continue
        if end > start:
            sizes.append(end - start + 1)
    return tuple(sizes)


def nvidia_fields(information: str) -> dict[str, str]:
    """Return the fields of an NVIDIA driver's `information` file, without those that the driver does not know yet.

    Until a GPU is initialized, the driver shows question marks in its UUID.
    """
    pairs = (line.partition(":") for line in information.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs if value.strip() and "?" not in value}


def state_word(text: str | None) -> str | None:
    """Return the name of a state in snake_case from the text of an RDMA port's file: `4: ACTIVE` gives `active`, and
    `5: LinkUp` gives `link_up`. None for other text.
    """
    match = _STATE.fullmatch(text or "")
    if match is None:
        return None
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match[1]).replace(" ", "_").lower()


def rate_mbit(text: str | None) -> int | None:
    """Return an RDMA port's rate in Mbit/s: `400 Gb/sec (4X NDR)` is 400000."""
    match = _RATE.match(text or "")
    return round(float(match[1]) * 1000) if match is not None else None


def whole_number(text: str | None) -> int | None:
    """Return the number in a file; None for other text, such as -1 as the speed of a link without a carrier."""
    return int(text) if text is not None and text.isdecimal() else None
