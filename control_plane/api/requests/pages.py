"""Cursor pagination of the API's lists: `limit`, `cursor` and `order` on every list.

A cursor contains the sort key of the last item of a page, so it stays valid if items are added or removed. The format
of a cursor is not part of the contract of the API.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Generic, Literal, TypeVar
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel

from control_plane.api.feed.ledger_pages import Section
from control_plane.api.views.views import EventView, event_view
from control_plane.decisions.refusals import Malformed, Objection
from events.ledger.search import Found
from events.values import Position

T = TypeVar("T")
MAX_LIMIT: Final = 500
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Maximum number of items of the page.")]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the previous page", max_length=128)]
Order = Annotated[
    Literal["asc", "desc"],
    Query(
        description="Ascending or descending order. The description of the list names what it is ordered by."
    ),
]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LISTED: Final = re.compile(r"[0-9]{4,6}([.].{1,100})?")
_DIGITS: Final = re.compile(r"[0-9]{1,19}")


class Page(BaseModel, Generic[T]):
    """One page of a list; `next_cursor` is null on the last page."""

    items: list[T]
    next_cursor: str | None


def invalid_cursor(cursor: str) -> Malformed:
    return Malformed(
        Objection(
            "invalid_cursor",
            f"{cursor!r} is not a cursor of this list; use `next_cursor` of the previous page",
            parameter="cursor",
        )
    )


def position_of(cursor: str | None) -> Position | None:
    """Parse a cursor that is a position in the ledger. Raises `Malformed`."""
    if cursor is None:
        return None
    if not _DIGITS.fullmatch(cursor) or int(cursor) >= 2**63:
        raise invalid_cursor(cursor)
    return Position(int(cursor))


def cursor_of(moment: datetime, name: object) -> str:
    """Return the cursor of an item of a list sorted by time, then name. It contains the time in microseconds since 1970
    and the name.
    """
    return f"{(moment - _EPOCH) // timedelta(microseconds=1)}.{name}"


def place_of(cursor: str) -> tuple[datetime, str]:
    """Parse a cursor of a list sorted by time, then name, into the two. Raises `Malformed` for another cursor."""
    moment, _, name = cursor.partition(".")
    if not _DIGITS.fullmatch(moment):
        raise invalid_cursor(cursor)
    try:
        return _EPOCH + timedelta(microseconds=int(moment)), name
    except OverflowError:
        raise invalid_cursor(cursor) from None


def identified_place_of(cursor: str) -> tuple[datetime, UUID]:
    """Parse a cursor of a list sorted by time, then UUID, into the two. Raises `Malformed` for another cursor."""
    moment, name = place_of(cursor)
    try:
        return moment, UUID(name)
    except ValueError:
        raise invalid_cursor(cursor) from None


def page_of(items: Sequence[T], names: Sequence[str], cursor: str | None, limit: int, order: str) -> Page[T]:
    """Return one page of a list that is completely in memory. Raises `Malformed` for an invalid cursor.

    `names` are the cursors of the items. They are unique and in ascending order, and each begins with a number of four
    to six digits.
    """
    if cursor is not None and not _LISTED.fullmatch(cursor):
        raise invalid_cursor(cursor)
    listed = [*zip(names, items, strict=True)]
    if order == "desc":
        listed.reverse()
    if cursor is not None:
        listed = [each for each in listed if (each[0] < cursor if order == "desc" else each[0] > cursor)]
    found = listed[:limit]
    return Page(
        items=[item for _, item in found], next_cursor=found[-1][0] if len(found) < len(listed) else None
    )


def numbered(items: Sequence[object]) -> list[str]:
    """Return the cursors for a list in a fixed order: the index of each item, as six digits."""
    return [f"{number:06}" for number, _ in enumerate(items)]


def event_page(found: Section, final: Position) -> Page[EventView]:
    """Return a page of events. It is the last page if the scan reached position `final`."""
    return Page(
        items=[event_view(recorded) for recorded in found.events],
        next_cursor=None if found.cursor is None or found.reached >= final else str(found.cursor),
    )


def page_of_newest(found: Found, begin: Position) -> Page[EventView]:
    """Return a page of events, newest first. It is the last page if the scan reached the position after `begin`."""
    return Page(
        items=[event_view(recorded) for recorded in found.events],
        next_cursor=None if found.reached <= begin + 1 else f"position:{found.reached}",
    )
