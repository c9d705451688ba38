"""`/v1/projections` and `/v1/verifications`: maintain read models, and verify that they match the ledger."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, StringConstraints
from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.requests.access import AuthenticatedRoute, Caller, access, caller_of
from control_plane.api.requests.bodies import Body
from control_plane.api.requests.commands import execute
from control_plane.api.requests.pages import (
    Cursor,
    Limit,
    Order,
    Page,
    cursor_of,
    identified_place_of,
    numbered,
    page_of,
)
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of, plane_of
from control_plane.api.views.allowed_actions import AllowedActions, actions_on_projection
from control_plane.commands.projections import (
    named,
    order_rebuild,
    projection_history,
    retry,
    skip_event,
    stopped_at,
    stops,
)
from control_plane.decisions.access import Principal, Scope
from control_plane.decisions.projections import fold
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.handle import Decision, Transaction
from control_plane.projector import verifications
from control_plane.projector.compare import READ_MODEL
from events.envelope import Recorded
from events.ledger.connection import ledger_connection
from events.ledger.cursors import drawn
from events.projections import ProjectionFact
from events.values import Position
from read_models.checkpoints import Checkpoint
from read_models.generations import IDLE, LIVE
from read_models.projections import PROJECTIONS, Projection

router = APIRouter(prefix="/v1", tags=["projections"], responses=PROBLEMS, route_class=AuthenticatedRoute)
_MAX_POSITION: Final = 2**63 - 1


class StopView(BaseModel):
    """A stopped read model: it cannot process the event at `position`. Fix the cause and retry, or skip the event."""

    position: int
    since: datetime
    error: str


class RebuildView(BaseModel):
    """A requested or running rebuild, and the position that the tables it fills have reached.

    `waits_for` is the reason why the filled tables are not swapped in yet.
    """

    requested_at: datetime
    requested_by: str
    position: int
    stopped: StopView | None
    waits_for: str | None


class ProjectionView(BaseModel):
    """A read model. If `inline`, the append itself updates it, so it has no position of its own and cannot fall behind.

    `last_position` is the last position assigned in the ledger.
    """

    name: str
    tables: list[str]
    inline: bool
    state: str
    position: int | None
    last_position: int
    stopped: StopView | None
    skipped: list[int]
    rebuild: RebuildView | None
    allowed_actions: AllowedActions
    """Actions that the caller may take now, or the reason why not."""


class SkipEvent(Body):
    """Request body of `POST /v1/projections/{name}/skip`."""

    position: int = Field(ge=1, le=_MAX_POSITION)
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]


class DifferenceView(BaseModel):
    """The first row of a table that differs; `live` is the stored row, `replayed` the row replayed from the ledger.

    `kind`: `ledger` for tables that are written only when facts are appended (events, heads, claims, idempotency keys),
    `read_model` for a table that is derived from them.
    """

    kind: Literal["ledger", "read_model"]
    table: str
    key: dict[str, Any]
    columns: list[str]
    live: dict[str, Any] | None
    replayed: dict[str, Any] | None


class AdviceView(BaseModel):
    """The recommended action. `code`: `keep_evidence` if the ledger itself differs, `rebuild` if only read models
    differ.
    """

    code: Literal["keep_evidence", "rebuild"]
    message: str


class StoppedReplayView(BaseModel):
    """The read model and the event at which the replay of a verification stopped, and the error."""

    projection: str
    position: int
    error: str


class VerificationView(BaseModel):
    """A verification. `state`: asked, running, equal, different, or stopped (an event cannot be replayed: see
    `stopped`).

    While it runs, `position` is the progress of the replay towards `upto`; at the end, the position that was compared.
    """

    id: str
    state: str
    requested_at: datetime
    requested_by: str
    position: int | None
    upto: int | None
    ended_at: datetime | None
    differences: list[DifferenceView]
    advice: AdviceView | None
    stopped: StoppedReplayView | None


_KEEP_EVIDENCE: Final = AdviceView(
    code="keep_evidence",
    message="the ledger itself was changed: stop the programs of the control plane and copy the database before anything"
    " else; do not rebuild a read model or skip an event, because the tables still show what the ledger contained",
)
_REBUILD: Final = AdviceView(
    code="rebuild",
    message="only read models differ, and the ledger is consistent: rebuild the read models",
)


@router.get("/projections", openapi_extra=access(Scope.FLEET_READ))
async def list_projections(
    request: Request,
    principal: Caller,
    *,
    cursor: Cursor = None,
    limit: Limit = 100,
    order: Order = "asc",
) -> Page[ProjectionView]:
    """List every read model in the order in which they are filled, with its position and, if it is stopped, the
    reason.
    """
    every = [*PROJECTIONS.values()]
    page = page_of(every, numbered(every), cursor, limit, order)
    async with plane_of(request).engine.connect() as conn:
        items = [await _view(conn, each, principal) for each in page.items]
    return Page(items=items, next_cursor=page.next_cursor)


@router.get("/projections/{name}", openapi_extra=access(Scope.FLEET_READ))
async def show_projection(request: Request, name: str) -> ProjectionView:
    """Return the state of one read model: its position in the ledger, whether it has stopped, and its last rebuild."""
    async with plane_of(request).engine.connect() as conn:
        return await _view(conn, named(name), caller_of(request))


@router.post("/projections/{name}/rebuild", status_code=202, openapi_extra=access(Scope.FLEET_WRITE))
async def rebuild(request: Request, principal: Caller, name: str) -> ProjectionView:
    """Start a rebuild of the read model: it is written from the ledger into a second set of tables, which then replaces
    the present one. The field `rebuild` of the view shows the progress, and is null when the rebuild has ended.
    """
    named(name)
    await execute(request, order_rebuild(name, origin_of(request, principal)))
    return await show_projection(request, name)


@router.post("/projections/{name}/skip", openapi_extra=access(Scope.FLEET_WRITE))
async def skip(request: Request, principal: Caller, name: str, body: SkipEvent) -> ProjectionView:
    """Skip the event that stops the read model, now and in every rebuild."""
    named(name)
    command = skip_event(name, Position(body.position), body.reason, origin_of(request, principal))
    await execute(request, command)
    return await show_projection(request, name)


@router.post("/projections/{name}/retry", openapi_extra=access(Scope.FLEET_WRITE))
async def retry_event(request: Request, principal: Caller, name: str) -> ProjectionView:
    """Retry the event that stops the read model."""
    named(name)
    await execute(request, retry(name, origin_of(request, principal)))
    return await show_projection(request, name)


@router.post("/verifications", status_code=202, openapi_extra=access(Scope.FLEET_WRITE))
async def verify(request: Request, principal: Caller) -> VerificationView:
    """Replay the ledger from the beginning and compare it row by row with every live table.

    If a requested verification has not started yet, it is returned instead of a new one.
    """
    origin = origin_of(request, principal)

    async def command(transaction: Transaction) -> Decision:
        asked = await verifications.request(transaction.conn, principal.actor)
        row = await verifications.find(transaction.conn, asked)
        assert row is not None, "the request of a verification must insert its row"
        return Decision((), origin.at(transaction.now), _verification(row).model_dump_json())

    return VerificationView.model_validate_json(await execute(request, command))


@router.get("/verifications", openapi_extra=access(Scope.FLEET_READ))
async def list_verifications(
    request: Request, cursor: Cursor = None, limit: Limit = 50, order: Order = "desc"
) -> Page[VerificationView]:
    """List verifications by the time of their request, newest first."""
    after = None if cursor is None else identified_place_of(cursor)
    async with plane_of(request).engine.connect() as conn:
        rows = await verifications.page(conn, after, limit, descending=order == "desc")
    last = cursor_of(rows[-1]["requested_at"], rows[-1]["verification_id"]) if len(rows) == limit else None
    return Page(items=[_verification(row) for row in rows], next_cursor=last)


@router.get("/verifications/{verification}", openapi_extra=access(Scope.FLEET_READ))
async def show_verification(request: Request, verification: str) -> VerificationView:
    """Return the progress of a verification, or its result: the first difference of each table."""
    unknown = UnknownName(Objection("unknown_verification", f"no verification has the id {verification!r}"))
    try:
        asked = UUID(verification)
    except ValueError:
        raise unknown from None
    async with plane_of(request).engine.connect() as conn:
        row = await verifications.find(conn, asked)
    if row is None:
        raise unknown
    return _verification(row)


def _verification(row: RowMapping) -> VerificationView:
    found, stopped = row["differences"] or [], row["state"] == "stopped"
    differences = [] if stopped else [DifferenceView.model_validate(each) for each in found]
    return VerificationView(
        id=str(row["verification_id"]),
        **{
            name: row[name]
            for name in ("state", "requested_at", "requested_by", "position", "upto", "ended_at")
        },
        differences=differences,
        advice=_advice(differences),
        stopped=StoppedReplayView(**found[0]) if stopped else None,
    )


def _advice(differences: Sequence[DifferenceView]) -> AdviceView | None:
    if not differences:
        return None
    return _REBUILD if all(each.kind == READ_MODEL for each in differences) else _KEEP_EVIDENCE


async def _view(conn: AsyncConnection, projection: Projection, principal: Principal) -> ProjectionView:
    history = await projection_history(conn, projection.name)
    kept = fold(history)
    found = await stops(conn, projection.name)
    live, idle = found[LIVE], found[IDLE]
    rebuild = None if kept.rebuild_order is None else _rebuild(kept.rebuild_order, idle)
    stopped = _stop(live)
    return ProjectionView(
        name=projection.name,
        tables=[str(table) for table in projection.tables],
        inline=projection.inline,
        state="stopped" if stopped or (rebuild and rebuild.stopped) else "rebuilding" if rebuild else "live",
        position=None if live is None else live.position,
        last_position=await drawn(await ledger_connection(conn)),
        stopped=stopped,
        skipped=sorted(kept.skipped),
        rebuild=rebuild,
        allowed_actions=actions_on_projection(principal, projection.name, stopped_at(found)),
    )


def _stop(checkpoint: Checkpoint | None) -> StopView | None:
    if checkpoint is None or checkpoint.stop is None:
        return None
    stop = checkpoint.stop
    return StopView(position=stop.at, since=stop.since, error=stop.error)


def _rebuild(order: Recorded[ProjectionFact], idle: Checkpoint | None) -> RebuildView:
    return RebuildView(
        requested_at=order.recorded_at,
        requested_by=order.cause.actor,
        position=0 if idle is None else idle.position,
        stopped=_stop(idle),
        waits_for=None if idle is None else idle.waits_for,
    )
