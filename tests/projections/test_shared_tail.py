"""Reader of the newest events that the live followers of the projector share: each follower gets every event, and most
events are read from the ledger once.
"""

from collections.abc import AsyncIterator

import psycopg
import pytest

from control_plane.projector.shared_tail import SharedTail
from events.ledger.tail import Batch
from events.values import Position
from tests.ledger.given import committed, on
from tests.servers.postgres import Database


class CountingTail(SharedTail):
    """Shared reader of the newest events that counts its reads of the ledger."""

    reads = 0

    async def _batch(self, conn: psycopg.AsyncConnection, after: Position, limit: int) -> Batch:
        self.reads += 1
        return await super()._batch(conn, after, limit)


@pytest.fixture
async def tail(database: Database) -> AsyncIterator[CountingTail]:
    tail = CountingTail(database.app_dsn, "test tail")
    yield tail
    await tail.close()


async def test_second_follower_of_a_shared_tail_gets_the_events_that_the_first_one_read_in_batches_of_its_own_size(
    tail: CountingTail, conn: psycopg.AsyncConnection
) -> None:
    recorded = await committed(conn, on("slot-a", 0), on("slot-b", 0), on("slot-c", 0))
    first = await tail.batch(Position(0), 10)
    part = await tail.batch(Position(0), 2)
    rest = await tail.batch(part.final, 2)
    assert (first.events, first.final) == (recorded, 3)
    assert (part.events, part.final) == (recorded[:2], 2)
    assert (rest.events, rest.final) == (recorded[2:], 3)
    assert tail.reads == 1


async def test_follower_at_the_end_of_the_cached_events_of_a_shared_tail_gets_newer_events(
    tail: CountingTail, conn: psycopg.AsyncConnection
) -> None:
    await committed(conn, on("slot-a", 0))
    read = await tail.batch(Position(0), 10)
    newer = await committed(conn, on("slot-b", 0))
    assert (await tail.batch(read.final, 10)).events == newer


async def test_follower_before_the_cached_events_of_a_shared_tail_gets_all_events_after_its_position(
    tail: CountingTail, conn: psycopg.AsyncConnection
) -> None:
    recorded = await committed(conn, on("slot-a", 0), on("slot-b", 0))
    await tail.batch(Position(1), 10)
    assert (await tail.batch(Position(0), 10)).events == recorded


async def test_shared_tail_that_lost_its_connection_reads_the_events_again(
    tail: CountingTail, conn: psycopg.AsyncConnection
) -> None:
    recorded = await committed(conn, on("slot-a", 0))
    await tail.batch(Position(0), 10)
    await tail.close()
    assert (await tail.batch(Position(0), 10)).events == recorded
    assert tail.reads == 2
