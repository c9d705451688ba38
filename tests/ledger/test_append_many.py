"""Tests of `encode_together`, with which one call appends several commands: the result is the same as that of one
append for each command.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import psycopg
import pytest

from events.allocations import AllocationFailed
from events.claims import Claim
from events.envelope import Cause
from events.facts import Reason
from events.ledger.append import (
    CommandKey,
    LedgerCommand,
    StoredAnswer,
    append,
    take_key,
    take_new_keys,
)
from events.ledger.append_wire import MANY
from events.ledger.errors import ClaimHeld, ClaimNotHeld, MalformedAppend, VersionConflict
from events.ledger.merkle import EventRow, leaf_of
from events.values import ProjectId, new_uuid
from tests.ledger.given import ALLOCATION, append_together, because, committed, frees, on, plain, takes
from tests.servers.postgres import Database

KEY = CommandKey("caller:alice", "POST /v1/allocations", "k-1", b"body one")
ANY, AT = new_uuid(), datetime(2026, 1, 1, tzinfo=UTC)
"""Values that replace, before a comparison, the values that differ between two appends of the same command."""
UNUSUAL = Cause(
    "ünï '; --",
    '{"a": "\U0001f600"}\x01\n',
    new_uuid(),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ProjectId(""),
    new_uuid(),
    "",
)


@dataclass(frozen=True)
class Stored:
    """The rows of the ledger's tables that an append writes."""

    events: list[EventRow]
    leaves: list[bytes]
    heads: list[tuple[object, ...]]
    claims: list[tuple[object, ...]]


async def stored(conn: psycopg.AsyncConnection) -> Stored:
    async def rows(query: bytes) -> list[tuple[object, ...]]:
        return await (await conn.execute(query)).fetchall()

    events = await rows(b"select * from ledger.event order by position")
    return Stored(
        [EventRow(*row[:-1]) for row in events],  # type: ignore[arg-type]  # the columns of the table
        [row[-1] for row in events],  # type: ignore[misc]  # the last column is the leaf
        await rows(b"select * from ledger.head order by stream_id"),
        await rows(b"select * from ledger.claim order by kind, value"),
    )


def commands(cause: Cause) -> list[LedgerCommand]:
    """Return commands that together use new and existing streams, claims, and several events of one stream, and a
    command without events.
    """
    failed = AllocationFailed(ALLOCATION, Reason("é", '\x00"\\ \u2028 \U0001f600'))
    return [
        LedgerCommand([on("allocation-b", 0, plain(), failed), on("slot-n1/0", 2, takes("n1/0"))], cause),
        LedgerCommand(
            [on("slot-n1/1", 0, takes("n1/1"))],
            msgspec.structs.replace(cause, project=None, trace_context=None),
        ),
        LedgerCommand([on("allocation-b", 2, plain()), on("allocation-a", 0)], because()),
        LedgerCommand([on("slot-n1/2", 1, frees("n1/2")), on("slot-n1/3", 0, takes("n1/3"))], because()),
    ]


async def test_commands_appended_together_write_the_same_rows_as_commands_appended_one_by_one(
    conn: psycopg.AsyncConnection,
) -> None:
    found = []
    await committed(conn, on("slot-n1/0", 0, plain(), plain()), on("slot-n1/2", 0, takes("n1/2")))
    for together in (True, False):
        async with conn.transaction(force_rollback=True):
            given = commands(UNUSUAL)
            if together:
                await append_together(conn, given)
            else:
                for each in given:
                    await append(conn, each.changes, each.cause)
            found.append(await stored(conn))

    assert found[0].heads == found[1].heads
    assert found[0].claims == found[1].claims
    many, single = (
        [each._replace(position=0, event_id=ANY, correlation_id=ANY, recorded_at=AT) for each in rows.events]
        for rows in found
    )
    assert many == single
    assert found[0].leaves == [leaf_of(each) for each in found[0].events]
    positions = [each.position for each in found[0].events]
    assert positions == sorted(positions)
    assert len({each.recorded_at for each in found[0].events[3:]}) == 1


async def test_append_many_of_one_command_writes_the_same_rows_as_append(
    conn: psycopg.AsyncConnection,
) -> None:
    await committed(conn, on("slot-n1/0", 0, takes("n1/0")), on("slot-n1/1", 0, takes("n1/1")))
    moved = [on("slot-n1/0", 1, frees("n1/0")), on("slot-other", 0, takes("n1/0"))]
    command = LedgerCommand(
        [*moved, on("allocation-a", 0, *[plain()] * MANY), on("slot-n1/1", 1, frees("n1/1"))], because()
    )
    await append_together(conn, [command])

    rows = await stored(conn)
    assert rows.leaves == [leaf_of(each) for each in rows.events]
    assert rows.claims == [("slot", "n1/0", "slot-other")]
    assert rows.heads == [
        ("allocation-a", MANY),
        ("slot-n1/0", 2),
        ("slot-n1/1", 2),
        ("slot-other", 1),
    ]


async def test_commands_without_events_store_their_responses(conn: psycopg.AsyncConnection) -> None:
    other = KEY._replace(key="k-2")
    await take_new_keys(conn, [KEY, other])
    await append_together(conn, [LedgerCommand([], because(), each, each.key) for each in (KEY, other)])
    await conn.commit()

    assert await take_key(conn, other) == StoredAnswer("k-2")


async def test_append_of_several_commands_is_refused_if_one_frees_a_claim_that_another_stream_holds(
    conn: psycopg.AsyncConnection,
) -> None:
    await committed(conn, on("slot-other", 0, takes("n1/1")))
    given = [
        LedgerCommand([on("slot-n1/1", 0, frees("n1/1"))], because()),
        LedgerCommand([on("slot-n1/0", 0)], because()),
    ]
    with pytest.raises(ClaimNotHeld) as refused:
        await append_together(conn, given)

    assert refused.value.claim == Claim("slot", "n1/1")


async def test_append_of_several_commands_is_refused_if_one_takes_a_claim_that_another_stream_holds(
    conn: psycopg.AsyncConnection,
) -> None:
    await committed(conn, on("slot-other", 0, takes("n1/1")))
    given = [
        LedgerCommand([on("slot-n1/0", 0, takes("n1/0"))], because()),
        LedgerCommand([on("slot-n1/1", 0, takes("n1/1"))], because()),
    ]
    with pytest.raises(ClaimHeld) as refused:
        await append_together(conn, given)

    assert refused.value.claim == Claim("slot", "n1/1")
    await conn.rollback()
    assert len((await stored(conn)).events) == 1


async def test_append_of_two_commands_is_refused_if_both_take_the_same_claim(
    conn: psycopg.AsyncConnection,
) -> None:
    given = [LedgerCommand([on(f"slot-{each}", 0, takes("n1/0"))], because()) for each in "ab"]
    with pytest.raises(ClaimHeld):
        await append_together(conn, given)


@pytest.mark.parametrize("version", [0, 2], ids=["stream-exists", "events-are-missing"])
async def test_append_of_several_commands_with_one_version_conflict_is_refused_and_assigns_no_position(
    conn: psycopg.AsyncConnection, version: int
) -> None:
    await committed(conn, on("slot-a", 0))
    given = [LedgerCommand([on("slot-b", 0)], because()), LedgerCommand([on("slot-a", version)], because())]
    with pytest.raises(VersionConflict) as conflict:
        await append_together(conn, given)

    assert (conflict.value.stream, conflict.value.expected, conflict.value.actual) == ("slot-a", version, 1)
    await conn.rollback()
    assert [each.position for each in (await stored(conn)).events] == [1]
    drawn = await (await conn.execute("select last_value from ledger.position_seq")).fetchone()
    assert drawn == (1,)


async def test_two_commands_that_append_the_same_version_of_a_stream_are_refused(
    conn: psycopg.AsyncConnection,
) -> None:
    with pytest.raises(MalformedAppend):
        await append_together(conn, [LedgerCommand([on("slot-a", 0)], because()) for _ in range(2)])


async def test_append_of_several_commands_is_refused_if_an_idempotency_key_is_not_taken_or_has_a_response(
    conn: psycopg.AsyncConnection,
) -> None:
    given = [
        LedgerCommand([on("slot-a", 0)], because()),
        LedgerCommand([on("slot-b", 0)], because(), KEY, "answer"),
    ]
    with pytest.raises(MalformedAppend):
        await append_together(conn, given)
    await conn.rollback()
    await take_new_keys(conn, [KEY])
    await append_together(conn, given)
    await conn.commit()
    with pytest.raises(MalformedAppend):  # its response is stored
        await append_together(conn, given)


async def test_commands_of_a_session_with_other_settings_are_committed_synchronously(
    conn: psycopg.AsyncConnection,
) -> None:
    await conn.execute("set search_path = public")
    await conn.execute("set synchronous_commit = off")
    await append_together(conn, [LedgerCommand([on(f"slot-{each}", 0)], because()) for each in "ab"])

    shown = await (await conn.execute("select current_setting('synchronous_commit')")).fetchone()
    assert shown == ("on",)


async def test_append_of_several_commands_reads_no_whole_table_even_if_the_tables_were_small_when_analyzed(
    conn: psycopg.AsyncConnection, database: Database
) -> None:
    await committed(conn, on("slot-a", 0), on("slot-b", 0, takes("n1/0")))
    await take_new_keys(conn, [KEY])
    await append_together(conn, [LedgerCommand([], because(), KEY, "answer")])
    await conn.commit()
    with psycopg.connect(database.admin_dsn) as admin:
        admin.execute("analyze ledger.command_key, ledger.head, ledger.claim")

    other = KEY._replace(key="k-2")
    await take_new_keys(conn, [other])
    given = [
        LedgerCommand([on("slot-a", 1)], because(), other, "answer"),
        LedgerCommand([on("slot-b", 1, frees("n1/0"))], because()),
    ]
    await append_together(conn, given)

    query = b"select relname from pg_stat_xact_all_tables where schemaname = 'ledger' and seq_scan > 0"
    assert await (await conn.execute(query)).fetchall() == []
