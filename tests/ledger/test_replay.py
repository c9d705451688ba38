"""Tests that a replay of a range of the ledger returns the same events as reading the range, for any content, from one
snapshot.
"""

import os
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.pq import TransactionStatus

from events import catalog
from events.envelope import Cause, Recorded
from events.facts import Fact, Reason, Unreadable
from events.ledger.append import Change, append
from events.ledger.errors import UnreadableEvent
from events.ledger.replay import replay
from events.ledger.store import read_range, refuse_unreadable
from events.slots import SlotQuarantined
from events.values import Position, ProjectId, SlotId, StreamId, new_uuid
from tests.golden.corpus import canonical, corpus
from tests.ledger.given import ALLOCATION, because, committed, on, plain
from tests.servers.postgres import Connect, Database

START: Final = Position(0)
END: Final = Position(2**62)
SPECIAL: Final = "tab\there, back\\slash, \\N, \\t, line\nbreak, \r, \"quotes\", 'single', \x01\x1f\x7f, müller, 日本, 🚀, \u2028"
TEXTS: Final = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
TIMES: Final = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 (the zone is given)
CAUSES: Final = st.builds(
    Cause,
    actor=TEXTS,
    reason=TEXTS,
    correlation_id=st.uuids(),
    observed_at=TIMES,
    project=st.none() | TEXTS.map(ProjectId),
    causation_id=st.none() | st.uuids(),
    trace_context=st.none() | TEXTS,
)


async def replayed(
    conn: psycopg.AsyncConnection, after: Position = START, upto: Position = END, batch: int = 3
) -> list[Recorded[Fact]]:
    return [event async for events in replay(conn, after, upto, batch=batch) for event in events]


async def read(
    conn: psycopg.AsyncConnection, after: Position = START, upto: Position = END
) -> list[Recorded[Fact]]:
    return list(await read_range(conn, after, upto, limit=100_000))


async def stored(
    conn: psycopg.AsyncConnection, database: Database, type_: str, schema_version: int, data: str
) -> Position:
    """Store an event as a different release would have written it, on a stream of its own. Return its position."""
    (recorded,) = await committed(conn, on(f"other-{new_uuid()}", 0))
    async with await psycopg.AsyncConnection.connect(database.admin_dsn) as admin:
        await admin.execute(
            "update ledger.event set type = %s, schema_version = %s, data = %s where position = %s",
            [type_, schema_version, data, recorded.position],
        )
    return recorded.position


async def test_replay_of_every_event_shape_ever_stored_returns_the_same_events_as_reading_the_ledger(
    conn: psycopg.AsyncConnection, database: Database
) -> None:
    examples = {key: canonical(example) for key, example in corpus().stored.items()}
    for key, data in examples.items():
        name, _, version = key.partition("/")
        await stored(conn, database, name, int(version), data)
    expected = [
        catalog.decode(key.partition("/")[0], int(key.partition("/")[2]), data)
        for key, data in examples.items()
    ]

    found = await replayed(conn)

    assert [event.fact for event in found] == expected
    assert found == await read(conn)


async def test_replay_of_events_with_special_characters_returns_them_unchanged(
    conn: psycopg.AsyncConnection,
) -> None:
    cause = msgspec.structs.replace(
        because(), actor=SPECIAL, reason=SPECIAL, project=ProjectId(SPECIAL), trace_context=SPECIAL
    )
    fact = SlotQuarantined(SlotId(SPECIAL), ALLOCATION, Reason("special", SPECIAL), (SPECIAL, "", "\\"))
    async with conn.transaction():
        recorded = await append(conn, [Change(StreamId(SPECIAL), 0, (fact,))], cause)

    assert await replayed(conn) == list(recorded)


@given(causes=st.lists(CAUSES, min_size=1, max_size=8))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
async def test_replay_of_events_with_arbitrary_envelope_fields_returns_these_as_recorded(
    conn: psycopg.AsyncConnection, causes: list[Cause]
) -> None:
    recorded: list[Recorded[Fact]] = []
    for cause in causes:
        async with conn.transaction():
            recorded += await append(conn, [on(f"stream-{new_uuid()}", 0, plain(), plain())], cause)

    found = await replayed(conn, Position(recorded[0].position - 1))

    assert found == recorded == await read(conn, Position(recorded[0].position - 1))


@pytest.mark.parametrize("batch", [1, 2, 3, 6, 7, 1000])
async def test_replay_batches_have_the_requested_size_and_the_last_batch_has_the_remainder(
    conn: psycopg.AsyncConnection, batch: int
) -> None:
    recorded = await committed(conn, on("one", 0, *[plain()] * 6))

    batches = [events async for events in replay(conn, START, END, batch=batch)]

    assert [event for events in batches for event in events] == list(recorded)
    assert all(len(events) == batch for events in batches[:-1])
    assert 1 <= len(batches[-1]) <= batch


async def test_replay_of_a_ledger_range_excludes_its_start_and_includes_its_end(
    conn: psycopg.AsyncConnection,
) -> None:
    recorded = await committed(conn, on("one", 0, *[plain()] * 5))
    after, upto = recorded[1].position, recorded[3].position

    assert await replayed(conn, after, upto) == list(recorded[2:4])
    assert await replayed(conn, upto, after) == []


async def test_replay_skips_positions_without_event(conn: psycopg.AsyncConnection) -> None:
    before = await committed(conn, on("one", 0))
    await append(conn, [on("never", 0)], because())
    await conn.rollback()
    after_it = await committed(conn, on("two", 0))

    assert after_it[0].position == before[0].position + 2
    assert await replayed(conn) == [*before, *after_it]


async def test_event_appended_during_a_replay_is_not_part_of_it(connect: Connect) -> None:
    reader, writer = await connect(), await connect()
    recorded = await committed(writer, on("one", 0, *[plain()] * 4))
    found: list[Recorded[Fact]] = []
    async for events in replay(reader, START, END, batch=1):
        found += events
        await committed(writer, on(f"two-{len(found)}", 0))

    assert found == list(recorded)


async def test_replay_in_a_repeatable_read_transaction_uses_the_snapshot_of_the_transaction(
    connect: Connect,
) -> None:
    reader, writer = await connect(), await connect()
    await reader.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    recorded = await committed(writer, on("one", 0, *[plain()] * 4))
    async with reader.transaction():
        await read(reader)
        await committed(writer, on("two", 0))
        assert await replayed(reader) == list(recorded)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("slot.painted", 1, "{}"), "unknown event type 'slot.painted' version 1"),
        (("slot.claimed", 99, "{}"), "unknown event type 'slot.claimed' version 99"),
        (("allocation.activated", 1, '{"colour":"red"}'), "allocation.activated version 1 cannot be read"),
        (("allocation.activated", 1, "no JSON"), "allocation.activated version 1 cannot be read"),
    ],
    ids=["unknown-type", "newer-version", "unknown-field", "not-json"],
)
async def test_replay_returns_an_unreadable_event_at_its_position_between_the_readable_ones(
    conn: psycopg.AsyncConnection, database: Database, row: tuple[str, int, str], reason: str
) -> None:
    before = await committed(conn, on("one", 0, plain(), plain()))
    at = await stored(conn, database, *row)
    after_it = await committed(conn, on("two", 0, plain(), plain()))

    found = await replayed(conn, batch=5)

    assert found == await read(conn)
    assert [*found[:2], *found[3:]] == [*before, *after_it]
    unreadable = found[2].fact
    assert isinstance(unreadable, Unreadable)
    assert (unreadable.type, unreadable.schema_version, unreadable.data) == row
    with pytest.raises(UnreadableEvent, match=f"{at}.*{reason}") as refused:
        refuse_unreadable(found)
    assert refused.value.position == at


async def test_replay_closed_early_leaves_the_connection_idle_and_usable(connect: Connect) -> None:
    conn = await connect()
    await conn.set_autocommit(True)
    recorded = await committed(conn, *(on(f"stream-{number}", 0, *[plain()] * 50) for number in range(40)))
    async with aclosing(replay(conn, START, END, batch=1)) as batches:
        first = await anext(batches)

    assert first == [recorded[0]]
    assert (
        conn.pgconn.transaction_status == TransactionStatus.IDLE
    )  # immediately, and not only after garbage collection
    assert await replayed(conn, batch=1000) == list(recorded)


def resident_bytes() -> int:
    """Return the resident memory of this process, including that of C libraries."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_replay_of_a_long_range_needs_memory_for_one_batch_only(conn: psycopg.AsyncConnection) -> None:
    large = SlotQuarantined(SlotId("lab-a/0"), ALLOCATION, Reason("long", "x" * 200_000), ())
    for number in range(10):
        await committed(conn, on(f"slot-{number}", 0, *[large] * 10))
    before = resident_bytes()
    count = most = 0
    async for events in replay(conn, START, END, batch=2):
        count, most = count + len(events), max(most, resident_bytes())

    assert count == 100
    assert most - before < 40 * 200_000


@pytest.mark.parametrize("autocommit", [True, False], ids=["autocommit", "no-autocommit"])
async def test_replay_restores_the_settings_of_the_connection(connect: Connect, *, autocommit: bool) -> None:
    conn = await connect()
    await conn.set_autocommit(autocommit)
    await committed(conn, *(on(f"stream-{number}", 0, *[plain()] * 50) for number in range(40)))
    await replayed(conn)
    assert await sort_is_enabled(conn)
    async with aclosing(replay(conn, START, END, batch=1)) as batches:
        await anext(batches)
    await conn.rollback()
    assert await sort_is_enabled(conn)


async def sort_is_enabled(conn: psycopg.AsyncConnection) -> bool:
    return await (await conn.execute("show enable_sort")).fetchone() == ("on",)


async def test_replay_with_batch_size_zero_raises_value_error(conn: psycopg.AsyncConnection) -> None:
    with pytest.raises(ValueError, match="the batch size 0 is invalid"):
        await replayed(conn, batch=0)
