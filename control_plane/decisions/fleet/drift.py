"""Decisions about reported drift: compare the drift that a node now reports as open with the drift recorded as open.

Two reports of drift mean the same drift if their kind, desired state and ingress are equal. The observed state is not
compared, because its description may change from survey to survey while the drift stays the same. It is compared for
kinds with `compares_observed`, such as changed hardware: there an admin approves the value that the drift shows.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from events.drift import DriftFound, OpenDrift
from events.nodes import NodeDegraded, NodeFact, NodeRecovered
from events.slots import SlotDegraded, SlotDevice, SlotFact, SlotRecovered
from events.values import IngressId, NodeId, PciAddress, SlotId, SlotIndex
from tasks.drift import CATALOGUE, Scope, TimedEvidence

UNGRANTED: Final = "slot.ungranted"


def of_node(node: NodeId, recorded: Sequence[OpenDrift], found: Sequence[OpenDrift]) -> tuple[NodeFact, ...]:
    """Return the event to record if the open drift of a node as a whole, which concerns all its slots, has changed; an
    empty tuple if it has not.
    """
    if _subjects(recorded) == _subjects(found):
        return ()
    return (NodeDegraded(node, tuple(found)) if found else NodeRecovered(node),)


def of_slot(slot: SlotId, recorded: Sequence[OpenDrift], found: Sequence[OpenDrift]) -> tuple[SlotFact, ...]:
    """Return the event to record if the open drift of a slot has changed; an empty tuple if it has not."""
    if _subjects(recorded) == _subjects(found):
        return ()
    return (SlotDegraded(slot, tuple(found)) if found else SlotRecovered(slot),)


def open_drift(reported: Iterable[TimedEvidence], slot: SlotIndex | None) -> tuple[OpenDrift, ...]:
    """Return the open drift that a node reported about a slot, or about itself if `slot` is None, in the form that
    facts store.
    """
    return tuple(
        OpenDrift(each.kind, each.desired, each.observed, each.since, each.ingress_id, blocks=_blocks(each))
        for each in _of_place(reported, slot)
    )


def repaired_drift(reported: Iterable[TimedEvidence], slot: SlotIndex | None) -> tuple[DriftFound, ...]:
    """Return the repaired drift that a node reported about a slot, or about itself if `slot` is None, in the form
    that facts store.
    """
    return tuple(
        DriftFound(each.kind, each.desired, each.observed, each.since, each.ingress_id)
        for each in _of_place(reported, slot)
    )


def vanished(slot: SlotId, since: datetime) -> OpenDrift:
    """Return the drift `slot.absent` of a slot that its node no longer describes. The slot then has no other open
    drift, because the node does not survey it.
    """
    type_ = CATALOGUE["slot.absent"]
    return OpenDrift(
        type_.kind, f"slot {slot}", f"the node no longer describes slot {slot}", since, blocks=type_.blocks
    )


def ungranted(
    slot: SlotId, granted: Collection[PciAddress], devices: Collection[SlotDevice], since: datetime
) -> tuple[OpenDrift, ...]:
    """Return the drift of a slot if the PCI functions that its node describes differ from the granted ones; otherwise
    return an empty tuple.
    """
    found = sorted(each.address for each in devices)
    if found == sorted(granted):
        return ()
    type_ = CATALOGUE[UNGRANTED]
    wanted = f"PCI devices of {slot}: {', '.join(sorted(granted)) or 'none'}"
    return (OpenDrift(type_.kind, wanted, ", ".join(found) or "none", since, blocks=type_.blocks),)


def approved_now(slot: SlotId, recorded: Sequence[OpenDrift]) -> tuple[SlotFact, ...]:
    """Return the facts that end the drift that an approval of the slot accepts."""
    return of_slot(slot, recorded, [each for each in recorded if not ends_at_approval(each)])


def ends_at_approval(drift: DriftFound) -> bool:
    """Return whether the drift ends when an admin approves the slot."""
    type_ = CATALOGUE.get(drift.kind)
    return type_ is not None and type_.ends_at_approval


def scope_of(drift: DriftFound, slot: SlotId | None) -> Scope:
    """Return the scope of a drift: node, slot or ingress. For a kind that this release does not know, the scope
    follows from the object for which the node reported the drift.
    """
    if (type_ := CATALOGUE.get(drift.kind)) is not None:
        return type_.scope
    if drift.ingress_id is not None:
        return "ingress"
    return "node" if slot is None else "slot"


def _of_place(reported: Iterable[TimedEvidence], slot: SlotIndex | None) -> Iterator[TimedEvidence]:
    """Select the reported drift of one slot, or of the node if `slot` is None.

    Drift of a kind that concerns single slots is never selected for the node (NOD-8), and drift of a kind that concerns
    the node is never selected for a slot.
    """
    for each in reported:
        type_ = CATALOGUE.get(each.kind)
        if type_ is None or type_.is_of(slot):
            yield each


def _blocks(drift: TimedEvidence) -> bool:
    """Return whether a drift blocks placement. An unknown kind, which a newer agent reported, blocks it."""
    type_ = CATALOGUE.get(drift.kind)
    return type_ is None or type_.blocks


def _subjects(drift: Iterable[DriftFound]) -> frozenset[tuple[str, str, IngressId | None, str]]:
    return frozenset(
        (each.kind, each.desired, each.ingress_id, each.observed if _compares_observed(each) else "")
        for each in drift
    )


def _compares_observed(drift: DriftFound) -> bool:
    type_ = CATALOGUE.get(drift.kind)
    return type_ is not None and type_.compares_observed
