"""What libvirt's own log says of the machines in one place of a lab node: each start, and each end, in their order.

It is what "nothing is applied twice" is counted by: of two starts, the first machine has ended in between.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node_agent.lab.lab import LabNode

_STARTED: Final = ": starting up libvirt version"
_ENDED: Final = ": shutting down, reason="


@dataclass(frozen=True, slots=True)
class Lives:
    """Of the machines in one place, in the words of libvirt: `started`, or `ended, ` and why."""

    told: tuple[str, ...]

    @property
    def starts(self) -> int:
        return self.told.count("started")

    def since(self, before: "Lives") -> "Lives":
        return Lives(self.told[len(before.told) :])

    def ends(self, reason: str) -> int:
        """How many ended for this reason: `daemon` is a libvirtd that ends what it died in the middle of starting."""
        return self.told.count(f"ended, {reason}")


def lives(node: LabNode, tap: str = "slice0") -> Lives:
    log = node.folder / "log" / "libvirt" / "qemu" / f"{tap}.log"
    return Lives(tuple(_told(log)) if log.exists() else ())


def _told(log: Path) -> list[str]:
    return [
        "started" if _STARTED in line else f"ended, {line.partition(_ENDED)[2].strip()}"
        for line in log.read_text(errors="replace").splitlines()
        if _STARTED in line or _ENDED in line
    ]
