"""History explorer: one resource at any past moment, what changed it, and the difference of two moments."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from starlette.responses import Response

from control_plane.web.cookies import ROOT
from control_plane.web.pages.holdings import holdings
from control_plane.web.pages.ids_in_events import INGRESS, claim_of, reservation_of
from control_plane.web.rendering import field_names, fields_of, holds_slots
from control_plane.web.timeline import read_seal
from control_plane.web.visits import Visit, both, nothing, problem, see_other

KINDS: Final = {
    "allocation": "alc-…",
    "node": "n1",
    "slot": "n1/0",
    "address": "10.0.0.5, 52:54:00:12:34:56 or a public address",
    "ingress": "tcp/203.0.113.1:29690 or ing-…",
    "device": "n1/0000:1b:00.0",
}
"""The kinds of resources with the form of their names."""
_CHANGES: Final = 100
_STREAMS: Final = frozenset({"allocation", "node", "slot"})
"""Kinds of resources that have a stream of events of their own."""
_QUERY: Final = ("kind", "name", "at", "from", "compared")
_LEFT_OUT: Final = frozenset({
    ("id",), ("version",), ("generation",), ("holders", "slot", "id"), ("holders", "slot", "allocation_id"),
})  # fmt: skip
"""Fields of a resource that the page leaves out, by the names in their paths: its name, which is the title, its
counters, and the names of a holder's slot and allocation, which other fields have.
"""


class Slider(NamedTuple):
    """Times of a slider in seconds since 1970: from the first change to the present, with a mark for each change."""

    first: int
    last: int
    shown: int
    marks: Sequence[int]

    @property
    def begin(self) -> str:
        """The time of the first change, in the format of the API."""
        return datetime.fromtimestamp(self.first, UTC).isoformat()

    @property
    def ticks(self) -> list[int]:
        """The places of the marks between the ends of the slider, in thousandths of its length."""
        return [1000 * (each - self.first) // (self.last - self.first) for each in self.marks]


class Difference(NamedTuple):
    """A field that differs between two moments; None: it has no value at this moment."""

    field: str
    before: Any
    after: Any


async def show(visit: Visit) -> Response:
    kind, name = visit.query("kind") or next(iter(KINDS)), visit.query("name")
    if kind not in KINDS:
        message = f"unknown kind {kind!r}; choose one of {', '.join(KINDS)}"
        raise problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_value", message, "Choose a kind from the list."
        )
    if (moment := visit.query("moment")) is not None:
        return _at_moment(visit, moment)
    begin, compared = visit.moment("from"), visit.moment("compared")
    chosen = {"kind": kind, "name": name, "at": visit.at, "from": begin, "compared": compared}
    values: dict[str, Any] = {"kind": kind, "kinds": KINDS, "name": name, "chosen": chosen}
    if name is None:
        return visit.render("history.html", found=None, changes=None, **values)
    if kind == "ingress" and INGRESS.fullmatch(name) and (reservation := await reservation_of(visit, name)):
        return see_other(visit.url(name=claim_of(reservation)))
    # The API parses the name behind the kind as the rest of its path, so a slash of a slot's name stays one.
    resource = ("history", kind, *name.split("/"))
    found, changes, first, compared_to, seal = await both(
        visit.get(*resource, at=visit.at),
        visit.get(*resource, "changes", limit=_CHANGES, **{"from": begin}),
        visit.get(*resource, "changes", limit=1) if begin else nothing(),
        visit.get(*resource, "changes", limit=1, to=visit.at, **{"from": compared})
        if compared
        else nothing(),
        read_seal(visit),
    )
    until = None if visit.at is None else found["at"]["position"]
    return visit.render(
        "history.html",
        found=found,
        held=await holdings(visit, kind, found["state"], visit.at),
        changes={**changes, "changes": [_shown(each, until) for each in reversed(changes["changes"])]},
        rows=[each for each in fields_of(found["state"]) if field_names(each[0]) not in _LEFT_OUT],
        has_former_slots=_has_former_slots(kind, found["state"]),
        slider=_slider(found, changes["changes"], first and first["changes"]),
        neighbours=_neighbours(found["at"]["position"], changes["changes"]),
        newest_change=_newest_change(found["at"]["position"], changes),
        difference=None if compared_to is None else [*_differences(kind, compared_to)],
        sides=compared_to,
        seal=seal,
        stream=f"{kind}-{name}" if kind in _STREAMS else None,
        link=lambda **changed: f"{ROOT}/history?{urlencode(_given({**chosen, **changed}))}",
        **values,
    )


def _has_former_slots(kind: str, state: Mapping[str, Any] | None) -> bool:
    """Return whether the state is that of an allocation that no longer has the slots that it names."""
    return kind == "allocation" and state is not None and bool(state["slots"]) and not holds_slots(state)


def _without_former_slots(kind: str, state: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return a state without the slots that the allocation no longer has."""
    return {**state, "slots": []} if state is not None and _has_former_slots(kind, state) else state


def _shown(change: Mapping[str, Any], until: int | None) -> dict[str, Any]:
    """Return a change without the fields that the page leaves out. It is later if its position is after `until`, the
    position that the page shows (None: the present).
    """
    fields = [each for each in change["fields"] if field_names(each["path"]) not in _LEFT_OUT]
    return {**change, "fields": fields, "is_later": until is not None and change["position"] > until}


def _given(query: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in query.items() if value}


def _at_moment(visit: Visit, raw: str) -> Response:
    """Return the redirection to the state at the time that the slider has; at its end, to the present."""
    query = {name: visit.query(name) for name in _QUERY}
    try:
        seconds = int(raw)
        time = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        message = f"{raw[:32]!r} is not a number of seconds"
        hint = "Move the slider, or enter a time."
        raise problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_value", message, hint) from None
    is_present = raw == visit.query("last")
    query["at"] = None if is_present else f"{time:%Y-%m-%dT%H:%M:%SZ}"
    return see_other(f"{ROOT}/history?{urlencode(_given(query))}")


def _slider(
    found: Mapping[str, Any], changes: Sequence[Mapping[str, Any]], first: Sequence[Mapping[str, Any]] | None
) -> Slider | None:
    """Return the slider of a resource; None if it has no changes."""
    times = [_seconds(each["time"]) for each in changes]
    earliest = [_seconds(each["time"]) for each in first or ()] + times
    if not earliest:
        return None
    now = int(datetime.now(UTC).timestamp())
    begin = min(earliest)
    shown = now if found["at"]["time"] is None else _seconds(found["at"]["time"])
    # A time of the slider is rounded down to a second: a second later, the change has happened.
    marks = sorted({min(each + 1, now) for each in times})
    return Slider(begin, max(now, begin + 1), min(max(shown, begin), now), marks)


def _seconds(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp())


def _neighbours(position: int, changes: Sequence[Mapping[str, Any]]) -> tuple[int | None, int | None]:
    """Return the positions of the listed changes before the shown one and after it."""
    until = [each["position"] for each in changes if each["position"] <= position]
    after = [each["position"] for each in changes if each["position"] > position]
    earlier = until[-2] if len(until) > 1 else None
    return earlier, after[0] if after else None


def _newest_change(position: int, changes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the newest change up to a position; None if the listed changes do not have it."""
    listed = changes["changes"]
    until = [each for each in listed if each["position"] <= position]
    # Further changes follow the listed ones: the newest change up to the position may be one of them.
    is_known = changes["next_from"] is None or len(until) < len(listed)
    return until[-1] if until and is_known else None


def _differences(kind: str, sides: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the fields that differ between the two states of a response with changes. An allocation that released its
    slots still names them in its state; here, it has lost them.
    """
    before, after = (
        dict(fields_of(_without_former_slots(kind, sides[each]))) for each in ("before", "after")
    )
    for field in {**before, **after}:
        if before.get(field) != after.get(field) and field_names(field) not in _LEFT_OUT:
            yield Difference(field, before.get(field), after.get(field))
