"""The states of an ingress rule: reserved -> published (<-> lost) -> withdrawn -> removed (ING-1).

    reserved    its address and port are claimed, and the slot's order contains it
    published   the node found the rule in place: the rule is shown as an endpoint while its slice runs
    lost        the node found that the rule does not lead to the slice: nothing answers on the port, or the rule is
                missing or blocked
    withdrawn   the slot's order no longer contains it
    removed     the node found neither the rule nor any rule that was not ordered: the claim is released

When a slice is proved to be off, its published and lost rules become reserved; when it is ready again, they become
published. Facts about ingress rules are in the allocation's stream, but none of them changes the allocation's state.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from control_plane.decisions.allocation_states import (
    Accepted,
    Active,
    Allocation,
    Failed,
    Provisioning,
    Released,
    Releasing,
    Requested,
    Starting,
    Stopped,
    Stopping,
    Waiting,
    state_name,
)
from control_plane.decisions.public_addresses import AddressRequest, IngressRequest, PortRequest
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.decisions.requests import permits_ingress
from events.allocations import (
    AllocationFact,
    AllocationPlaced,
    AllocationReplaced,
    AllocationStarting,
    SliceInterrupted,
    SliceReady,
    SliceStopped,
)
from events.facts import Reason
from events.ingress import (
    IngressFact,
    IngressLost,
    IngressPublished,
    IngressRemoved,
    IngressReserved,
    IngressRule,
    IngressWithdrawn,
)
from events.values import IngressId, SlotId
from tasks.orders import MOST_MAPPINGS

IN_PLACE_WITHIN: Final = timedelta(minutes=2)
"""Time within which an ingress rule must be in place. It begins when the slice runs; while the slice is being started,
it begins at the deadline of that start.
"""


@dataclass(frozen=True, slots=True)
class Reserved:
    asked: IngressReserved
    until: datetime | None
    """When the rule is withdrawn if its allocation is active; None while the desired state of its slice is off."""
    was_published: bool = False
    """The rule was published when its slice was stopped, and is published again once the slice is ready."""


@dataclass(frozen=True, slots=True)
class Published:
    asked: IngressReserved


@dataclass(frozen=True, slots=True)
class Lost:
    asked: IngressReserved


@dataclass(frozen=True, slots=True)
class Withdrawn:
    asked: IngressReserved
    reason: Reason


@dataclass(frozen=True, slots=True)
class Removed:
    asked: IngressReserved


Wanted = Reserved | Published | Lost
IngressState = Wanted | Withdrawn | Removed
IngressStates = Mapping[IngressId, IngressState]


def ingress_states_of(facts: Iterable[AllocationFact]) -> IngressStates:
    """Return the state of every ingress rule that an allocation has or had, in the order in which they were
    requested.
    """
    ingresses: dict[IngressId, IngressState] = {}
    for fact in facts:
        match fact:
            case IngressReserved(ingress_id=name):
                ingresses[name] = Reserved(fact, fact.deadline)
            case IngressPublished(ingress_id=name):
                ingresses[name] = Published(ingresses[name].asked)
            case IngressLost(ingress_id=name):
                ingresses[name] = Lost(ingresses[name].asked)
            case IngressWithdrawn(ingress_id=name, reason=reason):
                ingresses[name] = Withdrawn(ingresses[name].asked, reason)
            case IngressRemoved(ingress_id=name):
                ingresses[name] = Removed(ingresses[name].asked)
            case _ if ingresses:
                ingresses |= _with_its_slice(ingresses, fact)
            case _:
                pass
    return ingresses


def _with_its_slice(ingresses: IngressStates, fact: AllocationFact) -> IngressStates:
    """Return the new states of those ingress rules that a fact about their slice changes."""
    match fact:
        case (
            AllocationPlaced(deadline=up) | AllocationReplaced(deadline=up) | AllocationStarting(deadline=up)
        ):
            return _waiting(ingresses, up + IN_PLACE_WITHIN)
        case SliceInterrupted(slot_id=slot, deadline=up):
            return _waiting(_of_slot(ingresses, slot), up + IN_PLACE_WITHIN)
        case SliceStopped(slot_id=slot):
            return _switched_off(ingresses, slot)
        case SliceReady(slot_id=slot):
            return _published_again(ingresses, slot)
        case _:
            return {}


def _of_slot(ingresses: IngressStates, slot: SlotId) -> IngressStates:
    return {name: ingress for name, ingress in ingresses.items() if ingress.asked.slot_id == slot}


def _waiting(ingresses: IngressStates, until: datetime) -> IngressStates:
    """Return those of the given ingress rules that are reserved, with their deadline set to `until`."""
    return {
        name: replace(ingress, until=until)
        for name, ingress in ingresses.items()
        if isinstance(ingress, Reserved)
    }


def _switched_off(ingresses: IngressStates, slot: SlotId) -> IngressStates:
    """Return the ingress rules of a slice that is proved to be off, changed to the state reserved, which they have
    until the slice is ready again.
    """
    return {
        name: Reserved(
            ingress.asked, None, was_published=not isinstance(ingress, Reserved) or ingress.was_published
        )
        for name, ingress in ingresses.items()
        if isinstance(ingress, Wanted) and ingress.asked.slot_id == slot
    }


def _published_again(ingresses: IngressStates, slot: SlotId) -> IngressStates:
    """Return the reserved ingress rules that were published before their slice was stopped, changed to the state
    published. The order by which the slice became ready again contains them.
    """
    return {
        name: Published(ingress.asked)
        for name, ingress in ingresses.items()
        if isinstance(ingress, Reserved) and ingress.was_published and ingress.asked.slot_id == slot
    }


def ordered_ingress_of(ingresses: IngressStates, slot: SlotId) -> tuple[IngressReserved, ...]:
    """Return the ingress rules that the newest order of a slot contains."""
    return tuple(
        ingress.asked
        for ingress in ingresses.values()
        if isinstance(ingress, Wanted) and ingress.asked.slot_id == slot
    )


def slots_with_unconfirmed_ingress(ingresses: IngressStates) -> frozenset[SlotId]:
    """Return the slots with an ingress rule that was added or withdrawn and that the node has not confirmed yet."""
    return frozenset(
        ingress.asked.slot_id for ingress in ingresses.values() if isinstance(ingress, Reserved | Withdrawn)
    )


def first_deadline(ingresses: IngressStates) -> datetime | None:
    """Return the earliest deadline of the reserved ingress rules; None if none has a deadline."""
    return min(
        (ingress.until for ingress in ingresses.values() if isinstance(ingress, Reserved) and ingress.until),
        default=None,
    )


def ingress_deadline(state: Allocation, now: datetime) -> datetime | None:
    """Return the deadline of an ingress rule that is requested now; None if the start of its slice sets the deadline
    later.
    """
    match state:
        case Provisioning(deadline=up) | Starting(deadline=up):
            return up + IN_PLACE_WITHIN
        case Active():
            return now + IN_PLACE_WITHIN
        case _:
            return None


def against_opening(state: Allocation, ingresses: IngressStates, slot: SlotId) -> list[Objection]:
    """Return the reason why a slot cannot get another ingress rule: the network mode of its allocation, the end of the
    allocation, or the maximum of rules. An empty list does not mean that an address or port is free.
    """
    allocation = state.request.allocation_id
    if not permits_ingress(mode := state.request.network_mode):
        reason = f"allocation {allocation} has network mode {mode}; ingress rules need public-nat"
        return [Objection("ingress_needs_public_nat", reason)]
    match state:
        case Provisioning() | Active() | Starting() | Stopping() | Stopped():
            pass
        case Requested() | Waiting() | Releasing() | Released() | Failed():
            reason = f"allocation {allocation} is {state_name(state)}; no ingress can be added"
            return [Objection("wrong_state", reason)]
        case _:
            assert_never(state)
    if len(ordered_ingress_of(ingresses, slot)) >= MOST_MAPPINGS:
        reason = f"slot {slot} has {MOST_MAPPINGS} ingress rules already, the maximum; close one first"
        return [Objection("too_many_ingresses", reason)]
    return []


def against_opening_any(state: Accepted, ingresses: IngressStates) -> list[Objection]:
    """Return the reason why no slot of the allocation can get another ingress rule; an empty list if one can."""
    # An allocation without slots has ended or waits, which is an objection to every slot.
    slots = [slot.slot_id for slot in state.slots] or [SlotId("")]
    against = [against_opening(state, ingresses, slot) for slot in slots]
    return next((each for each in against if not each), against[0])


def withdraw(
    state: Allocation, ingresses: IngressStates, name: IngressId, reason: Reason
) -> tuple[IngressFact, ...]:
    """Withdraw an ingress rule; a repeated request returns no facts. If its slice is off, the rule is removed at once.

    Raises `UnknownName` if the allocation has no such rule.
    """
    match ingresses.get(name):
        case None:
            message = f"allocation {state.request.allocation_id} has no ingress {name}"
            raise UnknownName(Objection("unknown_ingress", message))
        case Withdrawn() | Removed():
            return ()
        case Reserved(asked=asked) | Published(asked) | Lost(asked):
            gone = (_removed(asked),) if _is_off(state, asked.slot_id) else ()
            return (IngressWithdrawn(asked.allocation_id, asked.slot_id, name, reason), *gone)


def withdraw_all(ingresses: IngressStates, reason: Reason) -> tuple[IngressFact, ...]:
    """Withdraw all ingress rules of an allocation, because its slots are replaced by slots on another node."""
    return tuple(
        IngressWithdrawn(ingress.asked.allocation_id, ingress.asked.slot_id, name, reason)
        for name, ingress in ingresses.items()
        if isinstance(ingress, Wanted)
    )


def ingress_requests_of(ingresses: IngressStates, slots: Sequence[SlotId]) -> tuple[IngressRequest, ...]:
    """Return requests that repeat an allocation's ingress rules on another node. `slots` are its slots in their order.

    The other node provides the public addresses. A public port is kept, because the caller may have chosen it.
    """
    return tuple(
        IngressRequest(
            slots.index(ingress.asked.slot_id),
            _target_of(ingress.asked.rule),
            ingress.asked.rule.sources,
        )
        for ingress in ingresses.values()
        if isinstance(ingress, Wanted)
    )


def _target_of(mapping: IngressRule) -> PortRequest | AddressRequest:
    service = mapping.service
    return (
        AddressRequest()
        if service is None
        else PortRequest(service.protocol, service.port, service.public_port)
    )


def _is_off(state: Allocation, slot: SlotId) -> bool:
    """Return whether the slice of a slot is proved to be off while its desired state is off."""
    match state:
        case Stopping(on=on):
            return slot not in on
        case _:
            return isinstance(state, Stopped)


def withdraw_overdue(state: Allocation, ingresses: IngressStates, now: datetime) -> tuple[IngressFact, ...]:
    """Withdraw those ingress rules of an active allocation that were not in place by their deadline."""
    if not isinstance(state, Active):
        return ()
    return tuple(
        IngressWithdrawn(
            asked.allocation_id,
            asked.slot_id,
            asked.ingress_id,
            Reason("deadline_missed", f"the ingress was not in place on the node by {until.isoformat()}"),
        )
        for asked, until in _overdue(ingresses, now)
    )


def _overdue(ingresses: IngressStates, now: datetime) -> Iterator[tuple[IngressReserved, datetime]]:
    for ingress in ingresses.values():
        if isinstance(ingress, Reserved) and ingress.until is not None and ingress.until <= now:
            yield ingress.asked, ingress.until


def applied(ingresses: IngressStates, slot: SlotId) -> tuple[IngressFact, ...]:
    """Record that a node applied a slot's newest order: exactly the ingress rules in this order are in place."""
    facts: list[IngressFact] = []
    for name, ingress in ingresses.items():
        match ingress:
            case Reserved(asked=asked, was_published=False) | Lost(asked) if asked.slot_id == slot:
                facts.append(IngressPublished(asked.allocation_id, name))
            case Withdrawn(asked) if asked.slot_id == slot:
                facts.append(_removed(asked))
            case _:
                pass
    return tuple(facts)


def observe(
    ingresses: IngressStates, slot: SlotId, lost: Sequence[IngressId], *, newest: bool, others: bool
) -> tuple[IngressFact, ...]:
    """Record a node's observation of the ingress rules of a slot: those in `lost` are missing, the others are in place.

    If `newest` is true, the observation refers to the slot's newest order; else it applies only to rules that were
    published before. If `others` is true, rules that are not in that order may still exist on the node; else withdrawn
    rules are recorded as removed.
    """
    facts: list[IngressFact] = []
    for name, ingress in ingresses.items():
        match ingress:
            case Published(asked) if asked.slot_id == slot and name in lost:
                facts.append(IngressLost(asked.allocation_id, name))
            case Lost(asked) if asked.slot_id == slot and name not in lost:
                facts.append(IngressPublished(asked.allocation_id, name))
            case Reserved(asked=asked) if newest and asked.slot_id == slot and name not in lost:
                facts.append(IngressPublished(asked.allocation_id, name))
            case Withdrawn(asked) if newest and asked.slot_id == slot and not others:
                facts.append(_removed(asked))
            case _:
                pass
    return tuple(facts)


def closed(ingresses: IngressStates, slot: SlotId) -> tuple[IngressFact, ...]:
    """Record the removal of the withdrawn ingress rules of a slot after its slice was proved to be off."""
    return tuple(
        _removed(ingress.asked)
        for ingress in ingresses.values()
        if isinstance(ingress, Withdrawn) and ingress.asked.slot_id == slot
    )


def emptied(ingresses: IngressStates, slot: SlotId) -> tuple[IngressFact, ...]:
    """Record the removal of all ingress rules of a slot that is proved empty or was force-released."""
    return tuple(
        _removed(ingress.asked)
        for ingress in ingresses.values()
        if not isinstance(ingress, Removed) and ingress.asked.slot_id == slot
    )


def _removed(asked: IngressReserved) -> IngressRemoved:
    return IngressRemoved(asked.allocation_id, asked.ingress_id, asked.rule, asked.project)
