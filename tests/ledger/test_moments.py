"""A time names the same place in the log for everybody, whoever was slow between the clock and the positions."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from events.append import append
from events.cursors import last_up_to
from events.moments import SLACK, Settled, position_at, settled
from events.values import Position
from tests.ledger.given import because, committed, on
from tests.servers.postgres import Connect, Database

BEGAN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
_FENCE = "select pg_advisory_xact_lock_shared(21328, 1)"
_DRAW = "select nextval('ledger.position_seq')"
_INSERT = """
insert into ledger.event values (%s, gen_random_uuid(), 'node-n' || %s, 1, 'node.expected', 1, null, 'key:x', 'x',
  gen_random_uuid(), null, null, now(), %s, 1, '{}', '')
"""
SECONDS = st.floats(0, SLACK.total_seconds() - 1, allow_nan=False).map(lambda s: timedelta(seconds=s))


@contextmanager
def written(database: Database, log: dict[int, datetime]) -> Iterator[None]:
    """A log with these positions and times."""
    with psycopg.connect(database.admin_dsn, autocommit=True) as admin:
        admin.cursor().executemany(_INSERT, [(each, each, time) for each, time in log.items()])
        try:
            yield
        finally:
            admin.execute("delete from ledger.event")


async def placed(database: Database, moments: list[datetime]) -> list[int]:
    async with await psycopg.AsyncConnection.connect(database.app_dsn) as conn:
        return [await position_at(conn, moment) for moment in moments]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.integers(1, 4), st.floats(0, 60).map(lambda s: timedelta(seconds=s)), SECONDS)
    ),
    asked=st.lists(st.floats(-10, 400), max_size=4),
)
def test_the_place_of_a_time_is_the_last_event_recorded_until_then(
    database: Database, steps: list[tuple[int, timedelta, timedelta]], asked: list[float]
) -> None:
    """Positions are drawn one after the other, with gaps, and each clock was read up to `SLACK` before."""
    log: dict[int, datetime] = {}
    position, drawn_at = 0, BEGAN
    for gap, rest, dawdled in steps:
        position, drawn_at = position + gap, drawn_at + rest
        log[position] = drawn_at - dawdled
    moments = [BEGAN + timedelta(seconds=each) for each in asked] + list(log.values())
    exact = [max((each for each, time in log.items() if time <= moment), default=0) for moment in moments]
    with written(database, log):
        assert asyncio.run(placed(database, moments)) == exact


async def test_a_time_is_settled_when_all_who_may_have_recorded_until_then_have_ended(
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
        hung = await look(reader)
        assert hung.before is None or hung.before <= began
        [position] = await one(slow, _DRAW)
        await slow.execute(_INSERT, [position, position, read])
        await slow.commit()
    free = await look(reader)
    assert free.before is not None
    assert read < free.before <= free.now
    assert await position_at(reader, read) == position
    assert await position_at(reader, read - timedelta(microseconds=1)) == 1


async def test_an_appender_of_the_application_holds_back_only_times_since_it_began(connect: Connect) -> None:
    appender, reader = await connect(), await connect()
    before = (await look(reader)).now
    [began] = await one(appender, "select now()")
    await append(appender, [on("node-n1", 0)], because())
    hung = await look(reader)
    assert hung.before == began > before
    await appender.commit()
    free = await look(reader)
    assert free.before == free.now


async def test_an_answer_given_while_appenders_work_stays_true(connect: Connect, database: Database) -> None:
    """Eight appenders of which some roll back, one that dawdles between the clock and its positions, two readers."""
    answers: list[tuple[datetime, int]] = []
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(asks(await connect(), answers)) for _ in range(2)]
        for number in range(8):
            group.create_task(appends(await connect(), f"node-n{number}", asking))
        group.create_task(dawdles(database))
    truth = await connect()
    for moment, answered in answers:
        found = await truth.execute(
            "select max(position) from ledger.event where recorded_at <= %s", [moment]
        )
        assert await found.fetchone() == (answered or None,), moment


async def appends(conn: psycopg.AsyncConnection, stream: str, asking: list[asyncio.Task[None]]) -> None:
    version = 0
    while not all(each.done() for each in asking):
        if version % 7 == 3:
            await append(conn, [on(stream, version)], because())
            await conn.rollback()
        await committed(conn, on(stream, version))
        version += 1


async def dawdles(database: Database) -> None:
    async with await psycopg.AsyncConnection.connect(database.admin_dsn) as slow:
        for _ in range(5):
            await slow.execute(_FENCE)
            [read] = await one(slow, "select clock_timestamp()")
            await slow.execute("select pg_sleep(0.05)")
            [position] = await one(slow, _DRAW)
            await slow.execute(_INSERT, [position, position, read])
            await slow.commit()


async def asks(conn: psycopg.AsyncConnection, answers: list[tuple[datetime, int]]) -> None:
    """Ask for the present over and over, and take each answer as soon as there is one."""
    for _ in range(20):
        moment = (await look(conn)).now
        while (before := (await look(conn)).before) is None or before <= moment:
            await asyncio.sleep(0)
        answers.append((moment, await position_at(conn, moment)))


async def test_the_last_event_up_to_a_gap_is_the_one_before_it(connect: Connect) -> None:
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


async def look(conn: psycopg.AsyncConnection) -> Settled:
    """In a transaction of its own, as is asked for."""
    await conn.rollback()
    return await settled(conn)
