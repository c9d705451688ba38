"""Filters and cursors of ledger queries: validated query parameters.

Each parameter may be given several times: an event matches if, for each parameter given, it has one of the values. A
value that no event can ever have is refused, with all other invalid values; a value that no event has yet is accepted.
"""

import re
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Depends, Header, Query, Request
from pydantic import AfterValidator

from control_plane.api.requests.state import plane_of
from control_plane.decisions.access import Principal, unknown_project
from control_plane.decisions.refusals import Gone, Objection, UnknownName
from events.catalog import CATALOG
from events.ledger.connection import ledger_connection
from events.ledger.cursors import BEGINNING, Cursor, holds
from events.ledger.search import EventFilter
from events.values import InvalidValue, ProjectId, StreamId, project_id

MOST: Final = 50
"""Maximum number of values of one query parameter."""
_STREAM: Final = re.compile(r"[a-z]+-[a-z0-9][a-z0-9._/-]{0,199}")
_ACTOR: Final = re.compile(r"[a-z]+(?:-[a-z]+)*(?::[^\x00-\x20\x7f]{1,299})?")
"""An actor, such as `node:lab-a` or `user:corp/alice`. The longest consists of the name of an identity provider (31
characters) and a subject (255).
"""


def _stream(raw: str) -> StreamId:
    if not _STREAM.fullmatch(raw):
        raise InvalidValue(
            "stream", raw[:64], "use the kind of the stream, '-' and a name, such as slot-lab-a/0"
        )
    return StreamId(raw)


def _type(raw: str) -> str:
    if raw not in CATALOG:
        raise InvalidValue("event type", raw[:64], f"choose one of {', '.join(CATALOG)}")
    return raw


def _actor(raw: str) -> str:
    if not _ACTOR.fullmatch(raw):
        raise InvalidValue(
            "actor",
            raw[:64],
            "use the kind of the actor, ':' and a name, such as key:alice, user:corp/alice or node:lab-a",
        )
    return raw


def _cursor(raw: str) -> str:
    Cursor.read(raw)
    return raw


def _several(name: str, description: str) -> Any:
    """Define a query parameter that may be given up to `MOST` times."""
    return Query(default_factory=list, alias=name, max_length=MOST, description=description)


Streams = Annotated[
    list[Annotated[StreamId, AfterValidator(_stream)]],
    _several("stream", "Only events of these streams, such as `node-lab-a` or `slot-lab-a/0`."),
]
Types = Annotated[
    list[Annotated[str, AfterValidator(_type)]],
    _several("type", "Only events of these types, such as `slot.claimed`."),
]
Projects = Annotated[
    list[Annotated[ProjectId, AfterValidator(project_id)]],
    _several("project", "Only events of these projects."),
]
Actors = Annotated[
    list[Annotated[str, AfterValidator(_actor)]],
    _several("actor", "Only events caused by these actors, such as `key:alice`."),
]
Correlations = Annotated[
    list[UUID],
    _several(
        "correlation", "Only events with these correlation ids, which all events caused by one request share."
    ),
]
Ids = Annotated[list[UUID], _several("id", "Only the events with these ids.")]
After = Annotated[
    str | None,
    Query(
        description="Begin after this cursor (the id of an event in a watch), or after `position:N`.",
        max_length=64,
    ),
    AfterValidator(lambda raw: raw if raw is None else _cursor(raw)),
]
LastEventId = Annotated[
    str | None,
    Header(description="The id of the last event received; takes precedence over `after`.", max_length=64),
    AfterValidator(lambda raw: _cursor(raw) if raw else None),
]


def pick(
    *,
    streams: Streams,
    types: Types,
    projects: Projects,
    actors: Actors,
    correlations: Correlations,
    ids: Ids,
) -> EventFilter:
    """Build the event filter from the query parameters."""
    return EventFilter(
        frozenset(streams),
        frozenset(types),
        frozenset(projects),
        frozenset(actors),
        frozenset(correlations),
        frozenset(ids),
    )


def limited(pick: EventFilter, principal: Principal) -> EventFilter:
    """Return a filter that matches only events of the principal's projects. Raises `UnknownName` if the filter names
    other projects.
    """
    if principal.projects is None:
        return pick
    if foreign := sorted(pick.projects - principal.projects):
        raise UnknownName(*(unknown_project(each, parameter="project") for each in foreign))
    return pick._replace(projects=pick.projects or principal.projects)


Picked = Annotated[EventFilter, Depends(pick)]


async def held(request: Request, raw: str | None) -> Cursor:
    """Parse a cursor of the ledger; None means the beginning of the ledger. Raises `Gone` if the ledger does not
    contain the cursor.
    """
    if raw is None:
        return BEGINNING
    cursor = Cursor.read(raw)
    async with plane_of(request).engine.connect() as conn:
        if await holds(await ledger_connection(conn), cursor):
            return cursor
    reason = (
        f"the ledger has no event at cursor {cursor}: it was restored from a backup or never reached that position; begin"
        " again without a cursor, or with ?after=position:N"
    )
    raise Gone(Objection("cursor_expired", reason, parameter="after"))
