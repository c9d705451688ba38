"""Cursor pagination: the shape in which lists leave the API."""

import re
from typing import Annotated, Final, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel

from control_plane.api.past import Section
from control_plane.api.views import EventView, event_view
from control_plane.decisions.refusals import Malformed, Objection
from events.values import Position

T = TypeVar("T")
Limit = Annotated[int, Query(ge=1, le=500)]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before", max_length=128)]
_DIGITS: Final = re.compile(r"[0-9]{1,19}")


class Page(BaseModel, Generic[T]):
    """One page; `next_cursor` is null on the last."""

    items: list[T]
    next_cursor: str | None


def bad_cursor(cursor: str) -> Malformed:
    return Malformed(Objection("bad_cursor", f"{cursor!r} is not a cursor of this list", parameter="cursor"))


def position_of(cursor: str | None) -> Position | None:
    """A cursor that is a position in the ledger. Raises `Malformed`."""
    if cursor is None:
        return None
    if not _DIGITS.fullmatch(cursor) or int(cursor) >= 2**63:
        raise bad_cursor(cursor)
    return Position(int(cursor))


def event_page(found: Section, final: Position) -> Page[EventView]:
    """Events up to where they were looked for; the last page is the one that came to the end of what is final."""
    return Page(
        items=[event_view(recorded) for recorded in found.events],
        next_cursor=None if found.cursor is None or found.reached >= final else str(found.cursor),
    )
