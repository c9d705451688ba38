"""Starts and ends of the virtual machines of one slot, in order, read from libvirt's own log on a lab node.

Tests use it to verify that no start is executed twice: between two starts, the first machine must have ended.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node_agent.lab.lab import LabNode

_STARTED: Final = ": starting up libvirt version"
_ENDED: Final = ": shutting down, reason="


@dataclass(frozen=True, slots=True)
class Lives:
    """Starts and ends of the virtual machines of one slot, as `started` or `ended, REASON` with libvirt's reason."""

    events: tuple[str, ...]

    @property
    def starts(self) -> int:
        return self.events.count("started")

    def since(self, before: "Lives") -> "Lives":
        return Lives(self.events[len(before.events) :])

    def ends(self, reason: str) -> int:
        """Return how often a virtual machine of the slot ended for this reason; `daemon` means that libvirtd was killed
        during the start.
        """
        return self.events.count(f"ended, {reason}")


def lives(node: LabNode, tap: str = "slice0") -> Lives:
    log = node.folder / "log" / "libvirt" / "qemu" / f"{tap}.log"
    return Lives(tuple(_events_in(log)) if log.exists() else ())


def _events_in(log: Path) -> list[str]:
    return [
        "started" if _STARTED in line else f"ended, {line.partition(_ENDED)[2].strip()}"
        for line in log.read_text(errors="replace").splitlines()
        if _STARTED in line or _ENDED in line
    ]
