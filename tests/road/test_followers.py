"""Tests of ledger followers (dispatcher, projector): one replica leads, and an event that one follower cannot process
does not stop the others.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from hashlib import sha256

import redis
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from structlog.testing import capture_logs

from control_plane.commands.access import issue_first_key
from control_plane.dispatcher.derive import Timing
from control_plane.dispatcher.dispatch import Dispatcher
from control_plane.dispatcher.dispatcher_program import ledger_dsn
from control_plane.following.wake import Waiter
from control_plane.handle import Decision, Transaction, database_time
from control_plane.histories import allocation_history
from control_plane.origin import Origin
from control_plane.projector.live import keep_live
from control_plane.wiring import Plane, plane
from events.allocations import AllocationFact, AllocationReleased
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.append import Change, append
from events.ledger.connection import ledger_connection
from events.ledger.tail import Batch, Tail
from events.values import AllocationId, Position, new_uuid, stream_of_allocation
from read_models.projections import PROJECTIONS
from tests.api.node import admit, allocate
from tests.servers.plane import RunningPlane, settings_for
from tests.servers.postgres import Database
from tests.waiting import until

Clock = Callable[[AsyncConnection], Awaitable[datetime]]


async def an_hour_later(conn: AsyncConnection) -> datetime:
    return await database_time(conn) + timedelta(hours=1)


@asynccontextmanager
async def unreachable_redis_plane(database: Database) -> AsyncIterator[Plane]:
    """Control plane without a reachable Redis, which polls instead of receiving wake-ups."""
    async with plane(settings_for(database, "redis://127.0.0.1:1", 1, 1)) as made:
        yield made


class SynchronizedTail(Tail):
    """Ledger reader that returns its first batch only when another reader has read the same batch."""

    def __init__(self, dsn: str, barrier: asyncio.Barrier) -> None:
        super().__init__(dsn)
        self._barrier: asyncio.Barrier | None = barrier

    async def batch(self, after: Position, limit: int) -> Batch:
        batch = await super().batch(after, limit)
        barrier, self._barrier = self._barrier, None
        if barrier is not None:
            await barrier.wait()
        return batch


async def test_two_concurrent_projectors_of_one_read_model_write_each_event_once(database: Database) -> None:
    async with unreachable_redis_plane(database) as made:
        await made.handle(issue_first_key("test", sha256(b"key").hexdigest()))
        barrier = asyncio.Barrier(2)
        allocations = PROJECTIONS["allocations"]
        runners = [
            asyncio.ensure_future(
                keep_live(made.engine, SynchronizedTail(ledger_dsn(made), barrier), {allocations: Waiter()})
            )
            for _ in range(2)
        ]
        try:
            with capture_logs() as lines:
                while not any(line["event"] == "projection_restarted_after_error" for line in lines):
                    await _run_briefly(runners)
            assert [line["event"] for line in lines] == ["projection_restarted_after_error"], (
                "exactly one runner restarted"
            )
            assert await _written_rows(made) == 2
            await made.handle(issue_first_key("other", sha256(b"other").hexdigest()))
            while await _written_rows(made) < 3:
                await _run_briefly(runners)
        finally:
            for runner in runners:
                runner.cancel()
            ends = await asyncio.gather(*runners, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * 2
        assert await _written_rows(made) == 3


async def _run_briefly(runners: Sequence[asyncio.Future[None]]) -> None:
    """Let the followers run for 20 ms, and raise the exception of a follower that ended."""
    done, _ = await asyncio.wait(runners, timeout=0.02)
    for runner in done:
        runner.result()


async def _written_rows(made: Plane) -> int:
    """Return the number of rows in the read model of timelines (`read.story`)."""
    async with made.engine.connect() as conn:
        return int(await conn.scalar(sa.text("select count(*) from read.story")) or 0)


async def test_two_commands_that_lock_database_rows_in_opposite_order_both_succeed(
    database: Database,
) -> None:
    async with unreachable_redis_plane(database) as made:
        async with made.engine.begin() as conn:
            await conn.execute(
                sa.text("insert into read.checkpoint (name, position) values ('a', 0), ('b', 0)")
            )
        barrier = asyncio.Barrier(2)

        def locking(first: str, second: str) -> Callable[[Transaction], Awaitable[Decision]]:
            attempts = iter((barrier.wait,))

            async def command(transaction: Transaction) -> Decision:
                lock = sa.text("select 1 from read.checkpoint where name = :name for update")
                await transaction.conn.execute(lock, {"name": first})
                for wait in attempts:
                    await wait()
                await transaction.conn.execute(lock, {"name": second})
                cause = Origin("test", "test", new_uuid()).at(transaction.now)
                return Decision((), cause, "done")

            return command

        answers = await asyncio.gather(made.handle(locking("a", "b")), made.handle(locking("b", "a")))
        assert list(answers) == ["done", "done"]


async def fire(dispatcher: Dispatcher, engine: AsyncEngine, allocation: AllocationId) -> None:
    """Fire the timer of an allocation, if it has one, as soon as the running dispatcher, which sets this timer, has
    released its lock on it.
    """
    stream = stream_of_allocation(allocation)
    exists = sa.text("select exists (select from work.timer where stream_id = :stream)")
    async with asyncio.timeout(20), engine.connect() as conn:
        while not await dispatcher.fire_timer(engine, stream):
            if not await conn.scalar(exists, {"stream": stream}):
                return


async def test_allocation_deadline_fires_only_by_its_timer_and_not_while_events_are_evaluated(
    running_plane: RunningPlane,
) -> None:
    admit(running_plane, "n1")
    allocation = AllocationId(allocate(running_plane).json()["id"])
    async with plane(running_plane.settings, clock=an_hour_later) as made:
        dispatcher = Dispatcher(made.handle, Timing(made.settings.unreachable_after))
        async with made.engine.begin() as conn:
            due = await dispatcher.evaluate(await _history(conn, allocation), await made.handle.clock(conn))
            await dispatcher.write(conn, due)
        assert _state(running_plane, allocation) == "placed"
        await fire(dispatcher, made.engine, allocation)
    assert _state(running_plane, allocation) == "failed"


def _state(running_plane: RunningPlane, allocation: AllocationId) -> str:
    return str(running_plane.client().get(f"/allocations/{allocation}").json()["state"])


async def _history(conn: AsyncConnection, allocation: AllocationId) -> Sequence[Recorded[AllocationFact]]:
    return await allocation_history(conn, allocation)


async def test_allocation_with_an_inconsistent_history_is_parked_and_other_allocations_continue(
    running_plane: RunningPlane,
) -> None:
    admit(running_plane, "n1", slots=2)
    broken = AllocationId(allocate(running_plane).json()["id"])
    async with plane(running_plane.settings) as made, made.engine.begin() as conn:
        cause = Origin("test", "test", new_uuid()).at(await database_time(conn))
        inconsistent: Fact = AllocationReleased(broken)
        change = Change(stream_of_allocation(broken), 3, (inconsistent,))
        await append(await ledger_connection(conn), (change,), cause)
    parked = "select stream_id from work.parked"
    until(lambda: running_plane.rows(parked) == [(stream_of_allocation(broken),)], "the stream is parked")
    running_plane.rows("update work.timer set due_at = clock_timestamp() returning 1")
    other = allocate(running_plane).json()["id"]
    sent = "select 1 from work.task where allocation_id = %(other)s and state = 'sent'"
    until(lambda: bool(running_plane.rows(sent, other=other)), "the order of the other allocation is sent")


def test_event_of_a_newer_release_stops_the_ledger_followers_and_not_the_api_or_the_restoration_of_redis(
    running_plane: RunningPlane,
) -> None:
    admit(running_plane, "n1")
    unknown_event = {
        "event_id": str(new_uuid()),
        "stream_id": "key-k",
        "version": 1,
        "type": "key.unknown",
        "schema_version": 1,
        "data": '{"key_id":"k","key_sha256":"s","name":"n","role":"admin"}',
        "actor": "test",
        "reason": "test",
        "correlation_id": str(new_uuid()),
        "observed_at": "2026-03-01T12:00:00Z",
    }
    running_plane.rows("select ledger.append(%(events)s::jsonb)", events=json.dumps([unknown_event]))
    assert allocate(running_plane).status_code == 202
    with redis.Redis.from_url(running_plane.redis.url) as admin:
        admin.flushall()
        until(lambda: bool(admin.exists("sliceplane:restored")), "Redis is restored by the same program")
    assert running_plane.rows("select 1 from work.task") == []
    running_plane.rows(
        "update ledger.event set type = 'access.key_issued' where type = 'key.unknown' returning 1"
    )
    until(
        lambda: running_plane.rows("select state from work.task") == [("sent",)], "the dispatcher continues"
    )
