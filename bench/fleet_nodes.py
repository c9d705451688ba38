"""Simulated nodes of the fleet, in a process of their own: each with its agent, its session, its queue and its host.

It is told which nodes to admit, and at the end to take them down and say what they hold (`bench.hosted`).
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from bench.hosted import Admitted, BrokenThreads, HostedNode, Hosting, serve, start_all
from node_agent.spool import Spool
from tasks.timetable import Timetable

_AT_ONCE: Final = 8
"""Nodes that come up at a time, and go down."""
_DRAIN_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.1
_TRACES: Final = ("taps", "others", "ports", "flows", "reservations", "leases", "nat", "domains", "disks")
"""What a slice leaves on a host, by the names that the host's state has for it."""


class Faults(msgspec.Struct, frozen=True):
    """What went wrong with nodes that did not come up."""

    found: list[str]


class Holding(msgspec.Struct, frozen=True):
    """What a node was found with, its agent stopped.

    `effects` counts what was done to the host, `left` is what it has beyond what it came up with, and `spooled` counts
    reports that nobody took.
    """

    name: str
    effects: dict[str, int]
    left: list[str]
    spooled: int


class Down(msgspec.Struct, frozen=True):
    """The last answer. `faults` are threads that ended by an error."""

    nodes: list[Holding]
    faults: list[str]


class _Nodes:
    """All nodes of the process, on one timetable, and what each host carried when it came up."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting, self._timetable, self._broken = hosting, Timetable(), BrokenThreads()
        self._nodes: dict[HostedNode, Counter[str]] = {}

    def admit(self, admitted: Sequence[Admitted]) -> Faults:
        """Returns when they take orders."""
        fresh = [HostedNode(self._hosting, each, self._timetable) for each in admitted]
        faults = start_all(fresh, _AT_ONCE)
        self._nodes |= {node: _carried(node) for node in fresh}
        return Faults(faults)

    def down(self) -> Down:
        with ThreadPoolExecutor(_AT_ONCE) as at_once:
            return Down([*at_once.map(_go_down, *zip(*self._nodes.items(), strict=True))], self._broken.found)


def _go_down(node: HostedNode, first: Counter[str]) -> Holding:
    """Once the control plane took its last report, or did not for long."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while node.agent is not None and node.agent.untold and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    node.stop()
    spool = Spool(node.settings.state_folder / "spool")
    return Holding(node.name, dict(node.effects), sorted((_carried(node) - first).elements()), spool.waiting)


def _carried(node: HostedNode) -> Counter[str]:
    with node.host.look() as state:
        return Counter(f"{kind} {each}" for kind in _TRACES for each in getattr(state, kind))


def _answers(hosting: Hosting, lines: Iterator[str]) -> Iterator[Faults | Down]:
    nodes = _Nodes(hosting)
    yield Faults([])
    for line in lines:
        admitted = msgspec.json.decode(line, type=list[Admitted] | None)
        yield nodes.down() if admitted is None else nodes.admit(admitted)


if __name__ == "__main__":
    serve(_answers)
