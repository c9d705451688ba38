"""What is due next for an allocation, derived from its own history and nothing else.

The history is enough: whoever asks twice gets the same orders with the same ids, so a crash between deciding
and sending is repaired by asking again. Orders are named after the fact that wanted them, which is also their
fence token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, assert_never
from uuid import UUID, uuid5

import msgspec

from control_plane.decisions.allocation_states import (
    Active,
    AnyWish,
    Failed,
    Living,
    Placed,
    Provisioning,
    Released,
    Releasing,
    Requested,
    SlotWish,
    Starting,
    Stopped,
    Stopping,
    Wish,
    awaiting_proof,
    end_of_lease,
    fold,
    slot_ids,
)
from control_plane.decisions.ingress import first_deadline, waiting_in, wanted_in, ways_of
from control_plane.decisions.readiness import Check, check_of
from control_plane.decisions.skus import GRACE, SKUS
from events.allocations import (
    AllocationFact,
    AllocationFailed,
    AllocationPlaced,
    AllocationReleasing,
    AllocationReplaced,
    AllocationRequested,
    AllocationStarting,
    AllocationStopping,
    PlacedSlot,
    SliceRemovalRetried,
)
from events.envelope import Recorded
from events.ingress import IngressReserved, IngressWithdrawn
from events.values import SlotId, correlation_of, node_of
from tasks.orders import (
    AddressMapping,
    ApplySlice,
    Machine,
    Mapping,
    Order,
    PortMapping,
    Readiness,
    RemoveSlice,
    SliceNetwork,
    StopSlice,
    Token,
)

_ORDERS = UUID("5a0c5f0e-6f39-5d7a-9f3c-0f6f3a3a1c55")


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until` unless a fact arrives; `what` is what the user reads."""

    what: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class MissDeadline:
    """Command: the deadline of the allocation, or of one of its ways in, has passed."""


@dataclass(frozen=True, slots=True)
class Expire:
    """Command: the allocation's lease has run out."""


Due = Order | Wait | MissDeadline | Expire
Going = Living | Releasing | Failed
"""States in which something is waited for."""
_ON: Final = (Provisioning, Active, Starting)
"""States in which slots are to carry slices."""
_RETRIED: Final = (SliceRemovalRetried,)
_CHANGED: Final = (IngressReserved, IngressWithdrawn)
_OF_SLOTS: Final[dict[type, tuple[type[SlotWish], ...]]] = {
    AllocationPlaced: _CHANGED,
    AllocationReplaced: _CHANGED,
    AllocationStarting: _CHANGED,
    AllocationStopping: (),
    AllocationReleasing: _RETRIED,
    AllocationFailed: _RETRIED,
}
"""What changes the wish of one slot, after each of the facts that changed all of them."""


def due(history: Sequence[Recorded[AllocationFact]], now: datetime) -> tuple[Due, ...]:
    """Orders that must be carried out, a command that is due now, or what is waited for."""
    facts = tuple(recorded.fact for recorded in history)
    state, ways = fold(facts), ways_of(facts)
    if state is None or isinstance(state, Requested | Released):
        return ()
    given_up = first_deadline(ways) if isinstance(state, Active) else None
    if (late := _by_the_clock(state, given_up, now)) is not None:
        return (late,)
    untold = _untold(state) | (waiting_in(ways) if isinstance(state, _ON) else frozenset())
    return *_orders(state, history, untold), _wait(state, given_up)


def _by_the_clock(state: Going, given_up: datetime | None, now: datetime) -> Expire | MissDeadline | None:
    match state:
        case Active() | Starting() | Stopping() | Stopped() if end_of_lease(state) <= now:
            return Expire()
        case Provisioning() | Starting() | Stopping() if state.deadline <= now:
            return MissDeadline()
        case Active() if given_up is not None and given_up <= now:
            return MissDeadline()
        case _:
            return None


def _untold(state: Going) -> frozenset[SlotId]:
    """Return the slots whose node has not reported yet that their desired state is reached."""
    match state:
        case Provisioning(ready=up):
            return slot_ids(state.slots) - up | awaiting_proof(state)
        case Starting(down=slots) | Stopping(on=slots):
            # Of a slice that was interrupted this is the order that it came by, which nobody sends again.
            return slots | awaiting_proof(state)
        case Releasing() | Failed() | Active() | Stopped():
            return awaiting_proof(state)
        case _:
            assert_never(state)


def _wait(state: Going, given_up: datetime | None) -> Wait:
    match state:
        case Provisioning(deadline=deadline):
            return Wait("readiness", deadline)
        case Active() if given_up is not None:
            return Wait("its ways in", min(given_up, end_of_lease(state)))
        case Active():
            return Wait("the end of the lease", end_of_lease(state))
        case Starting(deadline=deadline):
            return Wait("readiness again", min(deadline, end_of_lease(state)))
        case Stopping(deadline=deadline):
            return Wait("proof that the slices are off", min(deadline, end_of_lease(state)))
        case Stopped():
            return Wait("being started", end_of_lease(state))
        case Releasing() | Failed():
            return Wait("proof that the slots are empty")
        case _:
            assert_never(state)


def wanted_by(history: Sequence[Recorded[AllocationFact]]) -> Recorded[AllocationFact]:
    """The fact that last changed what all of the allocation's slots should carry."""
    return next(recorded for recorded in reversed(history) if isinstance(recorded.fact, Wish))


def wish_of(history: Sequence[Recorded[AllocationFact]], slot: SlotId) -> Order | None:
    """The newest order of a slot that the allocation has or had; None while it is not placed."""
    state = fold(tuple(recorded.fact for recorded in history))
    if state is None or isinstance(state, Requested):
        return None
    return next(iter(_orders(state, history, frozenset({slot}))), None)


def is_newest(history: Sequence[Recorded[AllocationFact]], slot: SlotId, order_id: UUID) -> bool:
    """Whether it names the slot's newest order."""
    return order_id == _order_id(slot, _wanted_of(history, slot))


def is_overtaken(history: Sequence[Recorded[AllocationFact]], slot: SlotId, order_id: UUID) -> bool:
    """Whether it names an order of the slot that a newer wish took the place of."""
    wish = _named_after(history, slot, order_id)
    return wish is not None and wish.position < _wanted_of_all(history, slot).position


def wish_behind(
    history: Sequence[Recorded[AllocationFact]], slot: SlotId, order_id: UUID | None
) -> Recorded[AllocationFact]:
    """The wish that a report came of: what its order is named after, or the slot's newest where that is unknown."""
    named = None if order_id is None else _named_after(history, slot, order_id)
    return named or _wanted_of(history, slot)


def _named_after(
    history: Sequence[Recorded[AllocationFact]], slot: SlotId, order_id: UUID
) -> Recorded[AllocationFact] | None:
    """The fact that gave an order of the slot its name; None where it is no order of the slot's."""
    wishes = (recorded for recorded in reversed(history) if isinstance(recorded.fact, AnyWish))
    return next((each for each in wishes if order_id == _order_id(slot, each)), None)


def _orders(
    state: Placed, history: Sequence[Recorded[AllocationFact]], slots: frozenset[SlotId]
) -> tuple[Order, ...]:
    """The newest order of each of the slots, in the allocation's order."""
    if not slots:
        return ()
    facts = [recorded.fact for recorded in history]
    ways, check = ways_of(facts), check_of(facts)
    return tuple(
        _order(state.request, slot, _wanted_of(history, slot.slot_id), wanted_in(ways, slot.slot_id), check)
        for slot in (*state.slots, *state.former.slots)
        if slot.slot_id in slots
    )


def _wanted_of_all(history: Sequence[Recorded[AllocationFact]], slot: SlotId) -> Recorded[AllocationFact]:
    """The fact that last changed what the slot should carry, with all others of its placement."""
    return next((each for each in history if _vacates(each.fact, slot)), None) or wanted_by(history)


def _vacates(fact: AllocationFact, slot: SlotId) -> bool:
    return isinstance(fact, AllocationReplaced) and slot in fact.vacated


def _wanted_of(history: Sequence[Recorded[AllocationFact]], slot: SlotId) -> Recorded[AllocationFact]:
    """The fact that last changed what the slot should carry: all of its placement's, or its own."""
    newest = _wanted_of_all(history, slot)
    own = _RETRIED if _vacates(newest.fact, slot) else _OF_SLOTS[type(newest.fact)]
    later = (recorded for recorded in reversed(history) if recorded.position > newest.position)
    return next((each for each in later if isinstance(each.fact, own) and each.fact.slot_id == slot), newest)


def _order(
    request: AllocationRequested,
    slot: PlacedSlot,
    wanted: Recorded[AllocationFact],
    ways: tuple[IngressReserved, ...],
    check: Check,
) -> Order:
    allocation = request.allocation_id
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
        body=_body(request, slot, wanted.fact, ways, check),
    )


def _body(
    request: AllocationRequested,
    slot: PlacedSlot,
    wanted: AllocationFact,
    ways: tuple[IngressReserved, ...],
    check: Check,
) -> ApplySlice | StopSlice | RemoveSlice:
    match wanted:
        case AllocationPlaced() | AllocationStarting() | IngressReserved() | IngressWithdrawn():
            return _apply(request, slot, ways, check)
        case AllocationStopping():
            return StopSlice(network=_network(slot), grace_seconds=int(GRACE.total_seconds()))
        case AllocationReplaced(vacated=vacated) if slot.slot_id not in vacated:
            return _apply(request, slot, ways, check)
        case AllocationReplaced() | AllocationReleasing() | AllocationFailed() | SliceRemovalRetried():
            return RemoveSlice(network=_network(slot))
        case _:
            raise AssertionError(f"{type(wanted).__name__} wants nothing of a slot")


def _order_id(slot: SlotId, wanted: Recorded[AllocationFact]) -> UUID:
    return uuid5(_ORDERS, f"{slot} {wanted.epoch} {wanted.position}")


def _apply(
    request: AllocationRequested, slot: PlacedSlot, ways: tuple[IngressReserved, ...], check: Check
) -> ApplySlice:
    sku = SKUS[request.sku]
    deadline = int(sku.provisioning.total_seconds())
    return ApplySlice(
        network=_network(slot, sku.rate_mbit),
        machine=Machine(
            vcpus=sku.vcpus,
            memory_mib=sku.memory_mib,
            image=request.image,
            hostname=request.allocation_id,
            ssh_authorized_keys=request.ssh_authorized_keys,
        ),
        readiness=Readiness(port=check.port, banner=check.banner, deadline_seconds=deadline),
        ingress=tuple(map(_mapping, ways)),
    )


def _mapping(way: IngressReserved) -> Mapping:
    mapping = way.mapping
    if mapping.service is None:
        return AddressMapping(
            ingress_id=way.ingress_id, public_address=mapping.public_address, sources=mapping.sources
        )
    return PortMapping.model_validate(
        {
            "ingress_id": way.ingress_id,
            "public_address": mapping.public_address,
            "sources": mapping.sources,
            **msgspec.to_builtins(mapping.service),
        }
    )


def _network(slot: PlacedSlot, rate_mbit: int | None = None) -> SliceNetwork:
    network = slot.network
    return SliceNetwork(
        bridge=network.bridge,
        mac_address=network.mac_address,
        private_ip=network.private_ip,
        subnet=network.subnet,
        gateway=network.gateway,
        rate_mbit=rate_mbit,
    )
