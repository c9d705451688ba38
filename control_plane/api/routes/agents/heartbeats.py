"""Heartbeats of nodes. Every node sends one every few seconds, so most requests of a fleet are heartbeats.

Heartbeats are therefore batched: all that arrive within `MOMENT_SECONDS` are authenticated and stored together, in
one transaction that does not wait for the disk. A response still means that the heartbeat is stored. If a
crash of the database loses heartbeats, the next ones replace them; after a crash of this process, nodes get no response
and repeat the request.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple, cast

from fastapi import APIRouter, Request
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.api.audit.entries import entry_of
from control_plane.api.requests.access import HEARTBEATS, AuthenticatedRoute, ShownByNode
from control_plane.api.requests.problems import PROBLEMS
from control_plane.database import reading
from control_plane.decisions.refusals import Unauthorised
from control_plane.identity.sessions import PresentedCredential, refusal
from events.ledger.connection import fetch_rows, ledger_connection
from tasks.agent_api import Heartbeat, HeartbeatAnswer

router = APIRouter(prefix="/v1/agent", tags=["agent"], responses=PROBLEMS, route_class=AuthenticatedRoute)
MOMENT_SECONDS: Final = 0.05
"""Time for which heartbeats are collected into one batch. This delays the control plane's time in the response, by
which a node sets its clock: the clock is wrong by at most half of this delay, as long as the database responds in time.
"""

# One statement, which is a transaction of its own that does not wait for the disk. If a node has two heartbeats in a
# batch, the later one is stored. All processes write the rows in the same order, so that they never deadlock.
_STORE: Final = """
with beat as (
  select * from unnest(%b::text[], %b::text[], %b::text[], %b::int[], %b::bool[]) with ordinality
    as beat(node_id, credential_sha256, agent_version, spooled_reports, resynced, place)
), shown as (
  select beat.*, session.node_id is not null as known, coalesce(session.expires_at > clock_timestamp(), false) as live
  from beat left join (work.node_session session join read.node using (node_id, key_thumbprint))
    using (node_id, credential_sha256)
), stored as (
  insert into work.node_seen (node_id, seen_at, agent_version, spooled_reports, resynced)
  select distinct on (node_id) node_id, clock_timestamp(), agent_version, spooled_reports, resynced
  from shown where live order by node_id, place desc
  on conflict (node_id) do update set seen_at = excluded.seen_at, agent_version = excluded.agent_version,
    spooled_reports = excluded.spooled_reports, resynced = excluded.resynced
)
select known, live, (select clock_timestamp()) as now,
  (select set_config('synchronous_commit', 'off', true)) as synchronous_commit
from shown order by place
"""


class _Stored(NamedTuple):
    """Result for one heartbeat: whether the session of its credentials exists and is live, and the database's time."""

    known: bool
    live: bool
    now: datetime
    synchronous_commit: str


@router.post("/heartbeat", openapi_extra=HEARTBEATS)
async def heartbeat(request: Request, shown: ShownByNode, body: Heartbeat) -> HeartbeatAnswer:
    """Report that a node is alive; the response has the control plane's time."""
    heartbeats = cast(Heartbeats, request.app.state.heartbeats)
    answer = HeartbeatAnswer(now=await heartbeats.take(Beat(shown, body)))
    entry_of(request).principal = f"node:{shown.node_id}"
    return answer


class Beat(NamedTuple):
    """A heartbeat, and the credentials of its sender."""

    shown: PresentedCredential
    body: Heartbeat


_Outcomes = list[datetime | Unauthorised]


class Heartbeats:
    """The heartbeats of one process, stored in batches."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._gathered: list[Beat] = []
        self._written: asyncio.Task[_Outcomes] | None = None
        self._writing = asyncio.Lock()

    async def take(self, beat: Beat) -> datetime:
        """Store a heartbeat in one batch with others; return the database's time. Raises `Unauthorised` if its
        credentials are invalid.
        """
        if self._written is None:
            self._gathered = []
            self._written = asyncio.create_task(self._write(self._gathered))
        index, written = len(self._gathered), self._written
        self._gathered.append(beat)
        # A disconnected caller must not cancel the heartbeats of the others.
        outcome = (await asyncio.shield(written))[index]
        if isinstance(outcome, Unauthorised):
            raise outcome
        return outcome

    async def _write(self, beats: Sequence[Beat]) -> _Outcomes:
        await asyncio.sleep(MOMENT_SECONDS)
        # One statement at a time: while the database is slow, new heartbeats join the next batch, and other requests
        # keep their connections.
        async with self._writing:
            self._written = None
            return await self._store(beats)

    async def _store(self, beats: Sequence[Beat]) -> _Outcomes:
        columns = (
            [beat.shown.node_id for beat in beats],
            [beat.shown.credential_sha256 for beat in beats],
            [beat.body.agent_version for beat in beats],
            [beat.body.spooled_reports for beat in beats],
            [beat.body.resynced for beat in beats],
        )
        async with reading(self._engine) as conn:
            ledger = await ledger_connection(conn)
            stored = await fetch_rows(ledger, _Stored, _STORE, columns, prepare=True)
        return [refusal(known=each.known, live=each.live) or each.now for each in stored]
