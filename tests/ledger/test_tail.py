import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from control_plane.schema import migrate
from deploy.embedded.postgres import running_postgres
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.append import append
from events.ledger.fitness import UnfitServer
from events.ledger.tail import Batch, Tail
from events.values import Position
from tests.ledger.given import because, committed, on, plain
from tests.servers.postgres import Connect, Database, server_folder

START = Position(0)


@pytest.fixture
async def tail(database: Database) -> AsyncIterator[Tail]:
    tail = Tail(database.app_dsn, "test tail")
    yield tail
    await tail.close()


def content(batch: Batch) -> tuple[tuple[Recorded[Fact], ...], int]:
    """Return the events and the final position of a batch, to compare batches that were read at different times."""
    return batch.events, batch.final


async def test_empty_ledger_has_the_final_position_zero(tail: Tail) -> None:
    assert content(await tail.batch(START, 10)) == ((), 0)
    assert await tail.final() == 0


async def test_batch_of_a_ledger_reader_ends_at_its_limit_and_the_next_batch_continues_there(
    tail: Tail, conn: psycopg.AsyncConnection
) -> None:
    recorded = await committed(conn, on("slot-a", 0), on("slot-b", 0), on("slot-c", 0))

    first = await tail.batch(START, 2)
    second = await tail.batch(first.final, 2)

    assert (first.events, second.events) == (recorded[:2], recorded[2:])
    assert (first.final, second.final, await tail.final()) == (2, 3, 3)


async def test_events_after_an_open_append_are_held_back_from_readers_until_the_append_ends(
    tail: Tail, connect: Connect
) -> None:
    slow, fast = await connect(), await connect()
    (first,) = await committed(fast, on("slot-a", 0))
    (late,) = await append(slow, [on("slot-b", 0)], because())
    (early,) = await committed(fast, on("slot-c", 0))

    assert content(await tail.batch(START, 10)) == ((first,), 1)
    assert await tail.final() <= 1

    await slow.commit()
    assert content(await tail.batch(START, 10)) == ((first, late, early), 3)
    assert await tail.final() == 3


async def test_position_gap_is_recorded_as_dead_once_the_append_that_drew_it_is_rolled_back(
    tail: Tail, connect: Connect, conn: psycopg.AsyncConnection
) -> None:
    slow, fast = await connect(), await connect()
    await append(slow, [on("slot-b", 0)], because())
    (after,) = await committed(fast, on("slot-c", 0))
    assert content(await tail.batch(START, 10)) == ((), 0)

    await slow.rollback()

    assert content(await tail.batch(START, 10)) == ((after,), 2)
    dead = await (await conn.execute("select position, seen_by from ledger.dead_position")).fetchall()
    assert dead == [(1, "test tail")]


async def test_reader_of_final_positions_finds_the_same_positions_and_gaps_as_a_reader_of_events(
    tail: Tail, connect: Connect, conn: psycopg.AsyncConnection
) -> None:
    slow, fast = await connect(), await connect()
    await committed(fast, on("slot-a", 0), on("slot-b", 0), on("slot-c", 0))
    assert [await tail.next_final(Position(after), 2) for after in (0, 1, 2, 3)] == [2, 3, 3, 3]

    await append(slow, [on("slot-d", 0)], because())
    await committed(fast, on("slot-e", 0))
    assert await tail.next_final(Position(3), 10) == 3

    await slow.rollback()

    assert await tail.next_final(Position(3), 10) == 5
    dead = await (await conn.execute("select position, seen_by from ledger.dead_position")).fetchall()
    assert dead == [(4, "test tail")]


async def test_recording_a_position_gap_as_dead_waits_for_appends_open_at_that_time_and_not_for_later_appends(
    tail: Tail, connect: Connect
) -> None:
    old, younger, youngest, watcher = [await connect() for _ in range(4)]
    await append(old, [on("slot-a", 0)], because())
    assert (await tail.batch(START, 10)).final == 0
    await append(younger, [on("slot-b", 0)], because())
    await old.rollback()
    noting = asyncio.create_task(tail.batch(START, 10))
    await until_a_gap_is_being_recorded(watcher)

    await append(youngest, [on("slot-c", 0)], because())
    await younger.commit()

    assert (await noting).final == 1
    await youngest.commit()


async def until_a_gap_is_being_recorded(conn: psycopg.AsyncConnection) -> None:
    await conn.set_autocommit(True)
    query = "select 1 from pg_stat_activity where state = 'active' and wait_event = 'PgSleep'"
    while await (await conn.execute(query)).fetchone() is None:
        await asyncio.sleep(0.002)


async def test_position_that_one_ledger_reader_recorded_as_dead_is_skipped_by_every_reader(
    tail: Tail, database: Database, conn: psycopg.AsyncConnection
) -> None:
    await append(conn, [on("slot-a", 0)], because())
    await conn.rollback()
    recorded = await committed(conn, on("slot-a", 0))
    other = Tail(database.app_dsn)

    assert content(await tail.batch(START, 10)) == content(await other.batch(START, 10)) == (recorded, 2)
    await other.close()


async def test_ledger_position_of_an_open_append_cannot_be_recorded_as_dead(connect: Connect) -> None:
    slow, faulty = await connect(), await connect()
    await append(slow, [on("slot-a", 0)], because())

    with pytest.raises(psycopg.DatabaseError) as refused:
        await faulty.execute("select ledger.note_dead('{1}', 'faulty')")

    assert refused.value.sqlstate == "SP007"


@pytest.mark.parametrize("position", [0, 2])
async def test_ledger_position_that_was_never_drawn_cannot_be_recorded_as_dead(
    conn: psycopg.AsyncConnection, position: int
) -> None:
    await committed(conn, on("slot-a", 0))
    with pytest.raises(psycopg.DatabaseError) as refused:
        await conn.execute("select ledger.note_dead(array[%s]::bigint[], 'faulty')", [position])
    assert refused.value.sqlstate == "SP006"


async def test_ledger_position_with_an_event_is_not_recorded_as_dead(conn: psycopg.AsyncConnection) -> None:
    await committed(conn, on("slot-a", 0))
    row = await (await conn.execute("select ledger.note_dead('{1}', 'faulty')")).fetchone()
    assert row == ([],)


async def test_ledger_position_reported_as_drawn_is_never_drawn_later(database: Database) -> None:
    """Concurrent sessions draw ledger positions. Each position that is reported as drawn must be lower than the
    position that the comparing session draws afterwards.
    """
    drawing = "select count(nextval('ledger.position_seq')) from generate_series(1, 50000)"
    comparing = (
        "select count(*) filter (where reported >= drawn) from (select ledger.drawn() as reported,"
        " nextval('ledger.position_seq') as drawn from generate_series(1, 50000) offset 0) each"
    )
    finished = asyncio.Event()

    async def keep_drawing() -> None:
        async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as conn:
            while not finished.is_set():
                await conn.execute(drawing)

    async def compare() -> int:
        async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as conn:
            violations = [await (await conn.execute(comparing)).fetchone() for _ in range(10)]
        finished.set()
        return sum(each[0] for each in violations if each is not None)

    async with asyncio.TaskGroup() as group:
        answer = group.create_task(compare())
        for _ in range(3):
            group.create_task(keep_drawing())
    assert answer.result() == 0


async def test_event_that_fills_a_position_gap_before_the_gap_is_recorded_as_dead_is_read(
    tail: Tail, database: Database, conn: psycopg.AsyncConnection
) -> None:
    """A superuser bypasses the fence, and writes the missing event after the reader has found the gap and before it
    records the gap as dead.
    """
    (first,) = await committed(conn, on("slot-a", 0))
    async with (
        await psycopg.AsyncConnection.connect(database.admin_dsn) as bypassing,
        await psycopg.AsyncConnection.connect(database.admin_dsn) as blocking,
    ):
        await bypassing.execute(COPIED)
        await blocking.execute("lock table ledger.dead_position in access exclusive mode")
        reading = asyncio.create_task(tail.batch(START, 10))
        await until_a_session_waits_for_a_lock(conn)
        await bypassing.commit()
        await blocking.commit()
        seen = await reading

    assert content(seen) == ((first,), 1)
    assert [each.position for each in (await tail.batch(START, 10)).events] == [1, 2]


COPIED = """
insert into ledger.event select (copied.event).* from (
  select jsonb_populate_record(e, jsonb_build_object(
    'position', nextval('ledger.position_seq'), 'event_id', gen_random_uuid(), 'stream_id', 'slot-b')) as event
    from ledger.event e offset 0) copied
"""


async def until_a_session_waits_for_a_lock(conn: psycopg.AsyncConnection) -> None:
    await conn.set_autocommit(True)
    query = "select 1 from pg_locks where not granted and relation = 'ledger.dead_position'::regclass"
    while await (await conn.execute(query)).fetchone() is None:
        await asyncio.sleep(0.002)


async def test_repeatable_read_transaction_is_denied_recording_a_ledger_position_as_dead(
    conn: psycopg.AsyncConnection,
) -> None:
    await committed(conn, on("slot-a", 0))
    await conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    with pytest.raises(psycopg.DatabaseError) as refused:
        await conn.execute("select ledger.note_dead('{1}', 'faulty')")
    assert refused.value.sqlstate == "SP006"


async def test_ledger_reader_reconnects_after_its_connection_is_terminated(
    tail: Tail, database: Database, conn: psycopg.AsyncConnection
) -> None:
    recorded = await committed(conn, on("slot-a", 0))
    await tail.batch(START, 10)
    with psycopg.connect(database.admin_dsn, autocommit=True) as admin:
        admin.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and application_name = 'test tail'"
        )

    with pytest.raises(psycopg.OperationalError):
        await tail.batch(START, 10)

    assert (await tail.batch(START, 10)).events == recorded


async def test_ledger_reader_on_an_unfit_postgres_server_raises_unfit_server(database: Database) -> None:
    with pytest.raises(UnfitServer):
        await Tail(database.admin_dsn).batch(START, 10)


async def test_ledger_position_reported_as_final_stays_final_after_a_crash_reverts_drawn_positions(
    postgres_programs: Path,
) -> None:
    """The server need not flush the WAL of a rolled-back append, so the crash reverts the positions that this append
    drew.
    """
    settings = {"fsync": "off", "wal_writer_delay": "10s"}
    with (
        server_folder() as folder,
        running_postgres(
            folder / "pg", folder / "run", settings=settings, programs=postgres_programs
        ) as server,
    ):
        migrate(server.admin_dsn)
        tail = Tail(server.app_dsn)
        async with await psycopg.AsyncConnection.connect(server.app_dsn) as conn:
            await committed(conn, on("slot-a", 0, *[plain()] * 30))
            # The sequence was logged 32 positions in advance; these draws make the server log the next ones.
            await append(conn, [on("slot-b", 0, *[plain()] * 5)], because())
            await conn.rollback()
            final = await tail.final()
            assert server.process is not None
            server.process.kill()
            server.process.wait()
        await tail.close()
        server.start()

        async with await psycopg.AsyncConnection.connect(server.app_dsn) as conn:
            (recorded,) = await committed(conn, on("slot-c", 0))

    assert recorded.position > final >= 30
