"""Tests of a ledger follower (a task that processes new events) with a backlog: it reads batches ahead and processes
each event once, in ledger order (P9).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from bench.dispatch.placements import placement
from control_plane.dispatcher.dispatcher_program import ledger_dsn
from control_plane.following import follow as following
from control_plane.following.follow import Follower, follow
from control_plane.following.wake import Waiter
from control_plane.wiring import Plane
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.append import append
from events.ledger.connection import ledger_connection
from events.ledger.tail import Tail
from events.values import NodeId, Position, SlotIndex, allocation_of, new_uuid, slot_of
from read_models import checkpoints
from read_models.checkpoints import CheckpointSuperseded

FACTS = 7 * 3


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FIRST", 2)
    monkeypatch.setattr(following, "BATCH", 2)
    monkeypatch.setattr(following, "RECONNECT_SECONDS", 0.0)


class Processed:
    """Follower that records the events that it processed and committed. The first batch with each event in
    `failing_once` fails once.
    """

    def __init__(self, *failing_once: int) -> None:
        self.positions: list[Position] = []
        self.batches: list[int] = []
        """Number of events in each batch."""
        self.more: list[bool] = []
        self.complete = asyncio.Event()
        self._failing_once = {*failing_once}
        self._uncommitted: list[Position] = []

    async def look(self, batch: Sequence[Recorded[Fact]], _at: datetime) -> list[Position]:
        if batch:
            self.batches.append(len(batch))
        return [each.position for each in batch]

    async def write(self, _conn: AsyncConnection, found: list[Position]) -> None:
        self._uncommitted = found
        for position in self._uncommitted:
            if position in self._failing_once:
                self._failing_once.remove(position)
                raise CheckpointSuperseded("test")

    async def committed(self, *, more: bool) -> None:
        self.positions += self._uncommitted
        self._uncommitted = []
        self.more.append(more)
        if len(self.positions) >= FACTS and not more:
            self.complete.set()


async def _placed(made: Plane, count: int) -> None:
    for index in range(count):
        command = placement(allocation_of(new_uuid()), slot_of(NodeId("n1"), SlotIndex(index)))
        async with made.engine.begin() as conn:
            await append(await ledger_connection(conn), command.changes, command.cause)


@asynccontextmanager
async def _following(made: Plane, processed: Processed) -> AsyncIterator[None]:
    tail = Tail(ledger_dsn(made))
    follower = Follower("test", processed.look, processed.write, processed.committed)
    running = asyncio.ensure_future(follow(made.engine, tail, Waiter(), follower))
    try:
        yield
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        await asyncio.wait([running])
        await tail.close()


async def test_event_backlog_of_a_follower_is_processed_in_ledger_order(made: Plane) -> None:
    processed = Processed()
    await _placed(made, 7)
    async with _following(made, processed):
        async with asyncio.timeout(30):
            await processed.complete.wait()
    assert processed.positions == [*range(1, FACTS + 1)]
    assert processed.more == [True] * (FACTS // 2) + [False]


async def test_event_backlog_that_fills_its_last_batch_completely_is_processed_to_its_end(
    made: Plane,
) -> None:
    processed = Processed()
    await _placed(made, 8)
    async with _following(made, processed):
        async with asyncio.timeout(30):
            await processed.complete.wait()
    assert processed.positions == [*range(1, FACTS + 4)]
    assert processed.more == [True] * (FACTS // 2 + 2) + [False]


async def test_event_backlog_is_read_in_a_short_first_batch_and_then_in_growing_batches(
    made: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "BATCH", 9)
    processed = Processed()
    await _placed(made, 7)
    async with _following(made, processed):
        async with asyncio.timeout(30):
            await processed.complete.wait()
    assert processed.batches == [2, 8, 9, 2]


async def test_failed_batches_of_an_event_backlog_lose_and_duplicate_no_event(made: Plane) -> None:
    processed = Processed(1, 6, FACTS)
    await _placed(made, 7)
    async with _following(made, processed):
        async with asyncio.timeout(30):
            await processed.complete.wait()
    assert processed.positions == [*range(1, FACTS + 1)]


async def test_checkpoints_advanced_together_stay_unchanged_if_one_of_them_is_at_another_position(
    made: Plane,
) -> None:
    async with made.engine.begin() as conn:
        for name in ("late", "early"):
            await checkpoints.load(conn, name)
        await checkpoints.advance(conn, "early", was=Position(0), now=Position(1))
    with pytest.raises(CheckpointSuperseded, match="late, early"):
        async with made.engine.begin() as conn:
            await checkpoints.advance(conn, "late", "early", was=Position(0), now=Position(2))
    async with made.engine.connect() as conn:
        assert [await checkpoints.load(conn, name) for name in ("late", "early")] == [0, 1]
