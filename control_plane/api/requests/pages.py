"""Cursor pagination of the API's lists."""

import re
from typing import Annotated, Final, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel

from control_plane.api.feed.ledger_pages import Section
from control_plane.api.views.views import EventView, event_view
from control_plane.decisions.refusals import Malformed, Objection
from events.values import Position

T = TypeVar("T")
Limit = Annotated[int, Query(ge=1, le=500)]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the previous page", max_length=128)]
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


def event_page(found: Section, final: Position) -> Page[EventView]:
    """Return a page of events. It is the last page if the scan reached position `final`."""
    return Page(
        items=[event_view(recorded) for recorded in found.events],
        next_cursor=None if found.cursor is None or found.reached >= final else str(found.cursor),
    )
