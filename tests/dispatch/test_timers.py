"""Tests that timers fire for streams that this release supports, and that timers of streams of a different release are
kept.
"""

import asyncio

from control_plane.dispatcher import outbox
from control_plane.dispatcher.derive import Timing
from control_plane.dispatcher.dispatch import Dispatcher
from control_plane.handle import database_time
from control_plane.wiring import Plane
from events.ledger.connection import ledger_connection
from events.values import StreamId
from tests.dispatch.given import Given


async def test_two_dispatchers_that_fire_timers_concurrently_leave_no_due_timer(
    made: Plane, given: Given
) -> None:
    given.rows(
        """insert into work.timer (stream_id, due_at)
        select 'allocation-' || number, clock_timestamp() from generate_series(1, 250) as number returning 1"""
    )
    dispatchers = [Dispatcher(made.handle, Timing(made.settings.unreachable_after)) for _ in range(2)]
    await asyncio.gather(*(each.fire_due_timers(made.engine) for each in dispatchers))
    assert given.rows("select 1 from work.timer") == []


async def test_timers_that_only_a_different_release_supports_do_not_delay_other_timers(
    made: Plane, given: Given
) -> None:
    given.rows(
        """insert into work.timer (stream_id, due_at)
        select stream, clock_timestamp() - make_interval(secs => ago)
        from (values ('migration-1', 3), ('migration-2', 2), ('allocation-1', 1)) as timer(stream, ago)
        returning 1"""
    )
    async with made.engine.connect() as conn:
        overdue = await outbox.overdue(await ledger_connection(conn), await database_time(conn), 1)
    assert overdue == [StreamId("allocation-1")]
    for stream in overdue:
        await Dispatcher(made.handle, Timing(made.settings.unreachable_after)).fire_timer(made.engine, stream)
    remaining = given.rows("select stream_id from work.timer order by stream_id")
    assert remaining == [("migration-1",), ("migration-2",)]
