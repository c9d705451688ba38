"""Tests of the ledger position at a time: it is that of the last event recorded up to this time, even if an appender
delays between reading the clock and drawing its position.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from events.ledger.append import append
from events.ledger.cursors import last_up_to
from events.ledger.moments import SLACK, Settled, positions_at, settled
from events.values import Position
from tests.ledger.given import because, committed, on
from tests.servers.postgres import Connect, Database

BEGAN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
_FENCE = "select pg_advisory_xact_lock_shared(21328, 1)"
_DRAW = "select nextval('ledger.position_seq')"
_INSERT = """
insert into ledger.event values (%s, gen_random_uuid(), 'node-n' || %s, 1, 'node.registered', 1, null, 'key:x', 'x',
  gen_random_uuid(), null, null, now(), %s, 1, '{}', '')
"""
SECONDS = st.floats(0, SLACK.total_seconds() - 1, allow_nan=False).map(lambda s: timedelta(seconds=s))


@contextmanager
def written(database: Database, log: dict[int, datetime]) -> Iterator[None]:
    """Write events with these positions and recording times to the ledger, and delete them when the context ends."""
    with psycopg.connect(database.admin_dsn, autocommit=True) as admin:
        admin.cursor().executemany(_INSERT, [(each, each, time) for each, time in log.items()])
        try:
            yield
        finally:
            admin.execute("delete from ledger.event")


async def positions_in(database: Database, moments: list[datetime]) -> list[int]:
    async with await psycopg.AsyncConnection.connect(database.app_dsn) as conn:
        return [*await positions_at(conn, moments)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.integers(1, 4), st.floats(0, 60).map(lambda s: timedelta(seconds=s)), SECONDS)
    ),
    offsets=st.lists(st.floats(-10, 400), max_size=4),
)
def test_ledger_position_at_a_time_is_that_of_the_last_event_recorded_up_to_this_time(
    database: Database, steps: list[tuple[int, timedelta, timedelta]], offsets: list[float]
) -> None:
    """The events have positions in order, with gaps. Each recording time precedes the drawing of its position by less
    than `SLACK`.
    """
    log: dict[int, datetime] = {}
    position, drawn_at = 0, BEGAN
    for gap, pause, delay in steps:
        position, drawn_at = position + gap, drawn_at + pause
        log[position] = drawn_at - delay
    moments = [BEGAN + timedelta(seconds=each) for each in offsets] + list(log.values())
    exact = [max((each for each, time in log.items() if time <= moment), default=0) for moment in moments]
    with written(database, log):
        assert asyncio.run(positions_in(database, moments)) == exact


async def test_ledger_up_to_a_time_counts_as_final_once_every_append_that_may_record_an_earlier_time_has_ended(
    database: Database, connect: Connect
) -> None:
    appender, reader = await connect(), await connect()
    await committed(appender, on("node-n1", 0))
    async with await psycopg.AsyncConnection.connect(database.admin_dsn) as slow:
        await slow.execute("set role sliceplane_owner")
        [began] = await one(slow, "select xact_start from pg_stat_activity where pid = pg_backend_pid()")
        await slow.execute(_FENCE)
        [read] = await one(slow, "select clock_timestamp()")
        await committed(appender, on("node-n2", 0))
        held_back = await settled_now(reader)
        assert held_back.before is None or held_back.before <= began
        [position] = await one(slow, _DRAW)
        await slow.execute(_INSERT, [position, position, read])
        await slow.commit()
    free = await settled_now(reader)
    assert free.before is not None
    assert read < free.before <= free.now
    found = await positions_at(reader, [read, read - timedelta(microseconds=1)])
    assert [*map(int, found)] == [position, 1]


async def test_open_append_keeps_the_ledger_from_being_final_only_for_times_after_the_begin_of_its_transaction(
    connect: Connect,
) -> None:
    appender, reader = await connect(), await connect()
    before = (await settled_now(reader)).now
    [began] = await one(appender, "select now()")
    await append(appender, [on("node-n1", 0)], because())
    held_back = await settled_now(reader)
    assert held_back.before == began > before
    await appender.commit()
    free = await settled_now(reader)
    assert free.before == free.now


async def test_ledger_position_at_a_time_that_counts_as_final_never_changes_while_appends_continue(
    connect: Connect, database: Database
) -> None:
    """Eight processes append, some of which roll back; one appender delays between reading the clock and drawing its
    position; two readers query.
    """
    answers: list[tuple[datetime, int]] = []
    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(query_settled_times(await connect(), answers)) for _ in range(2)]
        for number in range(8):
            group.create_task(append_until_readers_end(await connect(), f"node-n{number}", readers))
        group.create_task(append_with_delay(database))
    truth = await connect()
    for moment, answered in answers:
        found = await truth.execute(
            "select max(position) from ledger.event where recorded_at <= %s", [moment]
        )
        assert await found.fetchone() == (answered or None,), moment


async def append_until_readers_end(
    conn: psycopg.AsyncConnection, stream: str, readers: list[asyncio.Task[None]]
) -> None:
    version = 0
    while not all(each.done() for each in readers):
        if version % 7 == 3:
            await append(conn, [on(stream, version)], because())
            await conn.rollback()
        await committed(conn, on(stream, version))
        version += 1


async def append_with_delay(database: Database) -> None:
    async with await psycopg.AsyncConnection.connect(database.admin_dsn) as slow:
        for _ in range(5):
            await slow.execute(_FENCE)
            [read] = await one(slow, "select clock_timestamp()")
            await slow.execute("select pg_sleep(0.05)")
            [position] = await one(slow, _DRAW)
            await slow.execute(_INSERT, [position, position, read])
            await slow.commit()


async def query_settled_times(conn: psycopg.AsyncConnection, answers: list[tuple[datetime, int]]) -> None:
    """Repeatedly take the current time, wait until no event with an earlier time can be committed any more, and query
    the ledger position at this time.
    """
    for _ in range(20):
        moment = (await settled_now(conn)).now
        while (before := (await settled_now(conn)).before) is None or before <= moment:
            await asyncio.sleep(0)
        [position] = await positions_at(conn, [moment])
        answers.append((moment, position))


async def test_last_event_up_to_a_ledger_position_without_event_is_the_event_before_this_position(
    connect: Connect,
) -> None:
    conn = await connect()
    [first] = await committed(conn, on("node-n1", 0))
    assert await last_up_to(conn, Position(0)) is None
    last = await last_up_to(conn, Position(first.position + 5))
    assert last is not None
    assert (last.position, last.recorded_at) == (first.position, first.recorded_at)


async def one(conn: psycopg.AsyncConnection, query: str) -> tuple[datetime]:
    row = await (await conn.execute(query)).fetchone()
    assert row is not None
    return row


async def settled_now(conn: psycopg.AsyncConnection) -> Settled:
    """Return the current time and the time before which all recorded events are committed. End the open transaction
    first, because the values depend on a new one.
    """
    await conn.rollback()
    return await settled(conn)
