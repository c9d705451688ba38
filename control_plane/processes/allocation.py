"""What is due next for an allocation, derived from its own history and nothing else.

The history is enough: whoever asks twice gets the same orders with the same ids, so a crash between deciding
and sending is repaired by asking again. Orders are named after the fact that wanted them, which is also their
fence token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never
from uuid import UUID, uuid5

from control_plane.decisions.allocation_states import (
    Active,
    Failed,
    Placed,
    Provisioning,
    Released,
    Releasing,
    Requested,
    Starting,
    fold,
    slot_ids,
)
from control_plane.decisions.skus import SKUS
from events.allocations import (
    AllocationFact,
    AllocationFailed,
    AllocationPlaced,
    AllocationReleasing,
    AllocationRequested,
    PlacedSlot,
    SliceRemovalRetried,
)
from events.envelope import Recorded
from events.values import SlotId, correlation_of, node_of
from tasks.orders import ApplySlice, Machine, Order, Readiness, RemoveSlice, SliceNetwork, Token

_ORDERS = UUID("5a0c5f0e-6f39-5d7a-9f3c-0f6f3a3a1c55")


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until` unless a fact arrives; `what` is what the user reads."""

    what: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class MissDeadline:
    """Command: the allocation's deadline has passed."""


@dataclass(frozen=True, slots=True)
class Expire:
    """Command: the allocation's lease has run out."""


Due = Order | Wait | MissDeadline | Expire


def due(history: Sequence[Recorded[AllocationFact]], now: datetime) -> tuple[Due, ...]:
    """Orders that must be carried out, a command that is due now, or what is waited for."""
    state = fold(tuple(recorded.fact for recorded in history))
    match state:
        case None | Requested() | Released():
            return ()
        case Provisioning(deadline=deadline, ready=up):
            if deadline <= now:
                return (MissDeadline(),)
            orders = _orders(state, history, slot_ids(state.slots) - up)
            return *orders, Wait("readiness", deadline)
        case Active(lease=lease):
            assert lease is not None, "the grant is recorded with the activation"
            return (
                (Expire(),) if lease.expires_at <= now else (Wait("the end of the lease", lease.expires_at),)
            )
        case Starting(deadline=deadline, lease=lease):
            assert lease is not None, "only an active allocation can be interrupted"
            if lease.expires_at <= now:
                return (Expire(),)
            if deadline <= now:
                return (MissDeadline(),)
            return (Wait("readiness again", min(deadline, lease.expires_at)),)
        case Releasing(remaining=remaining) | Failed(remaining=remaining):
            orders = _orders(state, history, remaining)
            return *orders, Wait("proof that the slots are empty")
        case _:
            assert_never(state)


def wanted_by(history: Sequence[Recorded[AllocationFact]]) -> Recorded[AllocationFact]:
    """The fact that last changed what all of the allocation's slots should carry."""
    return next(
        recorded
        for recorded in reversed(history)
        if isinstance(recorded.fact, AllocationPlaced | AllocationReleasing | AllocationFailed)
    )


def wish_of(history: Sequence[Recorded[AllocationFact]], slot: SlotId) -> Order | None:
    """The newest order of a slot that the allocation has or had; None while it is not placed."""
    state = fold(tuple(recorded.fact for recorded in history))
    if state is None or isinstance(state, Requested):
        return None
    return next(iter(_orders(state, history, frozenset({slot}))), None)


def _orders(
    state: Placed, history: Sequence[Recorded[AllocationFact]], slots: frozenset[SlotId]
) -> tuple[Order, ...]:
    """The newest order of each of the slots, in the allocation's order."""
    newest = wanted_by(history)
    anew = {
        recorded.fact.slot_id: recorded
        for recorded in history
        if isinstance(recorded.fact, SliceRemovalRetried) and recorded.position > newest.position
    }
    return tuple(
        _order(state.request, slot, anew.get(slot.slot_id, newest))
        for slot in state.slots
        if slot.slot_id in slots
    )


def _order(request: AllocationRequested, slot: PlacedSlot, wanted: Recorded[AllocationFact]) -> Order:
    allocation = request.allocation_id
    present = isinstance(wanted.fact, AllocationPlaced)
    return Order(
        order_id=_order_id(slot.slot_id, wanted),
        node_id=node_of(slot.slot_id),
        slot_id=slot.slot_id,
        allocation_id=allocation,
        token=Token(wanted.epoch, wanted.position),
        issued_at=wanted.recorded_at,
        correlation_id=correlation_of(allocation),
        causation_id=wanted.event_id,
        trace_context=wanted.cause.trace_context,
        body=_apply(request, slot) if present else RemoveSlice(network=_network(slot)),
    )


def _order_id(slot: SlotId, wanted: Recorded[AllocationFact]) -> UUID:
    return uuid5(_ORDERS, f"{slot} {wanted.epoch} {wanted.position}")


def _apply(request: AllocationRequested, slot: PlacedSlot) -> ApplySlice:
    sku = SKUS[request.sku]
    return ApplySlice(
        network=_network(slot),
        machine=Machine(
            vcpus=sku.vcpus,
            memory_mib=sku.memory_mib,
            image=request.image,
            hostname=request.allocation_id,
            ssh_authorized_keys=request.ssh_authorized_keys,
        ),
        readiness=Readiness(deadline_seconds=int(sku.provisioning.total_seconds())),
    )


def _network(slot: PlacedSlot) -> SliceNetwork:
    network = slot.network
    return SliceNetwork(
        bridge=network.bridge,
        mac_address=network.mac_address,
        private_ip=network.private_ip,
        subnet=network.subnet,
        gateway=network.gateway,
    )
