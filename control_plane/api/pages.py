"""Cursor pagination and server-sent events: the two shapes in which lists leave the API."""

import re
from collections.abc import AsyncIterator
from typing import Annotated, Final, Generic, TypeVar

from fastapi import Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from control_plane.api.views import EventView, event_view
from control_plane.decisions.refusals import Malformed, Objection
from events.envelope import Recorded
from events.facts import Fact
from events.values import Position

T = TypeVar("T")
Limit = Annotated[int, Query(ge=1, le=500)]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before", max_length=128)]
EVENT_STREAM: Final = "text/event-stream"
_DIGITS: Final = re.compile(r"[0-9]{1,19}")


class Page(BaseModel, Generic[T]):
    """One page; `next_cursor` is null on the last."""

    items: list[T]
    next_cursor: str | None


def bad_cursor(cursor: str) -> Malformed:
    return Malformed(Objection("bad_cursor", f"{cursor!r} is no cursor of this list", "/cursor"))


def position_of(cursor: str | None) -> Position | None:
    """A cursor that is a position in the ledger. Raises `Malformed`."""
    if cursor is None:
        return None
    if not _DIGITS.fullmatch(cursor) or int(cursor) >= 2**63:
        raise bad_cursor(cursor)
    return Position(int(cursor))


def event_page(events: tuple[Recorded[Fact], ...], limit: int) -> Page[EventView]:
    full = len(events) == limit
    return Page(
        items=[event_view(recorded) for recorded in events],
        next_cursor=str(events[-1].position) if full else None,
    )


def resume_after(request: Request, after: str | None) -> Position:
    """Where a watcher wants to go on: `Last-Event-ID` of its lost connection, else `?after=`, else the beginning."""
    return position_of(request.headers.get("last-event-id") or after) or Position(0)


def event_stream(batches: AsyncIterator[tuple[Recorded[Fact], ...]]) -> StreamingResponse:
    """Server-sent events (WHATWG HTML, section 9.2): the id is the position, the event is the fact's stored name."""

    async def lines() -> AsyncIterator[str]:
        yield ": welcome\n\n"
        async for events in batches:
            yield "".join(map(_message, events)) or ": alive\n\n"

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type=EVENT_STREAM, headers=headers)


def _message(recorded: Recorded[Fact]) -> str:
    view = event_view(recorded)
    return f"id: {view.position}\nevent: {view.type}\ndata: {view.model_dump_json()}\n\n"
