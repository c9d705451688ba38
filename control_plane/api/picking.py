"""What a reader of the log may ask for: query parameters, each checked, and where to begin.

Every parameter may be given several times: an event is sent when each trait that was named has one of its values. A
value that no event could ever have is refused, with all others that are wrong; one that none has yet is not.
"""

import re
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Depends, Header, Query, Request
from pydantic import AfterValidator

from control_plane.api.state import plane_of
from control_plane.decisions.refusals import Gone, Objection
from events.catalog import CATALOG
from events.connection import ledger_connection
from events.cursors import BEGINNING, Cursor, holds
from events.search import Pick
from events.values import InvalidValue, ProjectId, StreamId, project_id

MOST: Final = 50
"""So many values of one trait."""
_STREAM: Final = re.compile(r"[a-z]+-[a-z0-9][a-z0-9._/-]{0,199}")
_ACTOR: Final = re.compile(r"[a-z]+(?::[^\x00-\x20\x7f]{1,199})?")


def _stream(raw: str) -> StreamId:
    if not _STREAM.fullmatch(raw):
        raise InvalidValue("stream", raw[:64], "a kind, '-' and a name, such as slot-lab-a/0")
    return StreamId(raw)


def _type(raw: str) -> str:
    if raw not in CATALOG:
        raise InvalidValue("event type", raw[:64], f"there are {', '.join(CATALOG)}")
    return raw


def _actor(raw: str) -> str:
    if not _ACTOR.fullmatch(raw):
        raise InvalidValue("actor", raw[:64], "a kind, ':' and a name, such as key:alice or node:lab-a")
    return raw


def _cursor(raw: str) -> str:
    Cursor.read(raw)
    return raw


def _several(name: str, description: str) -> Any:
    """A parameter that may be given up to `MOST` times."""
    return Query(default_factory=list, alias=name, max_length=MOST, description=description)


Streams = Annotated[
    list[Annotated[StreamId, AfterValidator(_stream)]],
    _several("stream", "Streams, such as `node-lab-a` or `slot-lab-a/0`."),
]
Types = Annotated[
    list[Annotated[str, AfterValidator(_type)]],
    _several("type", "Types of event, such as `slot.claimed`."),
]
Projects = Annotated[list[Annotated[ProjectId, AfterValidator(project_id)]], _several("project", "Projects.")]
Actors = Annotated[
    list[Annotated[str, AfterValidator(_actor)]],
    _several("actor", "Who caused it, such as `key:alice`."),
]
Correlations = Annotated[list[UUID], _several("correlation", "Correlation ids: what one request led to.")]
After = Annotated[
    str | None,
    Query(description="Begin behind this cursor (an event's id), or `position:N`.", max_length=64),
    AfterValidator(lambda raw: raw if raw is None else _cursor(raw)),
]
LastEventId = Annotated[
    str | None,
    Header(description="The id of the last event that was seen; goes before `after`.", max_length=64),
    AfterValidator(lambda raw: _cursor(raw) if raw else None),
]


def pick(
    streams: Streams, types: Types, projects: Projects, actors: Actors, correlations: Correlations
) -> Pick:
    """What the query's parameters pick."""
    return Pick(
        frozenset(streams), frozenset(types), frozenset(projects), frozenset(actors), frozenset(correlations)
    )


Picked = Annotated[Pick, Depends(pick)]


async def held(request: Request, raw: str | None) -> Cursor:
    """The place that a cursor names, the beginning without one. Raises `Gone` when the log cannot go on from there."""
    if raw is None:
        return BEGINNING
    cursor = Cursor.read(raw)
    async with plane_of(request).engine.connect() as conn:
        if await holds(await ledger_connection(conn), cursor):
            return cursor
    why = (
        f"the ledger holds nothing at {cursor} that you can have seen: it was restored from a backup, or never came"
        " so far; begin again without a cursor, or with ?after=position:N"
    )
    raise Gone(Objection("cursor_gone", why, parameter="after"))
