"""`GET /v1/usage/export`: usage entries as CSV, or a bill in the format FOCUS, streamed with bounded memory (PLT-9)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Annotated, Any, Final, Literal, cast

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.api.requests.access import AuthenticatedRoute, access
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import plane_of
from control_plane.api.routes.usage.wanted import Wanted, bill_of
from control_plane.billing import csv_export, focus
from control_plane.billing.focus import Issuer
from control_plane.database import LONG_PAUSES
from control_plane.decisions.access import Scope
from control_plane.decisions.refusals import Malformed, Objection
from control_plane.settings import Settings
from read_models.usage.entries import Entry, stream
from read_models.usage.intervals import UsageFilter
from read_models.usage.periods import Bill
from read_models.usage.unused import unused_parts

router = APIRouter(prefix="/v1", tags=["usage"], responses=PROBLEMS, route_class=AuthenticatedRoute)
MEDIA_TYPE: Final = "text/csv; charset=utf-8; header=present"
AT_ONCE: Final = 2
"""Maximum number of exports that a process of the API sends at a time; further exports wait."""
_EXPORTED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The export, with a header line (RFC 4180).",
        "content": {"text/csv": {"schema": {"type": "string"}}},
    }
}
_Lines = Callable[[Iterable[Entry]], str]


@router.get(
    "/usage/export",
    response_class=StreamingResponse,
    responses=_EXPORTED,
    openapi_extra=access(Scope.USAGE_READ),
)
async def export_usage(
    request: Request,
    wanted: Wanted,
    *,
    format_: Annotated[
        Literal["csv", "focus"],
        Query(alias="format", description="`csv`, or `focus`: FOCUS 1.0 as CSV, for a billing period."),
    ] = "csv",
) -> StreamingResponse:
    """Export the usage entries of the caller's projects as CSV, with one line for each entry. In the format `csv`, the
    lines of unused parts of reservations follow, with the kind `unused_reservation`. If an export is interrupted, the
    connection is closed before the end of the response, which an HTTP client reports as an error.
    """
    plane = plane_of(request)
    async with plane.engine.connect() as conn:
        bill = await bill_of(conn, plane.handle.clock, wanted)
    header: Sequence[str] = csv_export.COLUMNS
    lines: _Lines = csv_export.lines
    if format_ == "focus":
        header, lines = focus.COLUMNS, _focus_lines(bill, _issuer(plane.settings))
    with_unused = format_ == "csv"
    exported = _exported(
        plane.engine, wanted.which, bill, csv_export.line(header), lines, with_unused=with_unused
    )
    turn = cast(asyncio.Semaphore, request.app.state.usage_exports)
    return StreamingResponse(_in_turn(turn, exported), media_type=MEDIA_TYPE)


async def _in_turn(turn: asyncio.Semaphore, exported: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield the pieces of an export as soon as fewer than `AT_ONCE` other exports are being sent. An export uses a
    database connection until its client has read it, and other requests need most of the connections.
    """
    async with turn:
        async for piece in exported:
            yield piece


def _issuer(settings: Settings) -> Issuer:
    return Issuer(settings.provider_name, settings.billing_account, settings.currency)


def _focus_lines(bill: Bill, issuer: Issuer) -> _Lines:
    bounds = bill.bounds
    if bounds is None:
        reason = "format focus exports the bill of a period; name it, such as period=2026-11 or period=open"
        raise Malformed(Objection("required", reason, parameter="period"))
    return lambda entries: focus.lines(entries, issuer, bounds)


async def _exported(
    engine: AsyncEngine, which: UsageFilter, bill: Bill, header: str, lines: _Lines, *, with_unused: bool
) -> AsyncIterator[str]:
    yield header
    async with engine.connect() as conn:
        await conn.execution_options(isolation_level="REPEATABLE READ")
        async with conn.begin():
            await conn.exec_driver_sql("set transaction read only")
            await conn.exec_driver_sql(LONG_PAUSES)
            async for part in stream(conn, which, bill):
                yield lines(part)
            if with_unused:
                yield csv_export.unused_lines(await unused_parts(conn, which, bill.piece), bill)
