"""The allocations that had a slot or an address, from the events of the slot: when each had it, and why it ended."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final, NamedTuple

from control_plane.cli.session import Session
from control_plane.client import calls
from control_plane.client.answers import Allocation, Event, Slot, decode
from control_plane.client.errors import Forbidden, UnknownName
from control_plane.client.history_answers import History, Holders, Kind

SHOWN: Final = 10
"""Maximum number of allocations of a slot that are shown: the newest up to the chosen time."""
_CLAIMED: Final = "slot.claimed"
_REQUESTED: Final = "allocation.requested"
_TYPES: Final = (_CLAIMED, "slot.released", "slot.force_released")


class Holding(NamedTuple):
    """The time in which an allocation held a slot. `allocation` is its present view, None if it may not be read, and
    `why` the reason for which it gave up the slot, empty if it did not. `is_current`: whether it held the slot at the
    chosen time.
    """

    name: str
    requested_by: str
    begin: datetime
    end: datetime | None
    is_current: bool
    allocation: Allocation | None = None
    why: str = ""


class Holdings(NamedTuple):
    """A slot, and its newest allocations up to the chosen time, newest first. `has_more`: there are earlier ones."""

    slot: str
    newest: tuple[Holding, ...]
    has_more: bool

    @property
    def is_held(self) -> bool:
        """Return whether an allocation held the slot at the chosen time."""
        return any(each.is_current for each in self.newest)


def holdings(current: Session, found: History, at: str | None) -> list[Holdings]:
    """Return the newest allocations of a slot, or of each slot that holds an address, up to the time or position `at`
    (None: up to now). `found` is the state of this slot or address at that time. The list is empty for other kinds of
    resources, and for a caller that may not read the events.
    """
    try:
        return [_holdings(current, slot, since, at) for slot, since in _slots_of(found)]
    except Forbidden:
        return []


def _slots_of(found: History) -> Iterator[tuple[str, int]]:
    """Yield the slot that `found` describes, with position 0; or each slot that holds the address that `found`
    describes, with the position since which the slot holds it.
    """
    if bytes(found.state) == b"null":
        return
    if found.kind is Kind.SLOT:
        yield decode(found.state, Slot).id, 0
    elif found.kind is Kind.ADDRESS:
        for holder in decode(found.state, Holders).holders:
            if holder.slot:
                yield holder.slot.id, holder.since


def _holdings(current: Session, slot: str, since: int, at: str | None) -> Holdings:
    filters = calls.event_filters(streams=[f"slot-{slot}"], types=_TYPES)
    begin = f"position:{since}" if since else None
    # Each allocation has at most two events: the claim of the slot and its release. One more than shown is read.
    until = calls.events({**filters, "order": "desc"}, since=begin, to=at)
    newest = [each.value for each in current.listing(until, 2 * (SHOWN + 1))]
    # The release of the allocation that held the slot at the chosen time is the first event after it.
    later = [each.value for each in current.listing(calls.events(filters, since=at), 1)] if at else []
    paired = [*_paired(newest, later)]
    requesters = _requesters(current, paired[:SHOWN])
    shown = (
        each._replace(
            allocation=allocation,
            requested_by=requesters.get(each.name, each.requested_by),
            why="" if allocation is None else _why(allocation, slot),
        )
        for each in paired[:SHOWN]
        for allocation in [_readable_allocation(current, each.name)]
    )
    return Holdings(slot, tuple(shown), has_more=len(paired) > SHOWN)


def _why(allocation: Allocation, slot: str) -> str:
    """Return why an allocation left a slot: the reason of its move to another node, or else the reason of its end."""
    if allocation.replaced is not None and slot in allocation.replaced.vacated:
        return f"moved to another node: {allocation.replaced.reason.message}"
    return "" if allocation.reason is None else allocation.reason.message


def _requesters(current: Session, found: Iterable[Holding]) -> dict[object, str]:
    """Return the actor that requested each allocation. The claim of a slot can have another actor: a node if its report
    caused a replacement, or the program that places requests that waited.
    """
    streams = [f"allocation-{each.name}" for each in found]
    if not streams:
        return {}
    requests = calls.events(calls.event_filters(streams=streams, types=(_REQUESTED,)))
    read = (each.value for each in current.listing(requests, len(streams)))
    return {each.data.get("allocation_id"): each.actor for each in read}


def _paired(newest: Iterable[Event], later: Iterable[Event]) -> Iterator[Holding]:
    """Yield the times in which allocations held a slot, newest first. `newest` are the claims and releases of the slot
    up to the chosen time, and `later` has the first one after it.
    """
    ended, ended_later = _ends(newest), _ends(later)
    for each in newest:
        name = each.data.get("allocation_id")
        if each.type == _CLAIMED and isinstance(name, str):
            end = ended.get(name) or ended_later.get(name)
            yield Holding(name, each.actor, each.recorded_at, end, is_current=name not in ended)


def _ends(events: Iterable[Event]) -> dict[object, datetime]:
    """Return, by allocation id, when the slot was released by each allocation."""
    return {each.data.get("allocation_id"): each.recorded_at for each in events if each.type != _CLAIMED}


def _readable_allocation(current: Session, name: str) -> Allocation | None:
    """Return an allocation, or None if it does not exist for the caller or the caller may not read allocations."""
    try:
        return current.client.run(calls.allocation(name))
    except (Forbidden, UnknownName):
        return None
