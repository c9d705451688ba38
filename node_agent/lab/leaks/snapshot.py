"""What a host holds that slices could leave behind, kind by kind, and the difference of two such looks.

A look at one kind that fails spoils that kind alone, and is named: a check that could not look says so and never
says "clean". Objects are compared as multisets of their descriptions, from which all that counts or ages is gone.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import msgspec

from node_agent.lab.leaks import leases, links, machines, queue, simulated, switches, translations
from node_agent.lab.leaks.target import CouldNotLook, HostTarget, SimulatedTarget, Target

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
    "tracked connection": "connections",
}
_EXPIRING: Final = frozenset({"tracked connection"})
"""Kinds whose objects end by themselves: that one of the baseline is gone says nothing."""


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`kinds` maps a kind to its objects, `unseen` a kind that could not be read to the reason."""

    target: Target
    kinds: dict[str, list[str]]
    unseen: dict[str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """One object that one look had and the other had not."""

    change: Literal["appeared", "disappeared"]
    kind: str
    object: str


def take(target: Target) -> Snapshot:
    """Look at everything there is to see of `target`, now."""
    kinds: dict[str, list[str]] = {}
    unseen: dict[str, str] = {}
    for kind, look in _looks(target).items():
        try:
            kinds[kind] = sorted(look())
        except CouldNotLook as error:
            unseen[kind] = str(error)
    return Snapshot(target, kinds, unseen)


def differences(before: Snapshot, after: Snapshot) -> list[Difference]:
    """All differences in the kinds that both looks could read."""
    found: list[Difference] = []
    for kind in before.kinds.keys() & after.kinds.keys():
        old, new = Counter(before.kinds[kind]), Counter(after.kinds[kind])
        found += [Difference("appeared", kind, item) for item in (new - old).elements()]
        if kind not in _EXPIRING:
            found += [Difference("disappeared", kind, item) for item in (old - new).elements()]
    return sorted(found, key=lambda difference: (difference.kind, difference.object))


def _looks(target: Target) -> dict[str, Callable[[], Iterable[str]]]:
    match target:
        case HostTarget():
            return {kind: partial(look, target) for kind, look in HOST_KINDS.items()}
        case SimulatedTarget():
            return {kind: partial(simulated.objects, target, part) for kind, part in SIMULATED_KINDS.items()}
