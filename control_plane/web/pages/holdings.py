"""The allocations that had a slot or an address, as the page of its history lists them: when, and why they ended."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from control_plane.web.calls import url_of
from control_plane.web.cookies import ROOT
from control_plane.web.visits import Visit, both, nothing

_SHOWN: Final = 5
"""Number of allocations that are shown: the newest up to the chosen time."""
_CLAIMED: Final = "slot.claimed"
_REQUESTED: Final = "allocation.requested"
_TYPES: Final = (_CLAIMED, "slot.released", "slot.force_released")


class Holding(NamedTuple):
    """The time in which an allocation held a slot. `allocation` is its present view, None if it may not be read, and
    `why` the reason for which it gave up the slot, None if it did not. `is_current`: whether it held the slot at the
    chosen time.
    """

    name: str
    requested_by: str
    begin: str
    end: str | None
    is_current: bool
    allocation: Mapping[str, Any] | None = None
    why: str | None = None


class Holdings(NamedTuple):
    """The slot that a page shows, or that has the address that it shows, and its newest allocations, newest first.
    `all_claims` is the page that lists all claims of the slot if it had more allocations; None: all are in `newest`.
    """

    slot: str
    newest: Sequence[Holding]
    all_claims: str | None = None

    @property
    def is_held(self) -> bool:
        """Return whether an allocation held the slot at the chosen time."""
        return any(each.is_current for each in self.newest)


async def holdings(
    visit: Visit, kind: str, state: Mapping[str, Any] | None, at: str | None
) -> Holdings | None:
    """Return the allocations of a slot or an address up to a time (None: now); None for other kinds of resources, and
    for an address that no slot had at the time.
    """
    slot, since = _slot_of(kind, state)
    if slot is None or not visit.allows("allocations:read"):
        return None
    stream = [f"slot-{slot}"]
    until, following = await both(
        # Each allocation has at most two events: the claim of the slot and its release. One more than shown is read.
        visit.get("events", stream=stream, type=_TYPES, order="desc", limit=2 * (_SHOWN + 1), to=at),
        visit.get("events", stream=stream, type=_TYPES, order="asc", limit=1, **{"from": at})
        if at
        else nothing(),
    )
    later = following["items"] if following else []
    paired = [*_paired([*until["items"]], later, since)]
    found = paired[:_SHOWN]
    requesters, *views = await both(
        _requesters(visit, found), *(visit.try_get("allocations", each.name) for each in found)
    )
    newest = [
        each._replace(
            allocation=view,
            requested_by=requesters.get(each.name, each.requested_by),
            why=None if view is None else _why(view, slot),
        )
        for each, view in zip(found, views, strict=True)
    ]
    return Holdings(slot, newest, _all_claims(slot, since, at) if len(paired) > _SHOWN else None)


def _why(allocation: Mapping[str, Any], slot: str) -> str | None:
    """Return why an allocation left a slot: the reason of its move to another node, or else the reason of its end."""
    replaced, reason = allocation["replaced"], allocation["reason"]
    if replaced is not None and slot in replaced["vacated"]:
        return f"moved to another node: {replaced['reason']['message']}"
    return None if reason is None else str(reason["message"])


async def _requesters(visit: Visit, found: Sequence[Holding]) -> dict[str, str]:
    """Return the actor that requested each allocation. The claim of a slot can have another actor: a node if its report
    caused a replacement, or the program that places requests that waited.
    """
    if not found:
        return {}
    streams = [f"allocation-{each.name}" for each in found]
    requests = await visit.get("events", stream=streams, type=_REQUESTED, limit=len(streams))
    return {each["data"]["allocation_id"]: each["actor"] for each in requests["items"]}


def _all_claims(slot: str, since: int, at: str | None) -> str:
    """Return the page of the events in which an allocation claimed a slot, after a position and up to a time."""
    begin = f"position:{since}" if since else None
    query = {"stream": f"slot-{slot}", "type": _CLAIMED, "from": begin, "to": at}
    return f"{ROOT}{url_of('/events', query)}"


def _slot_of(kind: str, state: Mapping[str, Any] | None) -> tuple[str | None, int]:
    """Return the slot of a state, and the position since which it has the address that the page shows."""
    if state is None:
        return None, 0
    if kind == "slot":
        return state["id"], 0
    holder = state["holders"][-1] if kind == "address" and state["holders"] else None
    return (holder["slot"]["id"], holder["since"]) if holder and holder["slot"] else (None, 0)


def _paired(
    newest: Sequence[Mapping[str, Any]], later: Sequence[Mapping[str, Any]], since: int
) -> Iterator[Holding]:
    """Yield the holdings of events of a slot, newest first. `later` has the first event after the chosen time."""
    ended, ended_later = _ends(newest), _ends(later)
    for each in newest:
        name = each["data"].get("allocation_id")
        if name is None or each["type"] != _CLAIMED or each["position"] < since:
            continue
        end = ended.get(name) or ended_later.get(name)
        yield Holding(name, each["actor"], each["recorded_at"], end, is_current=name not in ended)


def _ends(events: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return when each allocation gave up the slot."""
    return {
        each["data"]["allocation_id"]: each["recorded_at"]
        for each in events
        if each["type"] != _CLAIMED and "allocation_id" in each["data"]
    }
