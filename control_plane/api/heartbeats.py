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
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.api.access import ShownByNode
from control_plane.api.problems import PROBLEMS
from control_plane.database import reading
from control_plane.decisions.refusals import Unauthorised
from control_plane.sessions import Shown, refusal
from events.connection import ledger_connection
from tasks.agent_api import Heartbeat, HeartbeatAnswer

router = APIRouter(prefix="/v1/agent", tags=["agent"], responses=PROBLEMS)
MOMENT_SECONDS: Final = 0.05
"""While the database answers in time, a node's clock is wrong by half of it at most."""

# One statement for all of it, which is a transaction of its own and waits for no disk. Of one node that spoke twice
# the later counts. Rows in one order everywhere, so that two processes never deadlock.
_HEARD: Final = """
with beat as (
  select * from unnest(%b::text[], %b::text[], %b::text[], %b::int[], %b::bool[]) with ordinality
    as beat(node_id, credential_sha256, agent_version, spooled_reports, resynced, place)
), shown as (
  select beat.*, session.node_id is not null as known, coalesce(session.expires_at > clock_timestamp(), false) as live
  from beat left join (work.node_session session join read.node using (node_id, key_thumbprint))
    using (node_id, credential_sha256)
), heard as (
  insert into work.node_seen (node_id, seen_at, agent_version, spooled_reports, resynced)
  select distinct on (node_id) node_id, clock_timestamp(), agent_version, spooled_reports, resynced
  from shown where live order by node_id, place desc
  on conflict (node_id) do update set seen_at = excluded.seen_at, agent_version = excluded.agent_version,
    spooled_reports = excluded.spooled_reports, resynced = excluded.resynced
)
select known, live, (select clock_timestamp()), (select set_config('synchronous_commit', 'off', true))
from shown order by place
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
        self._writing = asyncio.Lock()

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
        # One statement at a time: while the database is slow, what comes joins the next one, and the connections are
        # left to others.
        async with self._writing:
            self._written = None
            return await self._ask(beats)

    async def _ask(self, beats: Sequence[Beat]) -> _Outcomes:
        columns = (
            [beat.shown.node_id for beat in beats],
            [beat.shown.credential_sha256 for beat in beats],
            [beat.said.agent_version for beat in beats],
            [beat.said.spooled_reports for beat in beats],
            [beat.said.resynced for beat in beats],
        )
        async with reading(self._engine) as conn:
            ledger = await ledger_connection(conn)
            cursor = await ledger.execute(_HEARD, columns, prepare=True)
            rows = cast(list[tuple[bool, bool, datetime, str]], await cursor.fetchall())
        return [refusal(known=known, live=live) or now for known, live, now, _ in rows]
