"""Verifications as they are asked for, carried out, and answered: rows of `work.verification`.

States: asked, running, equal, different, and stopped (an event could not be replayed). One that was running when its
process died is found running by the next, which does it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.projector.compare import Difference
from control_plane.projector.gathering import Stopped
from control_plane.projector.verify import verify
from control_plane.work import verification
from events.values import Position, new_uuid

log = structlog.get_logger()


async def ask(conn: AsyncConnection, asked_by: str) -> UUID:
    """Ask for a verification; its id. One that was asked for and has not begun answers whoever else asks."""
    await conn.execute(sa.text("lock table work.verification in share row exclusive mode"))
    waiting: UUID | None = await conn.scalar(_ids("asked"))
    if waiting is not None:
        return waiting
    asked = new_uuid()
    values = {"verification_id": asked, "asked_by": asked_by, "state": "asked"}
    await conn.execute(sa.insert(verification).values(**values, asked_at=sa.func.clock_timestamp()))
    return asked


async def find(conn: AsyncConnection, asked: UUID) -> sa.RowMapping | None:
    """How a verification stands."""
    query = sa.select(verification).where(verification.c.verification_id == asked)
    return (await conn.execute(query)).mappings().one_or_none()


async def latest(conn: AsyncConnection, limit: int) -> Sequence[sa.RowMapping]:
    """The last that were asked for, newest first."""
    query = sa.select(verification).order_by(verification.c.asked_at.desc()).limit(limit)
    return (await conn.execute(query)).mappings().all()


@dataclass(frozen=True, slots=True)
class Verifications:
    """Carries out what was asked for. One at a time: the projector that leads does it."""

    engine: AsyncEngine

    async def carry_out_one(self) -> None:
        """Carry out the next that was asked for, if there is one."""
        async with self.engine.connect() as conn:
            asked: UUID | None = await conn.scalar(_ids("running", "asked"))
        if asked is not None:
            await self._carry_out(asked)

    async def _carry_out(self, asked: UUID) -> None:
        async def told(position: Position, upto: Position) -> None:
            await self._note(asked, state="running", position=position, upto=upto)

        await self._note(asked, state="running")
        try:
            position, differences = await verify(self.engine, told)
        except Stopped as stopped:
            found = [{"projection": stopped.projection, "position": stopped.at, "error": stopped.error}]
            await self._end(asked, "stopped", found)
        else:
            rows = [_row(each) for each in differences]
            await self._end(asked, "different" if rows else "equal", rows, position=position)

    async def _end(
        self, asked: UUID, state: str, found: Sequence[dict[str, Any]], **further: Position
    ) -> None:
        log.info("verification_ended", verification=str(asked), state=state, differences=len(found))
        now = sa.func.clock_timestamp()
        await self._note(asked, state=state, differences=list(found), ended_at=now, **further)

    async def _note(self, asked: UUID, **columns: object) -> None:
        async with self.engine.begin() as conn:
            await conn.execute(
                sa.update(verification).where(verification.c.verification_id == asked).values(**columns)
            )


def _ids(*states: str) -> sa.Select[tuple[UUID]]:
    """The oldest in one of these states."""
    mine = verification.c.state.in_(states)
    return sa.select(verification.c.verification_id).where(mine).order_by(verification.c.asked_at).limit(1)


def _row(difference: Difference) -> dict[str, Any]:
    return {**difference._asdict(), "columns": list(difference.columns)}
