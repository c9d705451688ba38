"""Heartbeats, of every node every few seconds: most of what a fleet asks, and each worth nothing after the next.

So they share what they cost: all that come within a moment are authenticated and written down together, in one
transaction that does not wait for the disk. An answer still means that it is written down. What a crash of the database
takes back is said again by then; one of this process only leaves nodes without an answer, and they ask again.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple, cast

from fastapi import APIRouter, Request
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.api.access import ShownByNode
from control_plane.api.problems import PROBLEMS
from control_plane.decisions.refusals import Unauthorised
from control_plane.sessions import Shown, refusals
from events.connection import ledger_connection
from tasks.agent_api import Heartbeat, HeartbeatAnswer

router = APIRouter(prefix="/v1/agent", tags=["agent"], responses=PROBLEMS)
MOMENT_SECONDS: Final = 0.05
"""A node's clock is wrong by half of it at most."""

# Of one node that spoke twice the later counts. In one order everywhere, so that two processes never deadlock.
_HEARD: Final = """
insert into work.node_seen (node_id, seen_at, agent_version, spooled_reports, resynced)
select distinct on (node_id) node_id, clock_timestamp(), agent_version, spooled_reports, resynced
from unnest(%b::text[], %b::text[], %b::int[], %b::bool[]) with ordinality
  as beat(node_id, agent_version, spooled_reports, resynced, place)
order by node_id, place desc
on conflict (node_id) do update set seen_at = excluded.seen_at, agent_version = excluded.agent_version,
  spooled_reports = excluded.spooled_reports, resynced = excluded.resynced
"""


@router.post("/heartbeat")
async def heartbeat(request: Request, shown: ShownByNode, body: Heartbeat) -> HeartbeatAnswer:
    """Say that a node lives; the answer is the control plane's time."""
    heartbeats = cast(Heartbeats, request.app.state.heartbeats)
    return HeartbeatAnswer(now=await heartbeats.take(Beat(shown, body)))


class Beat(NamedTuple):
    """A heartbeat, and what its sender shows to be believed."""

    shown: Shown
    said: Heartbeat


_Outcomes = list[datetime | Unauthorised]


class Heartbeats:
    """Those of one process."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._gathered: list[Beat] = []
        self._written: asyncio.Task[_Outcomes] | None = None

    async def take(self, beat: Beat) -> datetime:
        """Write it down with others of the same moment; the database's time. Raises `Unauthorised`."""
        if self._written is None:
            self._gathered = []
            self._written = asyncio.create_task(self._write(self._gathered))
        place, written = len(self._gathered), self._written
        self._gathered.append(beat)
        # A caller that hangs up must not take the others' heartbeats with him.
        outcome = (await asyncio.shield(written))[place]
        if isinstance(outcome, Unauthorised):
            raise outcome
        return outcome

    async def _write(self, beats: Sequence[Beat]) -> _Outcomes:
        await asyncio.sleep(MOMENT_SECONDS)
        self._written = None
        async with self._engine.begin() as conn:
            refused = await refusals(conn, [beat.shown for beat in beats])
            heard = [beat for beat, refusal in zip(beats, refused, strict=True) if refusal is None]
            now = await _write(conn, heard)
        return [now if refusal is None else refusal for refusal in refused]


async def _write(conn: AsyncConnection, heard: Sequence[Beat]) -> datetime:
    ledger = await ledger_connection(conn)
    await ledger.execute("set local synchronous_commit = off")
    columns = (
        [beat.shown.node_id for beat in heard],
        [beat.said.agent_version for beat in heard],
        [beat.said.spooled_reports for beat in heard],
        [beat.said.resynced for beat in heard],
    )
    if heard:
        await ledger.execute(_HEARD, columns, prepare=True)
    row = await (await ledger.execute("select clock_timestamp()")).fetchone()
    assert row is not None
    return cast(datetime, row[0])
