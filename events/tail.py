"""Following the log without ever skipping an event, however late its commit (LED-4).

Appenders draw positions under a shared lock that they hold to commit. A reader therefore asks, in this order:
how far positions were drawn, who holds the lock, and then, *in a statement begun after that*, for the events.
With no holder everything up to that position is final; otherwise only up to the first gap is. A gap whose
holders at first sight have all gone, and which is still one in a later statement, is dead, and is recorded
as such so that every reader agrees. Bound and events in one statement, or in one snapshot, lose events.

One `Tail` for a process: it owns one connection, which it makes again after an error. What it knew about
pending gaps belongs to the server it knew it of, and is forgotten then.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import psycopg
import structlog

from events.envelope import Recorded
from events.errors import NotYetFinal, refusal
from events.facts import Fact
from events.fitness import refuse_unfit_server
from events.store import read_range
from events.values import Position

log = structlog.get_logger()

_FENCE: Final = "select last, holders from ledger.fence()"
_DEAD: Final = "select position from ledger.dead_position where position > %s and position <= %s"
_NOTE_DEAD: Final = "select ledger.note_dead(%s::bigint[], %s)"
_SETTLE_SECONDS: Final = 0.02
_SETTLE_POLL_SECONDS: Final = 0.001


class Batch(NamedTuple):
    """Events in order, and the position up to which nothing can appear any more: where to go on."""

    events: tuple[Recorded[Fact], ...]
    final: Position


class _Fence(NamedTuple):
    last: Position
    holders: frozenset[str]


class Tail:
    """A reader of the log's end. `name` stands in the record of what it found dead."""

    def __init__(self, dsn: str, name: str = "tail") -> None:
        self._dsn, self._name = dsn, name
        self._conn: psycopg.AsyncConnection | None = None
        self._turn = asyncio.Lock()
        self._first_holders: dict[Position, frozenset[str]] = {}
        self._sighted: _Fence | None = None
        self._known = Position(0)

    async def batch(self, after: Position, limit: int) -> Batch:
        """The next final events after a position. Raises `psycopg.OperationalError` when the server is away."""
        async with self._turn:
            try:
                return await self._batch(await self._connection(), after, limit)
            except BaseException:
                await self._forget()
                raise

    async def final(self) -> Position:
        """A position up to which the log is final, at most milliseconds old while no appender hangs; 0 if unknown.

        It reads no event: what was drawn when the fence was seen is final once its holders of then are gone.
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
        fence = await _fence(conn)
        events = await read_range(conn, after, fence.last, limit=limit)
        end = events[-1].position if len(events) == limit else max(after, fence.last)
        final = await self._first_open_gap(conn, after, end, events, fence.holders)
        return Batch(tuple([event for event in events if event.position <= final]), final)

    async def _first_open_gap(
        self,
        conn: psycopg.AsyncConnection,
        after: Position,
        end: Position,
        events: Sequence[Recorded[Fact]],
        holders: frozenset[str],
    ) -> Position:
        """The last position up to which every one is an event or dead."""
        if len(events) == end - after:
            return end
        gaps = set(range(after + 1, end + 1)).difference(event.position for event in events)
        known = await conn.execute(_DEAD, [after, end])
        gaps.difference_update(position for (position,) in await known.fetchall())
        dead, final = [], end
        for gap in map(Position, sorted(gaps)):
            if not self._first_holders.setdefault(gap, holders).isdisjoint(holders):
                final = Position(gap - 1)
                break
            dead.append(gap)
        if dead and not await self._note_dead(conn, dead):
            final = Position(dead[0] - 1)
        return final

    async def _note_dead(self, conn: psycopg.AsyncConnection, gaps: list[Position]) -> bool:
        try:
            await conn.execute(_NOTE_DEAD, [gaps, self._name])
        except psycopg.Error as error:
            if isinstance(refusal(error), NotYetFinal):
                return False  # a younger holder hangs, and the server cannot know that the gap is not his
            raise
        for gap in gaps:
            del self._first_holders[gap]
        log.info("positions_dead", first=gaps[0], count=len(gaps))
        return True

    async def _final(self, conn: psycopg.AsyncConnection) -> Position:
        deadline = asyncio.get_running_loop().time() + _SETTLE_SECONDS
        while True:
            fence = await _fence(conn)
            if not fence.holders:
                self._sighted, self._known = None, fence.last
                return self._known
            if self._sighted is None:
                self._sighted = fence
            elif self._sighted.holders.isdisjoint(fence.holders):
                self._known, self._sighted = self._sighted.last, fence
                return self._known
            if asyncio.get_running_loop().time() > deadline:
                return self._known
            await asyncio.sleep(_SETTLE_POLL_SECONDS)

    async def _connection(self) -> psycopg.AsyncConnection:
        if self._conn is None:
            conn = await psycopg.AsyncConnection.connect(
                self._dsn, autocommit=True, application_name=self._name
            )
            self._conn = conn
            await refuse_unfit_server(conn)
            # Each statement its own snapshot: one kept from before the fence would hide what committed since.
            await conn.execute("set session characteristics as transaction isolation level read committed")
        return self._conn

    async def _forget(self) -> None:
        conn, self._conn = self._conn, None
        self._first_holders.clear()
        self._sighted, self._known = None, Position(0)
        if conn is not None:
            await conn.close()


async def _fence(conn: psycopg.AsyncConnection) -> _Fence:
    row = await (await conn.execute(_FENCE, prepare=True)).fetchone()
    assert row is not None
    return _Fence(Position(row[0]), frozenset(row[1]))
