import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from deploy.embedded.postgres import running_postgres
from deploy.embedded.schema import migrate
from events.append import append
from events.envelope import Recorded
from events.facts import Fact
from events.fitness import UnfitServer
from events.tail import Batch, Tail
from events.values import Position
from tests.ledger.given import because, committed, on, plain
from tests.servers.postgres import Connect, Database, server_folder

START = Position(0)


@pytest.fixture
async def tail(database: Database) -> AsyncIterator[Tail]:
    tail = Tail(database.app_dsn, "the tail of the test")
    yield tail
    await tail.close()


def told(batch: Batch) -> tuple[tuple[Recorded[Fact], ...], int]:
    """All of it but the time."""
    return batch.events, batch.final


async def test_an_empty_log_is_final_at_its_start(tail: Tail) -> None:
    assert told(await tail.batch(START, 10)) == ((), 0)
    assert await tail.final() == 0


async def test_a_batch_ends_at_its_limit_and_the_next_goes_on(
    tail: Tail, conn: psycopg.AsyncConnection
) -> None:
    recorded = await committed(conn, on("slot-a", 0), on("slot-b", 0), on("slot-c", 0))

    first = await tail.batch(START, 2)
    second = await tail.batch(first.final, 2)

    assert (first.events, second.events) == (recorded[:2], recorded[2:])
    assert (first.final, second.final, await tail.final()) == (2, 3, 3)


async def test_events_behind_an_open_append_are_held_back_until_it_ends(tail: Tail, connect: Connect) -> None:
    slow, fast = await connect(), await connect()
    (first,) = await committed(fast, on("slot-a", 0))
    (late,) = await append(slow, [on("slot-b", 0)], because())
    (early,) = await committed(fast, on("slot-c", 0))

    assert told(await tail.batch(START, 10)) == ((first,), 1)
    assert await tail.final() <= 1

    await slow.commit()
    assert told(await tail.batch(START, 10)) == ((first, late, early), 3)
    assert await tail.final() == 3


async def test_a_gap_is_dead_once_its_holders_are_gone(
    tail: Tail, connect: Connect, conn: psycopg.AsyncConnection
) -> None:
    slow, fast = await connect(), await connect()
    await append(slow, [on("slot-b", 0)], because())
    (after,) = await committed(fast, on("slot-c", 0))
    assert told(await tail.batch(START, 10)) == ((), 0)

    await slow.rollback()

    assert told(await tail.batch(START, 10)) == ((after,), 2)
    dead = await (await conn.execute("select position, seen_by from ledger.dead_position")).fetchall()
    assert dead == [(1, "the tail of the test")]


async def test_noting_a_gap_waits_for_the_appends_open_then_and_for_none_begun_later(
    tail: Tail, connect: Connect
) -> None:
    old, younger, youngest, watcher = [await connect() for _ in range(4)]
    await append(old, [on("slot-a", 0)], because())
    assert (await tail.batch(START, 10)).final == 0
    await append(younger, [on("slot-b", 0)], because())
    await old.rollback()
    noting = asyncio.create_task(tail.batch(START, 10))
    await until_a_gap_is_being_noted(watcher)

    await append(youngest, [on("slot-c", 0)], because())
    await younger.commit()

    assert (await noting).final == 1
    await youngest.commit()


async def until_a_gap_is_being_noted(conn: psycopg.AsyncConnection) -> None:
    await conn.set_autocommit(True)
    query = "select 1 from pg_stat_activity where state = 'active' and wait_event = 'PgSleep'"
    while await (await conn.execute(query)).fetchone() is None:
        await asyncio.sleep(0.002)


async def test_every_tail_skips_what_one_found_dead(
    tail: Tail, database: Database, conn: psycopg.AsyncConnection
) -> None:
    await append(conn, [on("slot-a", 0)], because())
    await conn.rollback()
    recorded = await committed(conn, on("slot-a", 0))
    other = Tail(database.app_dsn)

    assert told(await tail.batch(START, 10)) == told(await other.batch(START, 10)) == (recorded, 2)
    await other.close()


async def test_a_position_that_may_still_be_written_is_never_noted_dead(connect: Connect) -> None:
    slow, liar = await connect(), await connect()
    await append(slow, [on("slot-a", 0)], because())

    with pytest.raises(psycopg.DatabaseError) as refused:
        await liar.execute("select ledger.note_dead('{1}', 'liar')")

    assert refused.value.sqlstate == "SP007"


@pytest.mark.parametrize("position", [0, 2])
async def test_a_position_that_was_never_drawn_is_not_noted_dead(
    conn: psycopg.AsyncConnection, position: int
) -> None:
    await committed(conn, on("slot-a", 0))
    with pytest.raises(psycopg.DatabaseError) as refused:
        await conn.execute("select ledger.note_dead(array[%s]::bigint[], 'liar')", [position])
    assert refused.value.sqlstate == "SP006"


async def test_a_position_with_an_event_is_not_noted_dead(conn: psycopg.AsyncConnection) -> None:
    await committed(conn, on("slot-a", 0))
    row = await (await conn.execute("select ledger.note_dead('{1}', 'liar')")).fetchone()
    assert row == ([],)


async def test_a_position_that_is_told_as_drawn_is_not_drawn_later(database: Database) -> None:
    """Others draw as fast as they can, and whoever asks draws as well: what he was told must be lower."""
    drawing = "select count(nextval('ledger.position_seq')) from generate_series(1, 50000)"
    asking = (
        "select count(*) filter (where told >= drawn) from (select ledger.drawn() as told,"
        " nextval('ledger.position_seq') as drawn from generate_series(1, 50000) offset 0) each"
    )
    asked = asyncio.Event()

    async def keep_drawing() -> None:
        async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as conn:
            while not asked.is_set():
                await conn.execute(drawing)

    async def ask() -> int:
        async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as conn:
            too_early = [await (await conn.execute(asking)).fetchone() for _ in range(10)]
        asked.set()
        return sum(each[0] for each in too_early if each is not None)

    async with asyncio.TaskGroup() as together:
        answer = together.create_task(ask())
        for _ in range(3):
            together.create_task(keep_drawing())
    assert answer.result() == 0


async def test_a_gap_in_which_the_server_finds_an_event_is_read_and_not_passed_over(
    tail: Tail, database: Database, conn: psycopg.AsyncConnection
) -> None:
    """Written past the fence, which only a superuser can, after the tail had looked and before it tells the server."""
    (first,) = await committed(conn, on("slot-a", 0))
    async with (
        await psycopg.AsyncConnection.connect(database.admin_dsn) as sneaking,
        await psycopg.AsyncConnection.connect(database.admin_dsn) as holding_up,
    ):
        await sneaking.execute(COPIED)
        await holding_up.execute("lock table ledger.dead_position in access exclusive mode")
        looking = asyncio.create_task(tail.batch(START, 10))
        await until_somebody_waits_for_a_lock(conn)
        await sneaking.commit()
        await holding_up.commit()
        seen = await looking

    assert told(seen) == ((first,), 1)
    assert [each.position for each in (await tail.batch(START, 10)).events] == [1, 2]


COPIED = """
insert into ledger.event select (copied.event).* from (
  select jsonb_populate_record(e, jsonb_build_object(
    'position', nextval('ledger.position_seq'), 'event_id', gen_random_uuid(), 'stream_id', 'slot-b')) as event
    from ledger.event e offset 0) copied
"""


async def until_somebody_waits_for_a_lock(conn: psycopg.AsyncConnection) -> None:
    await conn.set_autocommit(True)
    query = "select 1 from pg_locks where not granted and relation = 'ledger.dead_position'::regclass"
    while await (await conn.execute(query)).fetchone() is None:
        await asyncio.sleep(0.002)


async def test_a_snapshot_from_before_the_fence_may_note_nothing(conn: psycopg.AsyncConnection) -> None:
    await committed(conn, on("slot-a", 0))
    await conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    with pytest.raises(psycopg.DatabaseError) as refused:
        await conn.execute("select ledger.note_dead('{1}', 'liar')")
    assert refused.value.sqlstate == "SP006"


async def test_a_tail_whose_connection_died_connects_again(
    tail: Tail, database: Database, conn: psycopg.AsyncConnection
) -> None:
    recorded = await committed(conn, on("slot-a", 0))
    await tail.batch(START, 10)
    with psycopg.connect(database.admin_dsn, autocommit=True) as admin:
        admin.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and application_name = 'the tail of the test'"
        )

    with pytest.raises(psycopg.OperationalError):
        await tail.batch(START, 10)

    assert (await tail.batch(START, 10)).events == recorded


async def test_a_tail_does_not_follow_an_unfit_server(database: Database) -> None:
    with pytest.raises(UnfitServer):
        await Tail(database.admin_dsn).batch(START, 10)


async def test_what_was_called_final_stays_so_when_a_crash_takes_drawn_positions_back(
    postgres_programs: Path,
) -> None:
    """A rolled-back command leaves nothing that the server must write down before it crashes."""
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
            # The server wrote down in advance that 33 may be drawn, and now that more may.
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
