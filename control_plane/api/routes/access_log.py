"""`/v1/access-log`: the requests that the API has received, with the principal, the credential, the source and the
outcome of each.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel

from control_plane.api.audit.entries import Outcome
from control_plane.api.requests.access import AuthenticatedRoute, access
from control_plane.api.requests.as_of import Time, time_of, timed
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, position_of
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import plane_of
from control_plane.decisions.access import Scope
from control_plane.work import access_rows
from control_plane.work.access_rows import AccessFilter

router = APIRouter(prefix="/v1", tags=["access"], responses=PROBLEMS, route_class=AuthenticatedRoute)
OPEN = "open"
"""Value of the filter `outcome` for requests in progress."""


class AccessView(BaseModel):
    """A request, or several similar ones, with their number in `count`: requests without valid credentials, or requests
    of a principal beyond its quota. The row of several requests of a principal has no path, credential and source.

    `position` numbers the rows in the order in which their requests ended, and is null while the request is in
    progress. `route` is the path template of the route, null if no route matches the path. `principal` is the name
    under which the ledger records what the caller does; `credential` is the id of its API key, token or session, or a
    node with the number of its session; both are null for a request without valid credentials. `source` is the address
    of the client. `outcome` is completed, refused, failed, aborted (the client left before the response was complete),
    interrupted (the API process ended, and the effect is unknown), or null for a request in progress. `reasons` are the
    codes of its refusal. `process` is the API process that received the request.
    """

    request_id: str
    position: int | None
    opened_at: datetime
    method: str
    route: str | None
    path: str
    principal: str | None
    credential: str | None
    source: str | None
    status: int | None
    outcome: Outcome | None
    reasons: list[str]
    duration_ms: int | None
    count: int
    process: str


def _text(description: str) -> Any:
    return Query(max_length=256, description=description)


def _which(
    *,
    request_id: Annotated[
        str | None, _text("Only the request with this id, such as that of an event or a problem.")
    ] = None,
    principal: Annotated[str | None, _text("Only requests of this principal, such as `key:ci-1a2b`.")] = None,
    route: Annotated[str | None, _text("Only requests of this route, such as `/v1/nodes/{node}`.")] = None,
    method: Annotated[str | None, _text("Only requests with this method, such as `POST`.")] = None,
    source: Annotated[str | None, _text("Only requests of this client address.")] = None,
    from_: Annotated[Time, timed("from", "Only requests that arrived since this time")] = None,
    to: Annotated[Time, timed("to", "Only requests that arrived until this time")] = None,
) -> AccessFilter:
    return AccessFilter(
        request_id=request_id,
        principal=principal,
        route=route,
        method=method,
        source=source,
        begin=time_of(from_),
        end=time_of(to),
    )


@router.get("/access-log", openapi_extra=access(Scope.ACCESS_READ))
async def list_requests(
    request: Request,
    which: Annotated[AccessFilter, Depends(_which)],
    *,
    outcome: Annotated[
        Literal["completed", "refused", "failed", "aborted", "interrupted", "open"] | None,
        Query(description="Only requests with this outcome; `open`: requests in progress, on one page."),
    ] = None,
    after: Annotated[
        str | None,
        Query(max_length=19, description="Only requests after this position of the access log."),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    order: Order = "desc",
) -> Page[AccessView]:
    """List the requests that have ended, the newest first. With the filter `outcome=open`, list the requests in
    progress instead. The row of a request that has ended never changes.
    """
    engine, place, begin = plane_of(request).engine, position_of(cursor), position_of(after) or 0
    if outcome == OPEN:
        async with engine.connect() as conn:
            found = await access_rows.in_progress(conn, which, descending=order == "desc", limit=limit)
        return Page(items=[_view(row) for row in found], next_cursor=None)
    which = which.with_outcome(outcome)
    if order == "asc":
        found = await access_rows.following(engine, which, after=max(begin, place or 0), limit=limit)
    else:
        async with engine.connect() as conn:
            found = await access_rows.newest(conn, which, after=begin, before=place, limit=limit)
    following = str(found[-1]["position"]) if len(found) == limit else None
    return Page(items=[_view(row) for row in found], next_cursor=following)


def _view(row: sa.RowMapping) -> AccessView:
    return AccessView.model_validate({**row, "process": str(row["process"])})
