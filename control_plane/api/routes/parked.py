"""`/v1/parked`: streams that the dispatcher cannot process, and an immediate retry."""

import sqlalchemy as sa
from fastapi import APIRouter, Request
from sqlalchemy.dialects.postgresql import insert

from control_plane.api.requests.access import AuthenticatedRoute, Caller, access
from control_plane.api.requests.commands import execute
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, cursor_of, place_of
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of, plane_of
from control_plane.api.views.allowed_actions import actions_on_parked
from control_plane.api.views.task_views import ParkedView
from control_plane.decisions.access import Principal, Scope
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.handle import Decision, Transaction
from control_plane.work.tables import parked, timer
from read_models.pages import keyset

router = APIRouter(prefix="/v1/parked", tags=["tasks"], responses=PROBLEMS, route_class=AuthenticatedRoute)
_ROWS = sa.select(parked, timer.c.due_at).join(timer, timer.c.stream_id == parked.c.stream_id, isouter=True)


@router.get("", openapi_extra=access(Scope.FLEET_READ))
async def list_parked(
    request: Request,
    principal: Caller,
    *,
    cursor: Cursor = None,
    limit: Limit = 100,
    order: Order = "asc",
) -> Page[ParkedView]:
    """List parked streams with the error, the longest parked first. The dispatcher retries each automatically."""
    after = None if cursor is None else place_of(cursor)
    query = keyset(_ROWS, [parked.c.since, parked.c.stream_id], after, limit, descending=order == "desc")
    async with plane_of(request).engine.connect() as conn:
        rows = (await conn.execute(query)).all()
    last = cursor_of(rows[-1].since, rows[-1].stream_id) if len(rows) == limit else None
    return Page(items=[_view(row, principal) for row in rows], next_cursor=last)


@router.post("/{stream}/retry", status_code=202, openapi_extra=access(Scope.FLEET_WRITE))
async def retry(request: Request, principal: Caller, stream: str) -> ParkedView:
    """Make the dispatcher retry a parked stream at once."""
    origin = origin_of(request, principal)

    async def command(transaction: Transaction) -> Decision:
        row = (await transaction.conn.execute(_ROWS.where(parked.c.stream_id == stream))).one_or_none()
        if row is None:
            raise UnknownName(
                Objection(
                    "unknown_parked",
                    f"stream {stream[:64]!r} is not parked; GET /v1/parked lists the parked streams",
                )
            )
        now = insert(timer).values(stream_id=stream, due_at=sa.func.clock_timestamp())
        due = now.on_conflict_do_update(index_elements=["stream_id"], set_={"due_at": now.excluded.due_at})
        moment = await transaction.conn.scalar(due.returning(timer.c.due_at))
        view = _view(row, principal).model_copy(update={"next_look_at": moment})
        return Decision((), origin.at(transaction.now), view.model_dump_json())

    return ParkedView.model_validate_json(await execute(request, command))


def _view(row: sa.Row[tuple[object, ...]], principal: Principal) -> ParkedView:
    return ParkedView(
        stream=row.stream_id,
        since=row.since,
        error=row.error,
        next_look_at=row.due_at,
        allowed_actions=actions_on_parked(principal),
    )
