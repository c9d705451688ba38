"""Snapshots of all objects that slices could leave behind on a host, by kind, and the differences of two snapshots.

If one kind of object cannot be read, the snapshot records the reason for that kind and reads the others, so that an
incomplete check is never reported as clean. Objects are compared as multisets of descriptions, which contain no
counters and no ages.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import msgspec

from node_agent.lab.leaks import leases, links, machines, queue, simulated, switches, translations
from node_agent.lab.leaks.target import HostTarget, SimulatedTarget, Target, TargetUnreadable

HOST_KINDS: Final[dict[str, Callable[[HostTarget], Iterable[str]]]] = {
    "ovs port": switches.ports,
    "ovs flow": switches.flows,
    "ovs meter": switches.meters,
    "ovs rate": switches.rates,
    "nft object": translations.objects,
    "link": links.links,
    "tap": links.taps,
    "address": links.addresses,
    "route": links.routes,
    "queueing discipline": links.disciplines,
    "tracked connection": links.connections,
    "dhcp reservation": leases.reservations,
    "dhcp lease": leases.leases,
    "domain": machines.domains,
    "disk": machines.disks,
    "root disk": machines.root_disks,
    "process": machines.processes,
    "redis key": queue.keys,
}
SIMULATED_KINDS: Final = {
    "ovs port": "ports",
    "ovs flow": "flows",
    "ovs meter": "meters",
    "nft object": "nat",
    "tap": "taps",
    "dhcp reservation": "reservations",
    "dhcp lease": "leases",
    "domain": "domains",
    "disk": "disks",
    "root disk": "root_disks",
    "tracked connection": "connections",
    "gpu partition": "partitions",
}
_EXPIRING: Final = frozenset({"tracked connection"})
"""Kinds of objects that expire by themselves, so that their disappearance is not a difference."""


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All objects on one host that slices could leave behind.

    `kinds` maps each kind to its objects, and `unreadable` maps a kind that could not be read to the reason.
    """

    target: Target
    kinds: dict[str, list[str]]
    unreadable: dict[str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """An object that is in only one of two snapshots of a host."""

    change: Literal["appeared", "disappeared"]
    kind: str
    object: str


def take(target: Target) -> Snapshot:
    """Take a snapshot of all objects on the host `target` that slices could leave behind."""
    kinds: dict[str, list[str]] = {}
    unreadable: dict[str, str] = {}
    for kind, read in _readers(target).items():
        try:
            kinds[kind] = sorted(read())
        except TargetUnreadable as error:
            unreadable[kind] = str(error)
    return Snapshot(target, kinds, unreadable)


def differences(before: Snapshot, after: Snapshot) -> list[Difference]:
    """Return all differences between two snapshots, for the kinds of objects that were readable in both."""
    found: list[Difference] = []
    for kind in before.kinds.keys() & after.kinds.keys():
        old, new = Counter(before.kinds[kind]), Counter(after.kinds[kind])
        found += [Difference("appeared", kind, item) for item in (new - old).elements()]
        if kind not in _EXPIRING:
            found += [Difference("disappeared", kind, item) for item in (old - new).elements()]
    return sorted(found, key=lambda difference: (difference.kind, difference.object))


def _readers(target: Target) -> dict[str, Callable[[], Iterable[str]]]:
    match target:
        case HostTarget():
            return {kind: partial(read, target) for kind, read in HOST_KINDS.items()}
        case SimulatedTarget():
            return {kind: partial(simulated.objects, target, part) for kind, part in SIMULATED_KINDS.items()}
