"""Trees of sysfs for tests, kept in `trees/` as one line of JSON for each PCI function, and laid out as files and
links.

`cloud` was recorded: a virtual machine with virtio devices and no IOMMU, Linux 6.18, with all its functions and, for
each function, the files that the agent reads.

`hgx`, `bluefield` and `workstation` were composed and never recorded, since no such machine was available. Ids and
classes are from the PCI ID database, and the bus numbers of `hgx` from NVIDIA's documentation of its eight-GPU H100
systems. Files and their content follow the kernel's documentation (ABI/testing/sysfs-bus-pci,
ABI/testing/sysfs-class-net). The names of representors follow networking/switchdev and mlx5's commit "Move to use
common phys port names for vport representors". These three trees show that documented content is parsed; a real machine
may show other content.
"""

import json
from pathlib import Path
from typing import Final

from events.values import PciAddress

_TREES: Final = Path(__file__).parent / "trees"
_LINK: Final = "-> "


def lay_out(tree: str, root: Path) -> Path:
    """Write a PCI tree below `root` as files and links, as sysfs shows them. Return `root`."""
    for line in (_TREES / f"{tree}.jsonl").read_text().splitlines():
        files: dict[str, str] = json.loads(line)
        address = files.pop("at")
        folder, shown = root / "devices" / address, root / "bus" / "pci" / "devices" / address
        folder.mkdir(parents=True)
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.symlink_to(f"../../../devices/{address}")
        for name, content in files.items():
            _put(folder / name, content)
        _put(folder / "driver_override", "(null)")
    for name in ("bind", "unbind"):
        _put(root / "bus" / "pci" / "drivers" / "vfio-pci" / name, "")
    return root


VF: Final = PciAddress("0000:3b:00.2")
"""The first virtual function of `bluefield`."""


def switching(root: Path, number: int) -> Path:
    """Write the PCI tree `bluefield` below `root`, with the network link `number` as the representor of its first
    virtual function.
    """
    for port in lay_out("bluefield", root).glob("devices/*/net/eth0/ifindex"):
        port.write_text(f"{number}\n")
    return root


def _put(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if content.startswith(_LINK):
        path.symlink_to(content.removeprefix(_LINK))
    else:
        path.write_text(f"{content}\n" if content else "")
