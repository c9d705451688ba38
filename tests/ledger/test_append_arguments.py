"""Tests of the arguments of the database function `ledger.append`, and of the settings of the session that calls it."""

import psycopg
import pytest
from psycopg.types.json import Jsonb

from events.ledger.append import append
from events.ledger.merkle import EventRow, leaf_of
from tests.ledger.given import because, committed, on, plain, takes
from tests.ledger.test_keys import KEY
from tests.servers.postgres import Connect


async def test_events_appended_one_at_a_time_or_together_store_the_merkle_leaf_of_their_row(
    conn: psycopg.AsyncConnection,
) -> None:
    await committed(conn, on("slot-a", 0))
    await committed(conn, on("slot-a", 1, takes("lab-a/0"), plain()), on("slot-b", 0))

    rows = await (await conn.execute("select * from ledger.event order by position")).fetchall()
    assert [row[-1] for row in rows] == [leaf_of(EventRow(*row[:-1])) for row in rows]
    assert len(rows) == 4


async def test_idempotency_key_of_a_command_stores_the_first_and_last_position_of_its_events(
    conn: psycopg.AsyncConnection,
) -> None:
    await append(conn, [on("slot-a", 0)], because())
    await append(conn, [on("slot-b", 0, plain(), plain())], because(), key=KEY, answer="{}")
    await append(conn, [], because(), key=KEY._replace(key="k-2"), answer="nothing to do")
    await append(conn, [on("slot-c", 0)], because(), key=KEY._replace(key="k-3"), answer="{}")

    cursor = await conn.execute("select first_position, last_position from ledger.command_key order by key")
    assert await cursor.fetchall() == [(2, 3), (None, None), (4, 4)]


async def test_lock_timeout_on_a_stream_is_not_reported_as_a_busy_idempotency_key(connect: Connect) -> None:
    first, second = [await connect() for _ in range(2)]
    await append(first, [on("slot-a", 0)], because())
    await second.execute("set lock_timeout = '50ms'")
    await second.commit()

    with pytest.raises(psycopg.errors.LockNotAvailable):
        await append(second, [on("slot-a", 0)], because(), key=KEY, answer="second")


async def test_append_in_a_session_with_another_search_path_finds_the_tables_of_the_ledger(
    conn: psycopg.AsyncConnection,
) -> None:
    await conn.execute("set search_path = work, public")
    await conn.commit()

    assert len(await committed(conn, on("slot-a", 0))) == 1


async def test_append_that_would_lock_streams_in_descending_order_is_refused(
    conn: psycopg.AsyncConnection,
) -> None:
    row = {
        "type": "t", "schema_version": 1, "data": "{}", "actor": "a", "reason": "w", "version": 1,
        "event_id": "01890000-0000-7000-8000-000000000001", "observed_at": "2026-11-20T12:00:00Z",
        "correlation_id": "01890000-0000-7000-8000-000000000001",
    }  # fmt: skip
    call = Jsonb([{**row, "stream_id": "slot-b"}, {**row, "stream_id": "slot-a"}])

    with pytest.raises(psycopg.Error) as refusal:
        await conn.execute("select ledger.append(%s, '[0, 1]')", [call])

    assert refusal.value.sqlstate == "SP006"
