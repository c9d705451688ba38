"""Simulated nodes of the fleet in a separate process, each with its own agent, session, queue and host.

The process receives the nodes to start, and at the end stops them and returns their final state (`bench.fleet.hosted`).
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from bench.fleet.hosted import Admitted, FailedThreads, HostedNode, HostingSettings, serve, start_all
from node_agent.runtime.timetable import Timetable
from node_agent.transport.spool import Spool

_AT_ONCE: Final = 8
"""Nodes that start or stop at the same time."""
_DRAIN_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.1
_TRACES: Final = ("taps", "others", "ports", "flows", "reservations", "leases", "nat", "domains", "disks")
"""Kinds of objects that a slice could leave on a host, by their names in the host's state."""


class Faults(msgspec.Struct, frozen=True):
    """Error messages of nodes that did not start."""

    found: list[str]


class NodeState(msgspec.Struct, frozen=True):
    """Final state of a simulated node after its agent has stopped.

    `effects` counts the changes to the node's host, `left` lists objects on the host that did not exist at its start,
    and `spooled` counts reports that were not delivered.
    """

    name: str
    effects: dict[str, int]
    left: list[str]
    spooled: int


class FinalState(msgspec.Struct, frozen=True):
    """Final state of all simulated nodes of a process. `faults` names threads that ended with an exception."""

    nodes: list[NodeState]
    faults: list[str]


class _Nodes:
    """All simulated nodes of this process, with the objects that each node's host had at its start."""

    def __init__(self, hosting: HostingSettings) -> None:
        self._hosting, self._timetable, self._broken = hosting, Timetable(), FailedThreads()
        self._nodes: dict[HostedNode, Counter[str]] = {}

    def admit(self, admitted: Sequence[Admitted]) -> Faults:
        """Start simulated nodes for these registrations, and wait until their agents accept orders."""
        fresh = [HostedNode(self._hosting, each, self._timetable) for each in admitted]
        faults = start_all(fresh, _AT_ONCE)
        self._nodes |= {node: _objects_of(node) for node in fresh}
        return Faults(faults)

    def stop(self) -> FinalState:
        with ThreadPoolExecutor(_AT_ONCE) as at_once:
            return FinalState(
                [*at_once.map(_stop_node, *zip(*self._nodes.items(), strict=True))], self._broken.found
            )


def _stop_node(node: HostedNode, first: Counter[str]) -> NodeState:
    """Stop a simulated node after the control plane has received its last report, or after a timeout."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while node.agent is not None and node.agent.undelivered_reports and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    node.stop()
    spool = Spool(node.settings.state_folder / "spool")
    return NodeState(
        node.name, dict(node.effects), sorted((_objects_of(node) - first).elements()), spool.waiting
    )


def _objects_of(node: HostedNode) -> Counter[str]:
    with node.host.look() as state:
        return Counter(f"{kind} {each}" for kind in _TRACES for each in getattr(state, kind))


def _answers(hosting: HostingSettings, lines: Iterator[str]) -> Iterator[Faults | FinalState]:
    nodes = _Nodes(hosting)
    yield Faults([])
    for line in lines:
        admitted = msgspec.json.decode(line, type=list[Admitted] | None)
        yield nodes.stop() if admitted is None else nodes.admit(admitted)


if __name__ == "__main__":
    serve(_answers)
