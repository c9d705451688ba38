"""What a node's word about drift means for the ledger: what is open now against what was recorded as open.

Kinds, what is wanted and of which way in are compared, not what was found: the words of one drift may change from look
to look, and it stays the same drift.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from events.drift import DriftFound, OpenDrift
from events.nodes import NodeDegraded, NodeFact, NodeRecovered
from events.slots import SlotDegraded, SlotDevice, SlotFact, SlotRecovered
from events.values import IngressId, NodeId, PciAddress, SlotId, SlotIndex
from tasks.drift import CATALOGUE, Scope, Sighting

UNGRANTED: Final = "slot.ungranted"


def of_node(node: NodeId, recorded: Sequence[OpenDrift], found: Sequence[OpenDrift]) -> tuple[NodeFact, ...]:
    """Facts about what concerns all of the node's slots; none where nothing is new."""
    if _subjects(recorded) == _subjects(found):
        return ()
    return (NodeDegraded(node, tuple(found)) if found else NodeRecovered(node),)


def of_slot(slot: SlotId, recorded: Sequence[OpenDrift], found: Sequence[OpenDrift]) -> tuple[SlotFact, ...]:
    """Facts about what concerns one slot; none where nothing is new."""
    if _subjects(recorded) == _subjects(found):
        return ()
    return (SlotDegraded(slot, tuple(found)) if found else SlotRecovered(slot),)


def opened(sightings: Iterable[Sighting], slot: SlotIndex | None) -> tuple[OpenDrift, ...]:
    """What a node says is open in a place, as it is recorded."""
    return tuple(
        OpenDrift(each.kind, each.wanted, each.found, each.since, each.ingress_id, blocks=_blocks(each))
        for each in _of_place(sightings, slot)
    )


def mended(sightings: Iterable[Sighting], slot: SlotIndex | None) -> tuple[DriftFound, ...]:
    """What a node says it made good in a place, as it is recorded."""
    return tuple(
        DriftFound(each.kind, each.wanted, each.found, each.since, each.ingress_id)
        for each in _of_place(sightings, slot)
    )


def vanished(slot: SlotId, since: datetime) -> OpenDrift:
    """That a node does not describe a slot any more: nobody looks there, so nothing else is known of it."""
    type_ = CATALOGUE["slot.absent"]
    return OpenDrift(
        type_.kind, f"slot {slot}", "the node describes no such slot", since, blocks=type_.blocks
    )


def ungranted(
    slot: SlotId, granted: Collection[PciAddress], devices: Collection[SlotDevice], since: datetime
) -> tuple[OpenDrift, ...]:
    """That a node gives an approved slot other PCI functions than it was approved with."""
    found = sorted(each.address for each in devices)
    if found == sorted(granted):
        return ()
    type_ = CATALOGUE[UNGRANTED]
    wanted = f"PCI devices of {slot}: {', '.join(sorted(granted)) or 'none'}"
    return (OpenDrift(type_.kind, wanted, ", ".join(found) or "none", since, blocks=type_.blocks),)


def granted_now(slot: SlotId, recorded: Sequence[OpenDrift]) -> tuple[SlotFact, ...]:
    """An admin let the slot have what its node describes: that much is no drift any more."""
    return of_slot(slot, recorded, [each for each in recorded if each.kind != UNGRANTED])


def scope_of(drift: DriftFound, slot: SlotId | None) -> Scope:
    """For whom it speaks; of a kind that this release does not know, for the place where it was told."""
    if (type_ := CATALOGUE.get(drift.kind)) is not None:
        return type_.scope
    if drift.ingress_id is not None:
        return "exposure"
    return "node" if slot is None else "slot"


def _of_place(sightings: Iterable[Sighting], slot: SlotIndex | None) -> Iterator[Sighting]:
    """What speaks for one slot says nothing of the node, whatever the node says (NOD-8), nor the reverse."""
    for each in sightings:
        type_ = CATALOGUE.get(each.kind)
        if type_ is None or type_.is_of(slot):
            yield each


def _blocks(sighting: Sighting) -> bool:
    """A kind that this release does not know is of a newer node, and blocks."""
    type_ = CATALOGUE.get(sighting.kind)
    return type_ is None or type_.blocks


def _subjects(drift: Iterable[DriftFound]) -> frozenset[tuple[str, str, IngressId | None]]:
    return frozenset((each.kind, each.wanted, each.ingress_id) for each in drift)
