"""Followers of the log: one leads, none is stopped by what it cannot deal with, and time is nobody's business there."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from hashlib import sha256

import redis
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection
from structlog.testing import capture_logs

from control_plane.commands.access import issue_key
from control_plane.dispatch import Dispatcher
from control_plane.followers import ledger_dsn
from control_plane.handle import Decision, Transaction, database_time
from control_plane.histories import allocation_history
from control_plane.origin import Origin
from control_plane.projector.live import keep_live
from control_plane.wake import Waiter
from control_plane.wiring import Plane, plane
from events.allocations import AllocationFact, AllocationReleased
from events.append import Change, append
from events.connection import ledger_connection
from events.envelope import Recorded
from events.facts import Fact
from events.tail import Batch, Tail
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
async def a_plane(database: Database) -> AsyncIterator[Plane]:
    """Nobody's Redis: a wake-up that is lost costs a poll."""
    async with plane(settings_for(database, "redis://127.0.0.1:1", 1, 1)) as made:
        yield made


class InStep(Tail):
    """Gives its first batch when its twin has the same one."""

    def __init__(self, dsn: str, met: asyncio.Barrier) -> None:
        super().__init__(dsn)
        self._met: asyncio.Barrier | None = met

    async def batch(self, after: Position, limit: int) -> Batch:
        batch = await super().batch(after, limit)
        met, self._met = self._met, None
        if met is not None:
            await met.wait()
        return batch


async def test_of_two_runners_each_event_is_dealt_with_by_one(database: Database) -> None:
    async with a_plane(database) as made:
        await made.handle(issue_key("test", "admin", sha256(b"key").hexdigest()))
        met = asyncio.Barrier(2)
        stories = PROJECTIONS["allocations"]
        runners = [
            asyncio.ensure_future(keep_live(made.engine, InStep(ledger_dsn(made), met), Waiter(), stories))
            for _ in range(2)
        ]
        try:
            with capture_logs() as lines:
                while not any(line["event"] == "projection_restarts" for line in lines):
                    await _all_run(runners)
            assert [line["event"] for line in lines] == ["projection_restarts"], "one lost, and did nothing"
            assert await _told(made) == 1
            await made.handle(issue_key("other", "admin", sha256(b"other").hexdigest()))
            while await _told(made) < 2:
                await _all_run(runners)
        finally:
            for runner in runners:
                runner.cancel()
            ends = await asyncio.gather(*runners, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * 2
        assert await _told(made) == 2


async def _all_run(runners: Sequence[asyncio.Future[None]]) -> None:
    """For a moment, and raise what ended any of them."""
    done, _ = await asyncio.wait(runners, timeout=0.02)
    for runner in done:
        runner.result()


async def _told(made: Plane) -> int:
    """How many rows were written for the events of this log."""
    async with made.engine.connect() as conn:
        return int(await conn.scalar(sa.text("select count(*) from read.story")) or 0)


async def test_commands_that_lock_in_opposite_orders_both_succeed(database: Database) -> None:
    async with a_plane(database) as made:
        async with made.engine.begin() as conn:
            await conn.execute(
                sa.text("insert into read.checkpoint (name, position) values ('a', 0), ('b', 0)")
            )
        met = asyncio.Barrier(2)

        def locking(first: str, second: str) -> Callable[[Transaction], Awaitable[Decision]]:
            attempts = iter((met.wait,))

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


async def test_news_that_comes_after_the_deadline_is_heard_before_the_deadline_fires(
    running_plane: RunningPlane,
) -> None:
    admit(running_plane, "n1")
    allocation = AllocationId(allocate(running_plane).json()["id"])
    async with plane(running_plane.settings, clock=an_hour_later) as made:
        dispatcher = Dispatcher(made.handle, made.settings.silent_after)
        async with made.engine.begin() as conn:
            looks = await dispatcher.look(await _history(conn, allocation), await made.handle.clock(conn))
            await dispatcher.write(conn, looks)
        assert _state(running_plane, allocation) == "placed"
        await dispatcher.ring(made.engine, stream_of_allocation(allocation))
    assert _state(running_plane, allocation) == "failed"


def _state(running_plane: RunningPlane, allocation: AllocationId) -> str:
    return str(running_plane.client().get(f"/allocations/{allocation}").json()["state"])


async def _history(conn: AsyncConnection, allocation: AllocationId) -> Sequence[Recorded[AllocationFact]]:
    return await allocation_history(conn, allocation)


async def test_an_allocation_that_makes_no_sense_is_parked_and_the_others_go_on(
    running_plane: RunningPlane,
) -> None:
    admit(running_plane, "n1", slots=2)
    broken = AllocationId(allocate(running_plane).json()["id"])
    async with plane(running_plane.settings) as made, made.engine.begin() as conn:
        cause = Origin("test", "test", new_uuid()).at(await database_time(conn))
        nonsense: Fact = AllocationReleased(broken)
        change = Change(stream_of_allocation(broken), 2, (nonsense,))
        await append(await ledger_connection(conn), (change,), cause)
    parked = "select stream_id from work.parked"
    until(lambda: running_plane.rows(parked) == [(stream_of_allocation(broken),)], "it is parked")
    running_plane.rows("update work.timer set due_at = clock_timestamp() returning 1")
    other = allocate(running_plane).json()["id"]
    sent = "select 1 from work.task where allocation_id = %(other)s and state = 'sent'"
    until(lambda: bool(running_plane.rows(sent, other=other)), "the other's order is sent")


def test_a_fact_of_a_newer_release_stops_followers_and_nothing_else(running_plane: RunningPlane) -> None:
    admit(running_plane, "n1")
    of_tomorrow = {
        "event_id": str(new_uuid()),
        "stream_id": "key-k",
        "version": 1,
        "type": "key.of_tomorrow",
        "schema_version": 1,
        "data": '{"key_id":"k","key_sha256":"s","name":"n","role":"admin"}',
        "actor": "test",
        "why": "test",
        "correlation_id": str(new_uuid()),
        "observed_at": "2026-03-01T12:00:00Z",
    }
    running_plane.rows("select ledger.append(%(events)s::jsonb)", events=json.dumps([of_tomorrow]))
    assert allocate(running_plane).status_code == 202
    with redis.Redis.from_url(running_plane.redis.url) as admin:
        admin.flushall()
        until(lambda: bool(admin.exists("sliceplane:restored")), "Redis is restored by the same program")
    assert running_plane.rows("select 1 from work.task") == []
    running_plane.rows(
        "update ledger.event set type = 'access.key_issued' where type = 'key.of_tomorrow' returning 1"
    )
    until(lambda: running_plane.rows("select state from work.task") == [("sent",)], "dispatch goes on")
