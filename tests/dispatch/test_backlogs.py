"""A follower with much to read reads ahead, and deals with each fact once and in the log's order (P9)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from bench.placements import placement
from control_plane import follow as following
from control_plane.follow import Follower, follow
from control_plane.followers import ledger_dsn
from control_plane.wake import Waiter
from control_plane.wiring import Plane
from events.append import append
from events.connection import ledger_connection
from events.envelope import Recorded
from events.facts import Fact
from events.tail import Tail
from events.values import NodeId, Position, SlotIndex, allocation_of, new_uuid, slot_of
from read_models.checkpoints import Overtaken

FACTS = 7 * 3


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FIRST", 2)
    monkeypatch.setattr(following, "BATCH", 2)
    monkeypatch.setattr(following, "RECONNECT_SECONDS", 0.0)


class Seen:
    """What was dealt with and committed; an event that is in the way once breaks its batch."""

    def __init__(self, *in_the_way: int) -> None:
        self.positions: list[Position] = []
        self.looks: list[int] = []
        """How many facts each look was at."""
        self.more: list[bool] = []
        self.all = asyncio.Event()
        self._in_the_way = {*in_the_way}
        self._uncommitted: list[Position] = []

    async def look(self, batch: Sequence[Recorded[Fact]], _at: datetime) -> list[Position]:
        if batch:
            self.looks.append(len(batch))
        return [each.position for each in batch]

    async def write(self, _conn: AsyncConnection, found: list[Position]) -> None:
        self._uncommitted = found
        for position in self._uncommitted:
            if position in self._in_the_way:
                self._in_the_way.remove(position)
                raise Overtaken("test")

    async def committed(self, *, more: bool) -> None:
        self.positions += self._uncommitted
        self._uncommitted = []
        self.more.append(more)
        if len(self.positions) >= FACTS and not more:
            self.all.set()


async def _placed(made: Plane, count: int) -> None:
    for index in range(count):
        command = placement(allocation_of(new_uuid()), slot_of(NodeId("n1"), SlotIndex(index)))
        async with made.engine.begin() as conn:
            await append(await ledger_connection(conn), command.changes, command.cause)


@asynccontextmanager
async def _following(made: Plane, seen: Seen) -> AsyncIterator[None]:
    tail = Tail(ledger_dsn(made))
    follower = Follower("test", seen.look, seen.write, seen.committed)
    running = asyncio.ensure_future(follow(made.engine, tail, Waiter(), follower))
    try:
        yield
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        await asyncio.wait([running])
        await tail.close()


async def test_a_backlog_is_dealt_with_in_its_order(made: Plane) -> None:
    seen = Seen()
    await _placed(made, 7)
    async with _following(made, seen):
        async with asyncio.timeout(30):
            await seen.all.wait()
    assert seen.positions == [*range(1, FACTS + 1)]
    assert seen.more == [True] * (FACTS // 2) + [False]


async def test_a_backlog_that_fills_its_last_batch_is_over_too(made: Plane) -> None:
    seen = Seen()
    await _placed(made, 8)
    async with _following(made, seen):
        async with asyncio.timeout(30):
            await seen.all.wait()
    assert seen.positions == [*range(1, FACTS + 4)]
    assert seen.more == [True] * (FACTS // 2 + 2) + [False]


async def test_a_backlog_begins_with_a_short_batch(made: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "BATCH", 9)
    seen = Seen()
    await _placed(made, 7)
    async with _following(made, seen):
        async with asyncio.timeout(30):
            await seen.all.wait()
    assert seen.looks == [2, 8, 9, 2]


async def test_what_broke_a_batch_loses_and_doubles_nothing(made: Plane) -> None:
    seen = Seen(1, 6, FACTS)
    await _placed(made, 7)
    async with _following(made, seen):
        async with asyncio.timeout(30):
            await seen.all.wait()
    assert seen.positions == [*range(1, FACTS + 1)]
