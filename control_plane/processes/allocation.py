"""Derive the due orders and commands of an allocation from its own history alone.

Deriving them twice yields the same orders with the same ids, so a crash between deciding and sending is repaired by
deriving again. The id of an order is made from the fact that caused it, and the position of that fact is its fence
token.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple, assert_never
from uuid import UUID, uuid5

import msgspec

from control_plane.decisions.allocation_states import (
    Active,
    AnyDesiredStateFact,
    DesiredStateFact,
    Failed,
    Living,
    Placed,
    Provisioning,
    Released,
    Releasing,
    Requested,
    SlotDesiredStateFact,
    Starting,
    Stopped,
    Stopping,
    Waiting,
    awaiting_proof,
    end_of_lease,
    fold,
    slot_ids,
)
from control_plane.decisions.deadlines import (
    GRACE,
    STOP_WITHIN,
    deadline_after_outage,
    ready_within,
    release_deadline,
)
from control_plane.decisions.ingress import (
    IN_PLACE_WITHIN,
    IngressStates,
    first_deadline,
    ingress_states_of,
    ordered_ingress_of,
    slots_with_unconfirmed_ingress,
)
from control_plane.decisions.leases import term_of
from events.allocations import (
    AllocationFact,
    AllocationFailed,
    AllocationPlaced,
    AllocationReleasing,
    AllocationReplaced,
    AllocationRequested,
    AllocationStarting,
    AllocationStopping,
    LeaseGranted,
    PlacedSlot,
    SliceRemovalRetried,
)
from events.entries import ImageContent, SkuContent
from events.envelope import Recorded
from events.ingress import IngressReserved, IngressWithdrawn
from events.traces import continued
from events.values import NetworkMode, SlotId, SshPublicKey, correlation_of, node_of
from tasks.orders import (
    AddressMapping,
    ApplySlice,
    Machine,
    Mapping,
    Order,
    PortMapping,
    Readiness,
    RemoveSlice,
    RootDisk,
    SliceNetwork,
    StopSlice,
    Token,
)

_ORDERS = UUID("5a0c5f0e-6f39-5d7a-9f3c-0f6f3a3a1c55")


@dataclass(frozen=True, slots=True)
class Wait:
    """State in which nothing is due before `until` unless a fact arrives; `what` names the awaited event for users."""

    what: str
    until: datetime | None = None

    def until_or_before(self, moment: datetime) -> "Wait":
        """Return this wait, ended at `moment` if it would last longer."""
        return Wait(self.what, moment if self.until is None else min(self.until, moment))


@dataclass(frozen=True, slots=True)
class MissDeadline:
    """Due command to fail an allocation, or withdraw its ingress rules, because their deadline has passed."""


@dataclass(frozen=True, slots=True)
class ExpireWait:
    """Due command to fail an allocation that was not placed before the end of its wait."""


@dataclass(frozen=True, slots=True)
class Expire:
    """Due command to release an allocation, because its lease has ended."""


@dataclass(frozen=True, slots=True)
class AnnounceEnd:
    """Due command to record that the lease of an allocation ends within the lead time `lead`."""

    lead: timedelta


@dataclass(frozen=True, slots=True)
class RecordOverdue:
    """Due command to record that the release of an allocation was not complete by its deadline."""

    deadline: datetime


Due = Order | Wait | MissDeadline | ExpireWait | Expire | AnnounceEnd | RecordOverdue
Unfinished = Living | Releasing | Failed
"""States of an allocation in which its process still waits for a report of a node or for a point in time."""
_RUNNING_STATES: Final = (Provisioning, Active, Starting)
"""States in which slots are to run slices."""
_RETRIES: Final = (SliceRemovalRetried,)
_INGRESS_CHANGES: Final = (IngressReserved, IngressWithdrawn)
_CHANGES_OF_ONE_SLOT: Final[dict[type, tuple[type[SlotDesiredStateFact], ...]]] = {
    AllocationPlaced: _INGRESS_CHANGES,
    AllocationReplaced: _INGRESS_CHANGES,
    AllocationStarting: _INGRESS_CHANGES,
    AllocationStopping: (),
    AllocationReleasing: _RETRIES,
    AllocationFailed: _RETRIES,
}
"""Types of the facts that can later change the desired state of one slot, by the type of the last fact that changed the
desired state of all slots.
"""


class _Notice(NamedTuple):
    """A command that only records that a time has come, and this time. It changes no desired state, so it is due
    together with orders, which must not wait for it.
    """

    due_at: datetime
    command: AnnounceEnd | RecordOverdue


def due(
    history: Sequence[Recorded[AllocationFact]],
    now: datetime,
    lease_leads: Collection[timedelta] = (),
    up_since: datetime | None = None,
) -> tuple[Due, ...]:
    """Return what is due for an allocation: one command that ends or changes it now; or else the orders for its nodes,
    and a command that records that a time has come, or the awaited event.

    `lease_leads` are the times before the end of a lease at which the end is announced. `up_since` is since when the
    control plane has been running without a pause, None if it always has.
    """
    facts = tuple(recorded.fact for recorded in history)
    state, ingress_rules = fold(facts), ingress_states_of(facts)
    if state is None or isinstance(state, Requested | Released):
        return ()
    if isinstance(state, Waiting):
        end = state.queued.waits_until
        return (ExpireWait() if end <= now else Wait("capacity", end),)
    deadline = _deadline(state, ingress_rules, up_since)
    notice = _next_notice(state, history, now, lease_leads, up_since)
    has_notice = notice is not None and notice.due_at <= now
    late = _timed_command(state, deadline, now)
    # The notice comes before a missed deadline, because that one may have to wait for reports of nodes.
    if isinstance(late, Expire) or (late is not None and not has_notice):
        return (late,)
    unconfirmed = _unconfirmed(state) | (
        slots_with_unconfirmed_ingress(ingress_rules) if isinstance(state, _RUNNING_STATES) else frozenset()
    )
    orders, wait = _orders(state, history, ingress_rules, unconfirmed), _wait(state, deadline)
    if notice is None:
        return *orders, wait
    return *orders, notice.command if has_notice else wait.until_or_before(notice.due_at)


def lease_ends_at(history: Sequence[Recorded[AllocationFact]]) -> datetime | None:
    """Return when the lease of an allocation ends; None if it has no lease that runs."""
    if not any(isinstance(recorded.fact, LeaseGranted) for recorded in history):
        return None  # faster than to compute the state of the allocation
    match fold(tuple(recorded.fact for recorded in history)):
        case (Active() | Starting() | Stopping() | Stopped()) as leased:
            return end_of_lease(leased)
        case _:
            return None


def _next_notice(
    state: Unfinished,
    history: Sequence[Recorded[AllocationFact]],
    now: datetime,
    lease_leads: Collection[timedelta],
    up_since: datetime | None,
) -> _Notice | None:
    """Return the next command of an allocation that only records that a time has come. The time may have passed
    already. Return None if the state has no such command.
    """
    match state:
        case Active() | Starting() | Stopping() | Stopped():
            term = term_of(history)
            lead = None if term is None else term.next_lead(lease_leads, now)
            return None if term is None or lead is None else _Notice(term.ends_at - lead, AnnounceEnd(lead))
        case Releasing(overdue=None) | Failed(overdue=None) if state.remaining:
            deadline = release_deadline(last_placement_fact(history).recorded_at, up_since)
            return _Notice(deadline, RecordOverdue(deadline))
        case Provisioning() | Releasing() | Failed():
            return None
        case _:
            assert_never(state)


def _deadline(state: Unfinished, ingress_rules: IngressStates, up_since: datetime | None) -> datetime | None:
    """Return the deadline of the slices or of the ingress rules of an allocation; None if it waits for neither. The
    time before `up_since`, when the control plane was not running, does not count.
    """
    match state:
        case Provisioning(deadline=recorded) | Starting(deadline=recorded):
            return deadline_after_outage(recorded, ready_within(state.specification.sku.content), up_since)
        case Stopping(deadline=recorded):
            return deadline_after_outage(recorded, STOP_WITHIN, up_since)
        case Active():
            first = first_deadline(ingress_rules)
            return None if first is None else deadline_after_outage(first, IN_PLACE_WITHIN, up_since)
        case Stopped() | Releasing() | Failed():
            return None
        case _:
            assert_never(state)


def _timed_command(
    state: Unfinished, deadline: datetime | None, now: datetime
) -> Expire | MissDeadline | None:
    match state:
        case Active() | Starting() | Stopping() | Stopped() if end_of_lease(state) <= now:
            return Expire()
        case _:
            return MissDeadline() if deadline is not None and deadline <= now else None


def _unconfirmed(state: Unfinished) -> frozenset[SlotId]:
    """Return the slots of an allocation that have not reached their desired state according to the reports of their
    node.
    """
    match state:
        case Provisioning(ready=up):
            return slot_ids(state.slots) - up | awaiting_proof(state)
        case Starting(down=slots) | Stopping(on=slots):
            # For an interrupted slice this is the order that created it; it is not sent again.
            return slots | awaiting_proof(state)
        case Releasing() | Failed() | Active() | Stopped():
            return awaiting_proof(state)
        case _:
            assert_never(state)


def _wait(state: Unfinished, deadline: datetime | None) -> Wait:
    match state:
        case Provisioning():
            return Wait("readiness", deadline)
        case Active() if deadline is not None:
            return Wait("ingress rules in place on the node", end_of_lease(state)).until_or_before(deadline)
        case Active():
            return Wait("the end of the lease", end_of_lease(state))
        case Starting():
            wait = Wait("readiness of the slices after their start", deadline)
            return wait.until_or_before(end_of_lease(state))
        case Stopping():
            return Wait("proof that the slices are off", deadline).until_or_before(end_of_lease(state))
        case Stopped():
            return Wait("a start request", end_of_lease(state))
        case Releasing() | Failed():
            return Wait("proof that the slots are empty")
        case _:
            assert_never(state)


def last_placement_fact(history: Sequence[Recorded[AllocationFact]]) -> Recorded[AllocationFact]:
    """Return the fact that last changed the desired state of all slots of the allocation."""
    return next(recorded for recorded in reversed(history) if isinstance(recorded.fact, DesiredStateFact))


def newest_order_of(history: Sequence[Recorded[AllocationFact]], slot: SlotId) -> Order | None:
    """Return the newest order of a slot that an allocation has or had; None while the allocation is not placed."""
    facts = tuple(recorded.fact for recorded in history)
    state = fold(facts)
    if state is None or isinstance(state, Requested | Waiting):
        return None
    return next(iter(_orders(state, history, ingress_states_of(facts), frozenset({slot}))), None)


def is_newest(history: Sequence[Recorded[AllocationFact]], slot: SlotId, order_id: UUID) -> bool:
    """Return whether `order_id` is the id of the slot's newest order."""
    return order_id == _order_id(slot, _cause_for_slot(history, slot))


def is_superseded(history: Sequence[Recorded[AllocationFact]], slot: SlotId, order_id: UUID) -> bool:
    """Return whether `order_id` is the id of an order of the slot that a newer order superseded."""
    source = _cause_of_order(history, slot, order_id)
    return source is not None and source.position < _cause_for_placement(history, slot).position


def cause_of_report(
    history: Sequence[Recorded[AllocationFact]], slot: SlotId, order_id: UUID | None
) -> Recorded[AllocationFact]:
    """Return the fact that caused the order to which a report refers; if the order is unknown, the fact that caused
    the slot's newest order.
    """
    named = None if order_id is None else _cause_of_order(history, slot, order_id)
    return named or _cause_for_slot(history, slot)


def _cause_of_order(
    history: Sequence[Recorded[AllocationFact]], slot: SlotId, order_id: UUID
) -> Recorded[AllocationFact] | None:
    """Return the fact that caused the order with this id; None if it is not an order of the slot."""
    causes = (recorded for recorded in reversed(history) if isinstance(recorded.fact, AnyDesiredStateFact))
    return next((each for each in causes if order_id == _order_id(slot, each)), None)


def _orders(
    state: Placed,
    history: Sequence[Recorded[AllocationFact]],
    ingress_rules: IngressStates,
    slots: frozenset[SlotId],
) -> tuple[Order, ...]:
    """Return the newest order of each of the given slots, in the sequence of the allocation's slots."""
    if not slots:
        return ()
    return tuple(
        _order(
            state,
            slot,
            _cause_for_slot(history, slot.slot_id),
            ordered_ingress_of(ingress_rules, slot.slot_id),
        )
        for slot in (*state.slots, *state.former.slots)
        if slot.slot_id in slots
    )


def _cause_for_placement(
    history: Sequence[Recorded[AllocationFact]], slot: SlotId
) -> Recorded[AllocationFact]:
    """Return the fact that last changed the desired state of all slots of the placement to which the slot belongs."""
    return next((each for each in history if _vacates(each.fact, slot)), None) or last_placement_fact(history)


def _vacates(fact: AllocationFact, slot: SlotId) -> bool:
    return isinstance(fact, AllocationReplaced) and slot in fact.vacated


def _cause_for_slot(history: Sequence[Recorded[AllocationFact]], slot: SlotId) -> Recorded[AllocationFact]:
    """Return the fact that last changed the slot's desired state, whether it changed only this slot or all slots of its
    placement.
    """
    newest = _cause_for_placement(history, slot)
    own = _RETRIES if _vacates(newest.fact, slot) else _CHANGES_OF_ONE_SLOT[type(newest.fact)]
    later = (recorded for recorded in reversed(history) if recorded.position > newest.position)
    return next((each for each in later if isinstance(each.fact, own) and each.fact.slot_id == slot), newest)


def _order(
    state: Placed,
    slot: PlacedSlot,
    source: Recorded[AllocationFact],
    ingress_rules: tuple[IngressReserved, ...],
) -> Order:
    allocation = state.request.allocation_id
    return Order(
        order_id=_order_id(slot.slot_id, source),
        node_id=node_of(slot.slot_id),
        slot_id=slot.slot_id,
        allocation_id=allocation,
        token=Token(source.epoch, source.position),
        issued_at=source.recorded_at,
        correlation_id=correlation_of(allocation),
        causation_id=source.event_id,
        trace_context=continued(source.cause.trace_context, source.event_id),
        body=_body(state, slot, source.fact, ingress_rules),
    )


def _body(
    state: Placed,
    slot: PlacedSlot,
    source: AllocationFact,
    ingress_rules: tuple[IngressReserved, ...],
) -> ApplySlice | StopSlice | RemoveSlice:
    match source:
        case AllocationPlaced() | AllocationStarting() | IngressReserved() | IngressWithdrawn():
            return _apply(state, slot, ingress_rules)
        case AllocationStopping():
            return StopSlice(network=_network(slot), grace_seconds=int(GRACE.total_seconds()))
        case AllocationReplaced(vacated=vacated) if slot.slot_id not in vacated:
            return _apply(state, slot, ingress_rules)
        case AllocationReplaced() | AllocationReleasing() | AllocationFailed() | SliceRemovalRetried():
            return RemoveSlice(network=_network(slot))
        case _:
            raise AssertionError(
                f"a fact of type {type(source).__name__} does not define the desired state of a slot"
            )


def _order_id(slot: SlotId, source: Recorded[AllocationFact]) -> UUID:
    return uuid5(_ORDERS, f"{slot} {source.epoch} {source.position}")


def _apply(state: Placed, slot: PlacedSlot, ingress_rules: tuple[IngressReserved, ...]) -> ApplySlice:
    """Return the desired state of a slot with a slice. It follows from the allocation's own facts, never from the
    catalogue: the node refuses different content under the same fence token.
    """
    request, sku, image = state.request, state.specification.sku.content, state.specification.image
    check = image.content.readiness
    return ApplySlice(
        network=_network(slot, sku.rate_mbit),
        machine=Machine(
            vcpus=sku.vcpus,
            memory_mib=sku.memory_mib,
            image=image.name,
            hostname=request.allocation_id,
            ssh_authorized_keys=(*request.ssh_authorized_keys, *_lines_of_gateway(request)),
            root_disk=_root_disk(sku, image.content),
            user_data=request.user_data,
        ),
        readiness=Readiness(port=check.port, banner=check.banner, deadline_seconds=sku.provisioning_seconds),
        ingress=_mappings(request.network_mode, ingress_rules),
    )


def _lines_of_gateway(request: AllocationRequested) -> tuple[SshPublicKey, ...]:
    """Return the `authorized_keys` lines with which the slices accept the SSH gateway, and certificates that are signed
    with its key for this allocation.
    """
    if request.gateway_key is None:
        return ()
    # An SSH server without support for certificates, such as dropbear, ignores the second line.
    authority = f'cert-authority,principals="{request.allocation_id}" {request.gateway_key}'
    return request.gateway_key, SshPublicKey(authority)


def _root_disk(sku: SkuContent, image: ImageContent) -> RootDisk | None:
    if image.format == "kernel":
        return None
    assert image.digest is not None, "a disk image must have a digest"
    assert image.firmware is not None, "a disk image must have a firmware"
    return RootDisk(
        digest=image.digest,
        format=image.format,
        image_bytes=image.size_bytes,
        size_gib=sku.disk_gib,
        firmware=image.firmware,
    )


def _mappings(mode: NetworkMode, ingress_rules: tuple[IngressReserved, ...]) -> tuple[Mapping, ...]:
    """Return the ingress rules of an order; empty for a network mode without ingress."""
    match mode:
        case "private-nat":
            return ()
        case "public-nat":
            return tuple(map(_mapping, ingress_rules))
        case _:
            assert_never(mode)


def _mapping(rule: IngressReserved) -> Mapping:
    mapping = rule.rule
    if mapping.service is None:
        return AddressMapping(
            ingress_id=rule.ingress_id, public_address=mapping.public_address, sources=mapping.sources
        )
    return PortMapping.model_validate(
        {
            "ingress_id": rule.ingress_id,
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
