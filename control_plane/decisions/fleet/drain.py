"""Decisions about taking a node out of service: cordon it, drain it, and open it again.

A cordoned node gets no new slices; those that run there stay. A drain cordons the node and waits until no allocation
holds a slot of it. At its release time, if it has one, the control plane releases the allocations that still do. The
drain ends with one of these outcomes:

    outcome     when
    empty       no slot is claimed, releasing or quarantined
    incomplete  slots are not empty `INCOMPLETE_AFTER` after the release time; the end names a reason for each slot
    cancelled   an admin uncordons the node

The number of occupied slots only decreases while the node is cordoned. A drain without a release time can wait for any
time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple, assert_never

from control_plane.decisions.refusals import Objection, refuse_if
from events.facts import Reason, RemainingSlot
from events.nodes import (
    NodeCordoned,
    NodeDrainEnded,
    NodeDrainStarted,
    NodeFact,
    NodeUncordoned,
)
from events.slot_states import Claimed, Discovered, Free, Quarantined, Releasing, Retired, SlotState
from events.values import AllocationId, NodeId, SlotId

INCOMPLETE_AFTER: Final = timedelta(minutes=10)
"""Time from the release of the allocations until all slots of the node must be proved empty. Long enough for a node
that reboots in the meantime.
"""
DRAINED: Final = "node_drained"
"""Code of the reason for which a drain releases an allocation."""
EMPTY: Final = "empty"
INCOMPLETE: Final = "incomplete"
CANCELLED: Final = "cancelled"


class OccupiedSlot(NamedTuple):
    """A slot that an allocation holds, or in which remains of a slice may be."""

    slot_id: SlotId
    state: Claimed | Releasing | Quarantined


@dataclass(frozen=True, slots=True)
class Release:
    """Next step of a drain: release this allocation, which holds slots of the node."""

    allocation_id: AllocationId
    reason: Reason


def cordon(node: NodeId, cordoned: str | None, reason: str) -> tuple[NodeFact, ...]:
    """Close a node for new placements; return no facts if it is cordoned. `cordoned` is the reason of its cordon."""
    return () if cordoned is not None else (NodeCordoned(node, reason),)


def uncordon(
    node: NodeId,
    cordoned: str | None,
    running: NodeDrainStarted | None,
    reason: str,
    remaining: tuple[RemainingSlot, ...],
) -> tuple[NodeFact, ...]:
    """Open a node for placements again, which cancels its running drain. Raises `Conflict` unless it is cordoned."""
    refuse_if(against_uncordoning(node, cordoned))
    cancelled = () if running is None else (NodeDrainEnded(node, CANCELLED, remaining),)
    return *cancelled, NodeUncordoned(node, reason)


def against_uncordoning(node: NodeId, cordoned: str | None) -> list[Objection]:
    """Return the reason why a node cannot be uncordoned; an empty list if it can."""
    if cordoned is not None:
        return []
    return [Objection("not_cordoned", f"node {node} is not cordoned; there is nothing to uncordon")]


def start(
    node: NodeId,
    cordoned: str | None,
    running: NodeDrainStarted | None,
    reason: str,
    *,
    now: datetime,
    release_after: timedelta | None,
) -> tuple[NodeFact, ...]:
    """Drain a node, and cordon it unless it is cordoned. While a drain runs (`running`), only change its release time;
    return no facts if neither the running drain nor the request has a release time.
    """
    release_at = None if release_after is None else now + release_after
    if running is not None and running.release_at is None and release_at is None:
        return ()
    began = now if running is None else running.started_at
    return *cordon(node, cordoned, reason), NodeDrainStarted(node, reason, began, release_at)


def occupied(slot: SlotId, state: SlotState) -> OccupiedSlot | None:
    """Return the slot if an allocation holds it or it is not proved empty; None if a drain need not wait for it."""
    match state:
        case Claimed() | Releasing() | Quarantined():
            return OccupiedSlot(slot, state)
        case Discovered() | Free() | Retired():
            return None
        case _:
            assert_never(state)


def next_step(
    drain: NodeDrainStarted, slots: Sequence[OccupiedSlot], now: datetime, *, reachable: bool
) -> Release | NodeDrainEnded | None:
    """Return what is due for a running drain: the release of one allocation, or its end; None if it has to wait.

    `slots` are the occupied slots of the node, and `reachable` is whether it sends heartbeats.
    """
    node, release_at = drain.node_id, drain.release_at
    if not slots:
        return NodeDrainEnded(node, EMPTY, ())
    if release_at is None or now < release_at:
        return None
    claimed = next((each.state.by for each in slots if isinstance(each.state, Claimed)), None)
    if claimed is not None:
        return Release(claimed, Reason(DRAINED, f"node {node} is drained: {drain.reason}"))
    if now < release_at + INCOMPLETE_AFTER:
        return None
    return NodeDrainEnded(node, INCOMPLETE, remaining_slots(drain, slots, reachable=reachable))


def remaining_slots(
    drain: NodeDrainStarted, slots: Sequence[OccupiedSlot], *, reachable: bool
) -> tuple[RemainingSlot, ...]:
    """Return each occupied slot of the node, with the reason why the drain waits for it."""
    return tuple(RemainingSlot(each.slot_id, _waits_for(drain, each, reachable=reachable)) for each in slots)


def _waits_for(drain: NodeDrainStarted, slot: OccupiedSlot, *, reachable: bool) -> Reason:
    match slot.state:
        case Claimed(by=allocation):
            end = (
                "the drain waits until the allocation ends by itself"
                if drain.release_at is None
                else f"the drain releases the allocation at {drain.release_at.isoformat()}"
            )
            return Reason("slot_in_use", f"allocation {allocation} holds the slot; {end}")
        case Releasing(by=allocation) if not reachable:
            message = (
                f"the node is unreachable and has not proved that the slice of {allocation} is removed; start its "
                "agent, or force-release the slot"
            )
            return Reason("node_unreachable", message)
        case Releasing(by=allocation):
            return Reason(
                "removal_pending", f"the node has not proved yet that the slice of {allocation} is removed"
            )
        case Quarantined(by=allocation, reason=reason):
            return reason or Reason("quarantined", f"remains of the slice of {allocation} may be in the slot")
        case _:
            assert_never(slot.state)
