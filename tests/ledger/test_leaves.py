"""Tests that the encoding and the hash of a Merkle leaf of the ledger never change."""

from datetime import UTC, datetime
from uuid import UUID

import psycopg
import pytest

from events.allocations import AllocationFailed
from events.envelope import Cause
from events.facts import Reason
from events.ledger.append import append
from events.ledger.errors import MalformedAppend
from events.ledger.merkle import DeadRow, EventRow, encoding_of, leaf_of
from events.ledger.tail import Tail
from events.values import Position, ProjectId
from tests.ledger.given import ALLOCATION, because, on, plain
from tests.servers.postgres import Database

ONE = UUID("01890000-0000-7000-8000-000000000001")
TWO = UUID("01890000-0000-7000-8000-000000000002")
ROW = EventRow(
    position=7,
    event_id=ONE,
    stream_id="slot-lab-a/0",
    version=3,
    type="slot.released",
    schema_version=1,
    project=None,
    actor="node:lab-a",
    reason="",
    correlation_id=TWO,
    causation_id=ONE,
    trace_context=None,
    observed_at=datetime(2026, 11, 20, 12, 0, 0, 1, tzinfo=UTC),
    recorded_at=datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC),
    epoch=1,
    data='{"é":"\U0001f600"}',
)
ROW_ENCODED = (
    "0101" "00000011"
    "00000014" "00000008" "0000000000000007"
    "00000b86" "00000010" "01890000000070008000000000000001"
    "00000019" "0000000c" "736c6f742d6c61622d612f30"
    "00000014" "00000008" "0000000000000003"
    "00000019" "0000000d" "736c6f742e72656c6561736564"
    "00000015" "00000002" "0001"
    "00000019" "ffffffff"
    "00000019" "0000000a" "6e6f64653a6c61622d61"
    "00000019" "00000000"
    "00000b86" "00000010" "01890000000070008000000000000002"
    "00000b86" "00000010" "01890000000070008000000000000001"
    "00000019" "ffffffff"
    "000004a0" "00000008" "000303b2c0923001"
    "000004a0" "00000008" "fffffffffff0bdc0"
    "00000017" "00000004" "00000001"
    "00000019" "0000000d" "7b22c3a9223a22f09f9880227d"
    "00000011" "ffffffff"
)  # fmt: skip


def test_encoding_of_an_event_row_for_its_merkle_leaf_equals_the_recorded_bytes() -> None:
    assert encoding_of(ROW).hex() == ROW_ENCODED


async def test_postgres_encodes_an_event_row_to_the_same_bytes_as_python(
    conn: psycopg.AsyncConnection,
) -> None:
    cursor = await conn.execute(
        "select record_send(row(%s::bigint, %s::uuid, %s::text, %s::bigint, %s::text, %s::smallint, %s::text, %s::text,"
        " %s::text, %s::uuid, %s::uuid, %s::text, %s::timestamptz, %s::timestamptz, %s::integer, %s::text, null::bytea))",
        ROW,
    )
    assert [row[0].hex() for row in await cursor.fetchall()] == [ROW_ENCODED.removeprefix("0101")]


def test_merkle_leaves_of_an_event_and_a_dead_position_equal_the_recorded_hashes() -> None:
    dead = DeadRow(8, datetime(2026, 11, 20, 12, 0, tzinfo=UTC), "tail", 1)

    assert leaf_of(ROW).hex() == "553bfd40ec5d5ec580cb0cb4e2d13a52569bbbc4b79cb481ebee4b1bb9280e03"
    assert leaf_of(dead).hex() == "d04e0970870f1e727518b75faff928d23003692f141d407fd5b34f7d75838857"


async def stored(conn: psycopg.AsyncConnection) -> list[tuple[EventRow, bytes]]:
    cursor = await conn.execute("select * from ledger.event order by position")
    return [(EventRow(*row[:-1]), row[-1]) for row in await cursor.fetchall()]


@pytest.mark.parametrize(
    "cause",
    [
        Cause("a", "", TWO, datetime(1, 1, 1, tzinfo=UTC)),
        Cause(
            "ünï",
            "\U0001f600",
            ONE,
            datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            ProjectId(""),
            TWO,
            "",
        ),
        Cause(
            "'; --",
            '{"a": 1}',
            ONE,
            datetime(1969, 7, 20, 20, 17, tzinfo=UTC),
            ProjectId("p"),
            None,
            "\x01\n",
        ),
    ],
    ids=["first-year-and-empty", "last-year-and-emoji", "before-1970-and-control-characters"],
)
async def test_merkle_leaf_of_unusual_values_is_the_same_in_postgres_and_in_python(
    conn: psycopg.AsyncConnection, cause: Cause
) -> None:
    unusual = AllocationFailed(ALLOCATION, Reason("é", '\x00"\\ \u2028 \U0001f600'))
    await append(conn, [on("é-\U0001f600", 0, unusual, plain())], cause)

    rows = await stored(conn)

    assert len(rows) == 2
    assert [leaf for _, leaf in rows] == [leaf_of(row) for row, _ in rows]
    assert rows[0][0].observed_at == cause.observed_at


async def test_dead_position_is_stored_with_the_merkle_leaf_of_its_row(
    conn: psycopg.AsyncConnection, database: Database
) -> None:
    await append(conn, [on("slot-a", 0)], because())
    await conn.rollback()
    tail = Tail(database.app_dsn, "a tail")
    assert (await tail.batch(Position(0), 10)).final == 1
    await tail.close()

    row = await (await conn.execute("select * from ledger.dead_position")).fetchone()

    assert row is not None
    assert row[-1] == leaf_of(DeadRow(*row[:-1]))
    assert row[2] == "a tail"


async def test_append_ignores_leaf_position_epoch_and_time_given_by_the_caller(
    conn: psycopg.AsyncConnection,
) -> None:
    call = """[{"actor": "a", "reason": "w", "leaf": "\\\\x01", "position": 99, "epoch": 9,
      "recorded_at": "1999-12-31T23:59:59Z", "correlation_id": "01890000-0000-7000-8000-000000000001",
      "observed_at": "2026-11-20T12:00:00Z", "stream_id": "slot-a", "version": 1, "type": "t", "schema_version": 1,
      "data": "{}", "event_id": "01890000-0000-7000-8000-000000000001"}]"""
    await conn.execute("select ledger.append(%s::jsonb)", [call])

    ((row, leaf),) = await stored(conn)

    assert leaf == leaf_of(row)
    assert (row.position, row.version, row.epoch) == (1, 1, 1)
    assert row.recorded_at.year > 1999


async def test_append_from_a_client_with_a_non_utf8_encoding_is_rejected(
    conn: psycopg.AsyncConnection,
) -> None:
    await conn.execute("set client_encoding = 'LATIN1'")

    with pytest.raises(MalformedAppend):
        await append(conn, [on("slot-a", 0)], because())


def test_merkle_leaf_depends_on_field_boundaries_and_distinguishes_null_from_empty() -> None:
    assert leaf_of(ROW._replace(actor="ab", reason="c")) != leaf_of(ROW._replace(actor="a", reason="bc"))
    assert leaf_of(ROW._replace(project=None)) != leaf_of(ROW._replace(project=""))
