"""`/v1/parked`: streams that the dispatcher cannot process, and an immediate retry."""

import sqlalchemy as sa
from fastapi import APIRouter, Request
from sqlalchemy.dialects.postgresql import insert

from control_plane.api.requests.access import access
from control_plane.api.requests.pages import Limit, Page
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import plane_of
from control_plane.api.views.task_views import ParkedView
from control_plane.decisions.access import Scope
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.work.tables import parked, timer

router = APIRouter(prefix="/v1/parked", tags=["tasks"], responses=PROBLEMS)
_ROWS = sa.select(parked, timer.c.due_at).join(timer, timer.c.stream_id == parked.c.stream_id, isouter=True)


@router.get("", openapi_extra=access(Scope.FLEET_READ))
async def list_parked(request: Request, limit: Limit = 100) -> Page[ParkedView]:
    """List parked streams with the error, the longest parked first. The dispatcher retries each automatically."""
    async with plane_of(request).engine.connect() as conn:
        rows = (await conn.execute(_ROWS.order_by(parked.c.since).limit(limit))).all()
    return Page(items=[_view(row) for row in rows], next_cursor=None)


@router.post("/{stream}/retry", status_code=202, openapi_extra=access(Scope.FLEET_WRITE))
async def retry(request: Request, stream: str) -> ParkedView:
    """Make the dispatcher retry a parked stream at once."""
    async with plane_of(request).engine.begin() as conn:
        row = (await conn.execute(_ROWS.where(parked.c.stream_id == stream))).one_or_none()
        if row is None:
            raise UnknownName(Objection("unknown_parked", f"no stream {stream[:64]!r} is parked"))
        now = insert(timer).values(stream_id=stream, due_at=sa.func.clock_timestamp())
        due = now.on_conflict_do_update(index_elements=["stream_id"], set_={"due_at": now.excluded.due_at})
        moment = await conn.scalar(due.returning(timer.c.due_at))
    return _view(row).model_copy(update={"next_look_at": moment})


def _view(row: sa.Row[tuple[object, ...]]) -> ParkedView:
    return ParkedView(stream=row.stream_id, since=row.since, error=row.error, next_look_at=row.due_at)
