"""Follow the ledger without ever skipping an event, however late its commit (LED-4).

Appenders draw positions under a shared lock, the fence, that they hold until commit. A reader therefore queries, in
this order: the last drawn position, the holders of the lock, and then, *in a statement begun after that*, the events.
Without a holder everything up to that position is final; otherwise only everything up to the first gap is. A gap is
dead if the transactions that held the lock when the gap was first observed have all ended and a later statement still
finds no event there. A dead gap is recorded in the database, so that all readers treat it in the same manner. A reader
that queries the last drawn position and the events in one statement or snapshot would miss events.

The server refuses to mark a gap as dead while a transaction could still write there. A reader therefore registers a
lasting gap with the server early, while there are few such transactions: a gap that is registered later would also have
to wait for later appenders that idle (promise P29).

Use one `Tail` per process: it owns one connection, which it re-establishes after an error. The data of a `Tail` about
pending gaps is valid for one server only and is discarded on reconnect.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import psycopg
import structlog
from psycopg.rows import kwargs_row

from events.envelope import Recorded
from events.facts import Fact
from events.ledger.connection import fetch_row, fetch_value, fetch_values
from events.ledger.errors import NotYetFinal, refusal
from events.ledger.fitness import refuse_unfit_server
from events.ledger.store import fetch_events, send_range_query
from events.values import Position

log = structlog.get_logger()

_FENCE: Final = "select last, holders, clock_timestamp() as at from ledger.fence()"
_POSITIONS: Final = "select position from ledger.event where position > %s order by position limit %s"
_COUNT: Final = """
select count(*) as number, max(position) as last from (
  select position from ledger.event where position > %s and position <= %s order by position limit %s
) found
"""
_DEAD: Final = "select position from ledger.dead_position where position > %s and position <= %s"
_NOTE_GAPS: Final = "select ledger.note_gaps(%s::bigint[])"
_NOTE_DEAD: Final = "select ledger.note_dead(%s::bigint[], %s)"
_WRITTEN: Final = """
select greatest(0, (select max(position) from ledger.event), (select max(position) from ledger.dead_position))
"""
_LASTING_SECONDS: Final = 0.1
_SETTLE_SECONDS: Final = 0.02
_SETTLE_POLL_SECONDS: Final = 0.001
_SNAPSHOTS_KEPT: Final = 64


class Batch(NamedTuple):
    """Events in order, and the position `final`, up to which no further event can appear and after which the reader
    continues. `at` is the database's time of the read.
    """

    events: tuple[Recorded[Fact], ...]
    final: Position
    at: datetime


class _Count(NamedTuple):
    number: int
    last: int


class _Fence(NamedTuple):
    last: Position
    holders: frozenset[str]
    at: datetime


class _Gap(NamedTuple):
    """Positions of the ledger that are missing between two events. `suspects` are the transactions that may still write
    events there: they held the appenders' lock (fence) when this reader first observed the gap, or when it recorded the
    gap in the database (`registered`).
    """

    suspects: frozenset[str]
    since: float
    registered: bool = False


class Tail:
    """A reader of the end of the ledger. `name` is recorded with the positions that it marks as dead."""

    def __init__(self, dsn: str, name: str = "tail") -> None:
        self._dsn, self._name = dsn, name
        self._conn: psycopg.AsyncConnection | None = None
        self._turn = asyncio.Lock()
        self._gaps: dict[Position, _Gap] = {}
        self._snapshots: list[_Fence] = []
        self._known = Position(0)

    async def batch(self, after: Position, limit: int) -> Batch:
        """Return the next final events after a position. Raises `psycopg.OperationalError` if the server is
        unavailable.
        """
        async with self._turn:
            try:
                return await self._batch(await self._connection(), after, limit)
            except BaseException:
                await self._forget()
                raise

    async def next_final(self, after: Position, limit: int) -> Position:
        """Return the position `final` of `batch` with the same arguments, without reading more of the events than their
        positions. Like `batch`, it marks gaps as dead.
        """
        async with self._turn:
            try:
                return await self._next_final(await self._connection(), after, limit)
            except BaseException:
                await self._forget()
                raise

    async def final(self) -> Position:
        """Return a position up to which the ledger is final; 0 if it is unknown.

        Unless an appender hangs, this position lags behind the last one by a few milliseconds at most. This method
        reads no event: the positions drawn when the fence was read are final once all transactions that held it then
        have ended. Positions after the last event are excluded: after a crash the server may draw them again.
        """
        async with self._turn:
            try:
                return await self._final(await self._connection())
            except BaseException:
                await self._forget()
                raise

    async def close(self) -> None:
        async with self._turn:
            await self._forget()

    async def _batch(self, conn: psycopg.AsyncConnection, after: Position, limit: int) -> Batch:
        fence, read = await _fence_and_events(conn, after, limit)
        events = [event for event in read if event.position <= fence.last]
        final = await self._final_of(conn, after, limit, [event.position for event in events], fence)
        return Batch(tuple([event for event in events if event.position <= final]), final, fence.at)

    async def _next_final(self, conn: psycopg.AsyncConnection, after: Position, limit: int) -> Position:
        fence = await _fence(conn)
        counted = await fetch_row(conn, _Count, _COUNT, [after, fence.last, limit], prepare=True)
        assert counted is not None
        end = Position(counted.last) if counted.number == limit else max(after, fence.last)
        if counted.number == end - after:
            return end  # there is no gap: nearly every call ends here
        read = [Position(each) for each in await fetch_values(conn, _POSITIONS, [after, limit], prepare=True)]
        positions = [position for position in read if position <= fence.last]
        return await self._final_of(conn, after, limit, positions, fence)

    async def _final_of(
        self,
        conn: psycopg.AsyncConnection,
        after: Position,
        limit: int,
        positions: Sequence[Position],
        fence: _Fence,
    ) -> Position:
        """Return the last final position, given the next positions with an event, at most `limit`."""
        end = positions[-1] if len(positions) == limit else max(after, fence.last)
        return await self._first_open_gap(conn, after, end, positions, fence.holders)

    async def _first_open_gap(
        self,
        conn: psycopg.AsyncConnection,
        after: Position,
        end: Position,
        positions: Sequence[Position],
        holders: frozenset[str],
    ) -> Position:
        """Return the last position, at most `end`, up to which every position has an event or is dead."""
        if len(positions) == end - after:
            return end
        gaps = set(range(after + 1, end + 1)).difference(positions)
        gaps.difference_update(await fetch_values(conn, _DEAD, [after, end]))
        order = [Position(gap) for gap in sorted(gaps)]
        await self._remember(conn, order, holders)
        still_open = (gap for gap in order if not self._gaps[gap].suspects.isdisjoint(holders))
        final = Position(next(still_open, end + 1) - 1)
        dead = [gap for gap in order if gap <= final]
        if dead and not await self._note_dead(conn, dead):
            final = Position(dead[0] - 1)
        self._gaps = {gap: known for gap, known in self._gaps.items() if gap > final}
        return final

    async def _remember(
        self, conn: psycopg.AsyncConnection, gaps: Sequence[Position], holders: frozenset[str]
    ) -> None:
        """Store which transactions may still write events in each gap, for all gaps at once.

        If the second gap were stored only after the first had closed, it would also wait for the transactions that
        began in the meantime.
        """
        now = asyncio.get_running_loop().time()
        for gap in gaps:
            self._gaps.setdefault(gap, _Gap(holders, now))
        if lasting := [gap for gap in gaps if self._lasts(gap, holders, now)]:
            await conn.execute(_NOTE_GAPS, [lasting])
            younger = (await _fence(conn)).holders
            for gap in lasting:
                self._gaps[gap] = _Gap(self._gaps[gap].suspects | younger, now, registered=True)

    def _lasts(self, gap: Position, holders: frozenset[str], now: float) -> bool:
        suspects, since, registered = self._gaps[gap]
        return not registered and now - since > _LASTING_SECONDS and not suspects.isdisjoint(holders)

    async def _note_dead(self, conn: psycopg.AsyncConnection, gaps: list[Position]) -> bool:
        """Mark gaps as dead and return whether all of them were marked by this call.

        A gap that was not marked has an event, or was marked by another reader: the next read shows which of the two.
        """
        try:
            noted: list[int] = await fetch_value(conn, _NOTE_DEAD, [gaps, self._name])
        except psycopg.Error as error:
            if isinstance(refusal(error), NotYetFinal):
                return False  # a later holder hangs, and the server cannot exclude that the gap belongs to it
            raise
        if noted:
            log.info("dead_ledger_positions_recorded", first_position=min(noted), count=len(noted))
        return len(noted) == len(gaps)

    async def _final(self, conn: psycopg.AsyncConnection) -> Position:
        deadline = asyncio.get_running_loop().time() + _SETTLE_SECONDS
        fence = await _fence(conn)
        del self._snapshots[1:-_SNAPSHOTS_KEPT:2]
        self._snapshots.append(fence)
        while True:
            await self._settle(conn, fence.holders)
            if not self._snapshots or asyncio.get_running_loop().time() > deadline:
                return self._known
            await asyncio.sleep(_SETTLE_POLL_SECONDS)
            fence = await _fence(conn)

    async def _settle(self, conn: psycopg.AsyncConnection, holders: frozenset[str]) -> None:
        """Advance the known final position: find the newest snapshot of the appenders' lock (fence) of which all lock
        holders have ended, and take the last position drawn at its time.

        Several snapshots are kept, so that the holders of all of them are waited for at the same time.
        """
        settled = [snapshot.last for snapshot in self._snapshots if snapshot.holders.isdisjoint(holders)]
        if settled:
            self._known = await _written(conn, max(settled))
            self._snapshots = [snapshot for snapshot in self._snapshots if snapshot.last > max(settled)]

    async def _connection(self) -> psycopg.AsyncConnection:
        if self._conn is None:
            conn = await psycopg.AsyncConnection.connect(
                self._dsn, autocommit=True, application_name=self._name
            )
            self._conn = conn
            await refuse_unfit_server(conn)
            # Each statement needs its own snapshot: one from before the fence would hide what committed since.
            await conn.execute("set session characteristics as transaction isolation level read committed")
            # Each read takes a few events after a position. With outdated planner statistics a backlog, or the whole
            # ledger, would be read and sorted each time; without these scans only the index remains, which is in order.
            await conn.execute("set enable_bitmapscan = off")
            await conn.execute("set enable_seqscan = off")
            # PostgreSQL adds a very high estimated cost to a disabled scan. A plan that still needs one would exceed
            # `jit_above_cost`, and JIT compilation would take 0.1 s per call.
            await conn.execute("set jit = off")
        return self._conn

    async def _forget(self) -> None:
        conn, self._conn = self._conn, None
        self._gaps.clear()
        self._snapshots, self._known = [], Position(0)
        if conn is not None:
            await conn.close()


async def _fence_and_events(
    conn: psycopg.AsyncConnection, after: Position, limit: int
) -> tuple[_Fence, tuple[Recorded[Fact], ...]]:
    """Read the fence (last drawn position, holders of the appenders' lock), and then the events in a later statement.
    Some of these events may have positions drawn after the fence was read.

    Both statements are sent in one pipeline.
    """
    async with conn.pipeline():
        fence_cursor = await _query_fence(conn)
        events_cursor = await send_range_query(conn, after, limit)
    return await _fetch_fence(fence_cursor), await fetch_events(events_cursor)


async def _fence(conn: psycopg.AsyncConnection) -> _Fence:
    return await _fetch_fence(await _query_fence(conn))


async def _query_fence(conn: psycopg.AsyncConnection) -> psycopg.AsyncCursor[_Fence]:
    return await conn.cursor(row_factory=kwargs_row(_made_fence)).execute(_FENCE, prepare=True)


def _made_fence(last: int, holders: list[str], at: datetime) -> _Fence:
    return _Fence(Position(last), frozenset(holders), at)


async def _fetch_fence(cursor: psycopg.AsyncCursor[_Fence]) -> _Fence:
    fence = await cursor.fetchone()
    assert fence is not None
    return fence


async def _written(conn: psycopg.AsyncConnection, drawn: Position) -> Position:
    """Return the last drawn position that the server does not draw again after a crash, at most `drawn`.

    A draw becomes durable with the commit of an event or of a dead mark at or after it.
    """
    return min(drawn, Position(await fetch_value(conn, _WRITTEN, prepare=True)))
