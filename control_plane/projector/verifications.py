"""Requests for verifications and their results, in `work.verification`.

States: asked, running, equal, different, and stopped (an event could not be replayed). A verification that was running
when its process died is run again by the next process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.database import reading
from control_plane.projector.compare import Difference
from control_plane.projector.gathering import Stopped
from control_plane.projector.verify import verify
from control_plane.work.tables import verification
from events.values import Position, new_uuid
from read_models.pages import keyset

log = structlog.get_logger()


async def request(conn: AsyncConnection, requested_by: str) -> UUID:
    """Request a verification; return its id. A request that has not begun is shared by all callers."""
    await conn.execute(sa.text("lock table work.verification in share row exclusive mode"))
    waiting: UUID | None = await conn.scalar(_ids("asked"))
    if waiting is not None:
        return waiting
    request = new_uuid()
    values = {"verification_id": request, "requested_by": requested_by, "state": "asked"}
    await conn.execute(sa.insert(verification).values(**values, requested_at=sa.func.clock_timestamp()))
    return request


async def find(conn: AsyncConnection, verification_id: UUID) -> sa.RowMapping | None:
    """Return the row of a verification, or None if there is none."""
    query = sa.select(verification).where(verification.c.verification_id == verification_id)
    return (await conn.execute(query)).mappings().one_or_none()


async def page(
    conn: AsyncConnection, after: tuple[datetime, UUID] | None, limit: int, *, descending: bool
) -> Sequence[sa.RowMapping]:
    """Return one page of verifications in the order of their requests; `after` is the time and id of the verification
    after which the page begins.
    """
    order = [verification.c.requested_at, verification.c.verification_id]
    query = keyset(sa.select(verification), order, after, limit, descending=descending)
    return (await conn.execute(query)).mappings().all()


@dataclass(frozen=True, slots=True)
class Verifications:
    """Runs requested verifications, one at a time, in the leading projector."""

    engine: AsyncEngine

    async def carry_out_one(self) -> None:
        """Run the oldest requested verification, if there is one."""
        async with reading(self.engine) as conn:
            verification_id: UUID | None = await conn.scalar(_ids("running", "asked"))
        if verification_id is not None:
            await self._carry_out(verification_id)

    async def _carry_out(self, verification_id: UUID) -> None:
        async def report(position: Position, upto: Position) -> None:
            await self._update(verification_id, state="running", position=position, upto=upto)

        await self._update(verification_id, state="running")
        try:
            position, differences = await verify(self.engine, report)
        except Stopped as stopped:
            found = [{"projection": stopped.projection, "position": stopped.at, "error": stopped.error}]
            await self._end(verification_id, "stopped", found)
        else:
            rows = [_row(each) for each in differences]
            await self._end(verification_id, "different" if rows else "equal", rows, position=position)

    async def _end(
        self, verification_id: UUID, state: str, found: Sequence[dict[str, Any]], **further: Position
    ) -> None:
        log.info(
            "ledger_verification_ended",
            verification=str(verification_id),
            state=state,
            difference_count=len(found),
        )
        now = sa.func.clock_timestamp()
        await self._update(verification_id, state=state, differences=list(found), ended_at=now, **further)

    async def _update(self, verification_id: UUID, **columns: object) -> None:
        async with self.engine.begin() as conn:
            await conn.execute(
                sa.update(verification)
                .where(verification.c.verification_id == verification_id)
                .values(**columns)
            )


def _ids(*states: str) -> sa.Select[tuple[UUID]]:
    """Return a query for the id of the oldest verification in one of these states."""
    mine = verification.c.state.in_(states)
    return (
        sa.select(verification.c.verification_id).where(mine).order_by(verification.c.requested_at).limit(1)
    )


def _row(difference: Difference) -> dict[str, Any]:
    return {**difference._asdict(), "columns": list(difference.columns)}
