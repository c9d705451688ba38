"""Following the log without ever skipping an event, however late its commit (LED-4).

Appenders draw positions under a shared lock that they hold to commit. A reader therefore asks, in this order:
how far positions were drawn, who holds the lock, and then, *in a statement begun after that*, for the events.
With no holder everything up to that position is final; otherwise only up to the first gap is. A gap whose
holders at first sight have all gone, and which is still one in a later statement, is dead, and is recorded
as such so that every reader agrees. Bound and events in one statement, or in one snapshot, lose events.

The server believes no reader and looks for itself who could still write a gap. So it is told of a gap that lasts
while its suspects are few: else every younger appender that idles would add to the wait (promise P29).

One `Tail` for a process: it owns one connection, which it makes again after an error. What it knew about
pending gaps belongs to the server it knew it of, and is forgotten then.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import psycopg
import structlog

from events.envelope import Recorded
from events.errors import NotYetFinal, refusal
from events.facts import Fact
from events.fitness import refuse_unfit_server
from events.store import answered, ask_range
from events.values import Position

log = structlog.get_logger()

_FENCE: Final = "select last, holders, clock_timestamp() from ledger.fence()"
_DEAD: Final = "select position from ledger.dead_position where position > %s and position <= %s"
_NOTE_GAPS: Final = "select ledger.note_gaps(%s::bigint[])"
_NOTE_DEAD: Final = "select ledger.note_dead(%s::bigint[], %s)"
_WRITTEN: Final = """
select greatest(0, (select max(position) from ledger.event), (select max(position) from ledger.dead_position))
"""
_LASTING_SECONDS: Final = 0.1
_SETTLE_SECONDS: Final = 0.02
_SETTLE_POLL_SECONDS: Final = 0.001
_SIGHTS_KEPT: Final = 64


class Batch(NamedTuple):
    """Events in order, and the position up to which nothing can appear any more: where to go on. `at` is the database's
    time when it was read.
    """

    events: tuple[Recorded[Fact], ...]
    final: Position
    at: datetime


class _Fence(NamedTuple):
    last: Position
    holders: frozenset[str]
    at: datetime


class _Gap(NamedTuple):
    """Who may still write it: whoever held the fence when it was seen first, or when the server was told of it."""

    suspects: frozenset[str]
    since: float
    told: bool = False


class Tail:
    """A reader of the log's end. `name` stands in the record of what it found dead."""

    def __init__(self, dsn: str, name: str = "tail") -> None:
        self._dsn, self._name = dsn, name
        self._conn: psycopg.AsyncConnection | None = None
        self._turn = asyncio.Lock()
        self._gaps: dict[Position, _Gap] = {}
        self._sighted: list[_Fence] = []
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

        It reads no event: what was drawn when the fence was seen is final once its holders of then are gone. Positions
        behind the last event are left out: after a crash the server may draw them again.
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
        fence, read = await _look(conn, after, limit)
        events = [event for event in read if event.position <= fence.last]
        end = events[-1].position if len(events) == limit else max(after, fence.last)
        final = await self._first_open_gap(conn, after, end, events, fence.holders)
        return Batch(tuple([event for event in events if event.position <= final]), final, fence.at)

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
        """Of all gaps at once: seen one by one, each would wait for those who came while the one before it was open."""
        now = asyncio.get_running_loop().time()
        for gap in gaps:
            self._gaps.setdefault(gap, _Gap(holders, now))
        if lasting := [gap for gap in gaps if self._lasts(gap, holders, now)]:
            await conn.execute(_NOTE_GAPS, [lasting])
            younger = (await _fence(conn)).holders
            for gap in lasting:
                self._gaps[gap] = _Gap(self._gaps[gap].suspects | younger, now, told=True)

    def _lasts(self, gap: Position, holders: frozenset[str], now: float) -> bool:
        suspects, since, told = self._gaps[gap]
        return not told and now - since > _LASTING_SECONDS and not suspects.isdisjoint(holders)

    async def _note_dead(self, conn: psycopg.AsyncConnection, gaps: list[Position]) -> bool:
        """Whether all of them are noted now. Others noted the rest, or it has events: the next look tells which."""
        try:
            row = await (await conn.execute(_NOTE_DEAD, [gaps, self._name])).fetchone()
        except psycopg.Error as error:
            if isinstance(refusal(error), NotYetFinal):
                return False  # a younger holder hangs, and the server cannot know that the gap is not his
            raise
        assert row is not None
        noted: list[int] = row[0]
        if noted:
            log.info("positions_dead", first=min(noted), count=len(noted))
        return len(noted) == len(gaps)

    async def _final(self, conn: psycopg.AsyncConnection) -> Position:
        deadline = asyncio.get_running_loop().time() + _SETTLE_SECONDS
        fence = await _fence(conn)
        del self._sighted[1:-_SIGHTS_KEPT:2]
        self._sighted.append(fence)
        while True:
            await self._settle(conn, fence.holders)
            if not self._sighted or asyncio.get_running_loop().time() > deadline:
                return self._known
            await asyncio.sleep(_SETTLE_POLL_SECONDS)
            fence = await _fence(conn)

    async def _settle(self, conn: psycopg.AsyncConnection, holders: frozenset[str]) -> None:
        """Of all earlier sights the youngest counts whose holders are gone: waiting for one only would add up."""
        settled = [sight.last for sight in self._sighted if sight.holders.isdisjoint(holders)]
        if settled:
            self._known = await _written(conn, max(settled))
            self._sighted = [sight for sight in self._sighted if sight.last > max(settled)]

    async def _connection(self) -> psycopg.AsyncConnection:
        if self._conn is None:
            conn = await psycopg.AsyncConnection.connect(
                self._dsn, autocommit=True, application_name=self._name
            )
            self._conn = conn
            await refuse_unfit_server(conn)
            # Each statement its own snapshot: one kept from before the fence would hide what committed since.
            await conn.execute("set session characteristics as transaction isolation level read committed")
            # A little after a place is read at a time. A backlog that the planner's numbers know nothing of yet would
            # be read and sorted as a whole each time; without bitmaps there is only the index, which is in order.
            await conn.execute("set enable_bitmapscan = off")
        return self._conn

    async def _forget(self) -> None:
        conn, self._conn = self._conn, None
        self._gaps.clear()
        self._sighted, self._known = [], Position(0)
        if conn is not None:
            await conn.close()


async def _look(
    conn: psycopg.AsyncConnection, after: Position, limit: int
) -> tuple[_Fence, tuple[Recorded[Fact], ...]]:
    """The fence, and in a statement begun after that the events; some may have been drawn since. Asked in one go."""
    async with conn.pipeline():
        asked = await conn.execute(_FENCE, prepare=True)
        found = await ask_range(conn, after, limit)
    return await _seen(asked), await answered(found)


async def _fence(conn: psycopg.AsyncConnection) -> _Fence:
    return await _seen(await conn.execute(_FENCE, prepare=True))


async def _seen(asked: psycopg.AsyncCursor) -> _Fence:
    row = await asked.fetchone()
    assert row is not None
    return _Fence(Position(row[0]), frozenset(row[1]), row[2])


async def _written(conn: psycopg.AsyncConnection, drawn: Position) -> Position:
    """The part of it that no crash takes back: drawing is written down with an event's commit, or a dead mark's."""
    row = await (await conn.execute(_WRITTEN, prepare=True)).fetchone()
    assert row is not None
    return min(drawn, Position(row[0]))
