"""Timers ring for streams that this release knows how to go on with; another release's keep theirs."""

import asyncio

from control_plane import outbox
from control_plane.dispatch import Dispatcher
from control_plane.handle import database_time
from control_plane.wiring import Plane
from events.connection import ledger_connection
from events.values import StreamId
from tests.dispatch.given import Given


async def test_all_whose_moment_has_come_ring_in_one_go_however_many_and_whoever_else_rings(
    made: Plane, given: Given
) -> None:
    given.rows(
        """insert into work.timer (stream_id, due_at)
        select 'allocation-' || number, clock_timestamp() from generate_series(1, 250) as number returning 1"""
    )
    dispatchers = [Dispatcher(made.handle, made.settings.silent_after) for _ in range(2)]
    await asyncio.gather(*(each.ring_all(made.engine) for each in dispatchers))
    assert given.rows("select 1 from work.timer") == []


async def test_timers_of_another_release_hold_up_no_other(made: Plane, given: Given) -> None:
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
        await Dispatcher(made.handle, made.settings.silent_after).ring(made.engine, stream)
    left = given.rows("select stream_id from work.timer order by stream_id")
    assert left == [("migration-1",), ("migration-2",)]
