"""The life of a way in from outside: reserved -> published (<-> lost) -> withdrawn -> removed (ING-1).

    reserved    its address and port are claimed, and its slot's order has it
    published   the node found it in place: it is shown as an endpoint while its slice runs
    lost        the node found it gone, and could not mend that
    withdrawn   its slot's order has it no more
    removed     the node found nothing of it, nor of anything that nobody ordered: the claim is free

The proof that its slice is off leaves it reserved, and the word that that is ready again has it where it was.
Ways in stand in their allocation's stream, and are folded from it beside the allocation itself: none of them moves it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from control_plane.decisions.allocation_states import (
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
    state_name,
)
from control_plane.decisions.public_addresses import AddressWish, PortWish, WayWish
from control_plane.decisions.refusals import Conflict, Objection, UnknownName
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
    IngressMapping,
    IngressPublished,
    IngressRemoved,
    IngressReserved,
    IngressWithdrawn,
)
from events.values import IngressId, SlotId
from tasks.orders import MOST_MAPPINGS

IN_PLACE_WITHIN: Final = timedelta(minutes=2)
"""How long a way in may take to lead to its slice, from when that runs or is to run at the latest."""


@dataclass(frozen=True, slots=True)
class Reserved:
    asked: IngressReserved
    until: datetime | None
    """When it is given up, should its allocation be active; None while its slice is not wanted on."""
    led: bool = False
    """It was published when its slice was switched off, and is again once that is ready."""


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
Way = Wanted | Withdrawn | Removed
Ways = Mapping[IngressId, Way]


def ways_of(facts: Iterable[AllocationFact]) -> Ways:
    """Every way in that an allocation has or had, in the order in which they were asked for."""
    ways: dict[IngressId, Way] = {}
    for fact in facts:
        match fact:
            case IngressReserved(ingress_id=name):
                ways[name] = Reserved(fact, fact.deadline)
            case IngressPublished(ingress_id=name):
                ways[name] = Published(ways[name].asked)
            case IngressLost(ingress_id=name):
                ways[name] = Lost(ways[name].asked)
            case IngressWithdrawn(ingress_id=name, reason=reason):
                ways[name] = Withdrawn(ways[name].asked, reason)
            case IngressRemoved(ingress_id=name):
                ways[name] = Removed(ways[name].asked)
            case _:
                ways |= _with_its_slice(ways, fact)
    return ways


def _with_its_slice(ways: Ways, fact: AllocationFact) -> Ways:
    """Those that what happened to their slices moves, as they are then."""
    match fact:
        case (
            AllocationPlaced(deadline=up) | AllocationReplaced(deadline=up) | AllocationStarting(deadline=up)
        ):
            return _waiting(ways, up + IN_PLACE_WITHIN)
        case SliceInterrupted(slot_id=slot, deadline=up):
            return _waiting(_of_slot(ways, slot), up + IN_PLACE_WITHIN)
        case SliceStopped(slot_id=slot):
            return _switched_off(ways, slot)
        case SliceReady(slot_id=slot):
            return _back(ways, slot)
        case _:
            return {}


def _of_slot(ways: Ways, slot: SlotId) -> Ways:
    return {name: way for name, way in ways.items() if way.asked.slot_id == slot}


def _waiting(ways: Ways, until: datetime) -> Ways:
    """Those that wait for their slices, and are waited for until then."""
    return {name: replace(way, until=until) for name, way in ways.items() if isinstance(way, Reserved)}


def _switched_off(ways: Ways, slot: SlotId) -> Ways:
    """Those of a slice that is proved off: none leads there, and all are kept for its start."""
    return {
        name: Reserved(way.asked, None, led=not isinstance(way, Reserved) or way.led)
        for name, way in ways.items()
        if isinstance(way, Wanted) and way.asked.slot_id == slot
    }


def _back(ways: Ways, slot: SlotId) -> Ways:
    """Those that led to a slice that was switched off, and is ready: every order since has them."""
    return {
        name: Published(way.asked)
        for name, way in ways.items()
        if isinstance(way, Reserved) and way.led and way.asked.slot_id == slot
    }


def wanted_in(ways: Ways, slot: SlotId) -> tuple[IngressReserved, ...]:
    """Those that the slot's order has."""
    return tuple(way.asked for way in ways.values() if isinstance(way, Wanted) and way.asked.slot_id == slot)


def waiting_in(ways: Ways) -> frozenset[SlotId]:
    """Slots whose node has not said yet that it did what is wanted of a way in."""
    return frozenset(way.asked.slot_id for way in ways.values() if isinstance(way, Reserved | Withdrawn))


def first_deadline(ways: Ways) -> datetime | None:
    """When the next of those that do not lead anywhere yet is given up."""
    return min((way.until for way in ways.values() if isinstance(way, Reserved) and way.until), default=None)


def in_place_by(state: Allocation, now: datetime) -> datetime | None:
    """When one that is asked for now is given up; None where that is known when its slice is started."""
    match state:
        case Provisioning(deadline=up) | Starting(deadline=up):
            return up + IN_PLACE_WITHIN
        case Active():
            return now + IN_PLACE_WITHIN
        case _:
            return None


def check_room(state: Allocation, ways: Ways, slot: SlotId) -> None:
    """Raises `Conflict` unless another way in can be asked for."""
    match state:
        case Provisioning() | Active() | Starting() | Stopping() | Stopped():
            pass
        case Requested() | Releasing() | Released() | Failed():
            why = f"allocation {state.request.allocation_id} is {state_name(state)}"
            raise Conflict(Objection("wrong_state", why))
        case _:
            assert_never(state)
    if len(wanted_in(ways, slot)) >= MOST_MAPPINGS:
        why = f"slot {slot} has {MOST_MAPPINGS} ways in already, and no more fit into an order"
        raise Conflict(Objection("too_many_ingresses", why))


def withdraw(state: Allocation, ways: Ways, name: IngressId, reason: Reason) -> tuple[IngressFact, ...]:
    """Close one. Asked twice, nothing new happens. Of a slice that is off nothing leads anywhere: it is gone at once.

    Raises `UnknownName`.
    """
    match ways.get(name):
        case None:
            why = f"allocation {state.request.allocation_id} has no ingress {name}"
            raise UnknownName(Objection("unknown_ingress", why))
        case Withdrawn() | Removed():
            return ()
        case Reserved(asked=asked) | Published(asked) | Lost(asked):
            gone = (_removed(asked),) if _is_off(state, asked.slot_id) else ()
            return (IngressWithdrawn(asked.allocation_id, asked.slot_id, name, reason), *gone)


def withdraw_all(ways: Ways, reason: Reason) -> tuple[IngressFact, ...]:
    """Withdraw all open ingress rules, because their slots are replaced by slots on another node."""
    return tuple(
        IngressWithdrawn(way.asked.allocation_id, way.asked.slot_id, name, reason)
        for name, way in ways.items()
        if isinstance(way, Wanted)
    )


def wishes_of(ways: Ways, slots: Sequence[SlotId]) -> tuple[WayWish, ...]:
    """Return requests for the same ingress rules on another node, whose slots have the same order.

    The public address is one of the other node. The public port is kept, because the caller may have chosen it.
    """
    return tuple(
        WayWish(slots.index(way.asked.slot_id), _wish_to(way.asked.mapping), way.asked.mapping.sources)
        for way in ways.values()
        if isinstance(way, Wanted)
    )


def _wish_to(mapping: IngressMapping) -> PortWish | AddressWish:
    service = mapping.service
    return AddressWish() if service is None else PortWish(service.protocol, service.port, service.public_port)


def _is_off(state: Allocation, slot: SlotId) -> bool:
    """Whether its slice is proved to be off, and not wanted on again."""
    match state:
        case Stopping(on=on):
            return slot not in on
        case _:
            return isinstance(state, Stopped)


def give_up(state: Allocation, ways: Ways, now: datetime) -> tuple[IngressFact, ...]:
    """Withdraw what did not come to lead in time to a slice that runs; of one that does not, nothing is waited for."""
    if not isinstance(state, Active):
        return ()
    return tuple(
        IngressWithdrawn(
            asked.allocation_id,
            asked.slot_id,
            asked.ingress_id,
            Reason("deadline_missed", f"not in place on the node by {until.isoformat()}"),
        )
        for asked, until in _late(ways, now)
    )


def _late(ways: Ways, now: datetime) -> Iterator[tuple[IngressReserved, datetime]]:
    for way in ways.values():
        if isinstance(way, Reserved) and way.until is not None and way.until <= now:
            yield way.asked, way.until


def applied(ways: Ways, slot: SlotId) -> tuple[IngressFact, ...]:
    """The node carried the slot's newest order out: what it has leads to the slice, and nothing else does."""
    facts: list[IngressFact] = []
    for name, way in ways.items():
        match way:
            case Reserved(asked=asked, led=False) | Lost(asked) if asked.slot_id == slot:
                facts.append(IngressPublished(asked.allocation_id, name))
            case Withdrawn(asked) if asked.slot_id == slot:
                facts.append(_removed(asked))
            case _:
                pass
    return tuple(facts)


def seen(
    ways: Ways, slot: SlotId, lost: Sequence[IngressId], *, newest: bool, others: bool
) -> tuple[IngressFact, ...]:
    """Of the ways in to the slice in the slot the node says that these do not lead there, and the rest do: those that
    did so once, or all where it speaks of the slot's newest order. Unless `others` may lead there than that order's,
    what was withdrawn is gone.
    """
    facts: list[IngressFact] = []
    for name, way in ways.items():
        match way:
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


def closed(ways: Ways, slot: SlotId) -> tuple[IngressFact, ...]:
    """The slice of the slot is proved off: what was withdrawn is gone."""
    return tuple(
        _removed(way.asked)
        for way in ways.values()
        if isinstance(way, Withdrawn) and way.asked.slot_id == slot
    )


def emptied(ways: Ways, slot: SlotId) -> tuple[IngressFact, ...]:
    """The slot is proved empty, or given back without proof: all of its ways in are gone."""
    return tuple(
        _removed(way.asked)
        for way in ways.values()
        if not isinstance(way, Removed) and way.asked.slot_id == slot
    )


def _removed(asked: IngressReserved) -> IngressRemoved:
    return IngressRemoved(asked.allocation_id, asked.ingress_id, asked.mapping)
