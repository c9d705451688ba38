"""What a PCI function reports about its health, computed from the text of files in sysfs. Nothing is read here, and
nothing is judged: the control plane compares the readings of each release with those before.

Sources: Documentation/ABI/testing/sysfs-bus-pci (`config`, `current_link_*`, `max_link_*`) and
sysfs-bus-pci-devices-aer_stats (`aer_dev_fatal`, `aer_dev_nonfatal`) of the kernel.
"""

import re
from typing import Final

from events.values import PciAddress
from node_agent.host.device_facts import PCI_FOLDER, FactsUnread, Files
from node_agent.host.device_texts import bar_sizes
from tasks.devices import DeviceReading
from tasks.fields import LARGEST_COUNT, sentence

CONFIG: Final = "config"
"""Name under which the first 64 bytes of the configuration space are read, as hexadecimal digits."""
HEALTH_FILES: Final = (
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    "../max_link_speed",
    "../max_link_width",
    "resource",
    "aer_dev_fatal",
    "aer_dev_nonfatal",
)
"""Files about the health of a PCI function, relative to the folder of the function in sysfs; `..` is the bridge above
it.
"""
_MOST_LANES: Final = 32
_GIGATRANSFERS: Final = re.compile(r"(\d+(?:\.\d+)?) GT/s")
_TOTAL: Final = re.compile(r"TOTAL_ERR_\w+ (\d+)")


def reading_of(address: PciAddress, files: Files | FactsUnread) -> DeviceReading:
    """Return the health reading of a PCI function from its files; a value of the reading is None if the host does not
    report it.
    """
    if isinstance(files, FactsUnread):
        return DeviceReading(address=address, unreadable=sentence(files.reason))
    folder = f"{PCI_FOLDER}/{address}"

    def text(name: str) -> str:
        return files.get(f"{folder}/{name}", "")

    config = text(CONFIG)
    return DeviceReading(
        address=address,
        responds=None if not config else not set(config) <= {"f"},
        link_mtps=_speed(text("current_link_speed")),
        link_width=_number(text("current_link_width")),
        most_link_mtps=_lower(_speed(text("max_link_speed")), _speed(text("../max_link_speed"))),
        most_link_width=_lower(_number(text("max_link_width")), _number(text("../max_link_width"))),
        bars=bar_sizes(text("resource")),
        fatal_errors=_total(text("aer_dev_fatal")),
        nonfatal_errors=_total(text("aer_dev_nonfatal")),
    )


def _speed(text: str) -> int | None:
    """Return the speed of a link in million transfers per second; None if it is unknown."""
    match = _GIGATRANSFERS.match(text)
    return None if match is None else int(float(match[1]) * 1000)


def _number(text: str) -> int | None:
    """Return a number of PCIe lanes; None if it is unknown, in which case the kernel shows 0 or 255."""
    return int(text) if text.isdecimal() and 0 < int(text) <= _MOST_LANES else None


def _lower(own: int | None, above: int | None) -> int | None:
    """Return the lower of a link property (speed or width) of a PCI function and of the bridge above it, as both ends
    support it; None if both are unknown.
    """
    return own if above is None else above if own is None else min(own, above)


def _total(text: str) -> int | None:
    match = _TOTAL.search(text)
    return None if match is None else min(int(match[1]), LARGEST_COUNT)
