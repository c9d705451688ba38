"""Replaying a stretch of the ledger: the same events as reading them, whatever they hold, from one snapshot."""

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
from events.append import Change, append
from events.envelope import Cause, Recorded
from events.errors import UnreadableEvent
from events.facts import Fact, Reason, Unreadable
from events.replay import replay
from events.slots import SlotWithheld
from events.store import read_range, refuse_unreadable
from events.values import Position, ProjectId, SlotId, StreamId, new_uuid
from tests.golden.corpus import canonical, corpus
from tests.ledger.given import ALLOCATION, because, committed, on, plain
from tests.servers.postgres import Connect, Database

START: Final = Position(0)
END: Final = Position(2**62)
ODD: Final = "tab\there, back\\slash, \\N, \\t, line\nbreak, \r, \"quotes\", 'single', \x01\x1f\x7f, müller, 日本, 🚀, \u2028"
TEXTS: Final = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
TIMES: Final = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 (the zone is given)
CAUSES: Final = st.builds(
    Cause,
    actor=TEXTS,
    why=TEXTS,
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
    """An event as some other release would have written it, on a stream of its own."""
    (told,) = await committed(conn, on(f"other-{new_uuid()}", 0))
    async with await psycopg.AsyncConnection.connect(database.admin_dsn) as admin:
        await admin.execute(
            "update ledger.event set type = %s, schema_version = %s, data = %s where position = %s",
            [type_, schema_version, data, told.position],
        )
    return told.position


async def test_every_shape_ever_stored_is_replayed_as_it_is_read(
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


async def test_odd_texts_come_back_as_they_were_said(conn: psycopg.AsyncConnection) -> None:
    cause = msgspec.structs.replace(because(), actor=ODD, why=ODD, project=ProjectId(ODD), trace_context=ODD)
    fact = SlotWithheld(SlotId(ODD), ALLOCATION, Reason("odd", ODD), (ODD, "", "\\"))
    async with conn.transaction():
        told = await append(conn, [Change(StreamId(ODD), 0, (fact,))], cause)

    assert await replayed(conn) == list(told)


@given(causes=st.lists(CAUSES, min_size=1, max_size=8))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
async def test_whatever_the_envelope_says_it_is_replayed_as_it_was_told(
    conn: psycopg.AsyncConnection, causes: list[Cause]
) -> None:
    told: list[Recorded[Fact]] = []
    for cause in causes:
        async with conn.transaction():
            told += await append(conn, [on(f"stream-{new_uuid()}", 0, plain(), plain())], cause)

    found = await replayed(conn, Position(told[0].position - 1))

    assert found == told == await read(conn, Position(told[0].position - 1))


@pytest.mark.parametrize("batch", [1, 2, 3, 6, 7, 1000])
async def test_batches_hold_as_many_as_asked_for_and_the_last_the_rest(
    conn: psycopg.AsyncConnection, batch: int
) -> None:
    told = await committed(conn, on("one", 0, *[plain()] * 6))

    batches = [events async for events in replay(conn, START, END, batch=batch)]

    assert [event for events in batches for event in events] == list(told)
    assert all(len(events) == batch for events in batches[:-1])
    assert 1 <= len(batches[-1]) <= batch


async def test_a_stretch_begins_after_one_position_and_ends_with_another(
    conn: psycopg.AsyncConnection,
) -> None:
    told = await committed(conn, on("one", 0, *[plain()] * 5))
    after, upto = told[1].position, told[3].position

    assert await replayed(conn, after, upto) == list(told[2:4])
    assert await replayed(conn, upto, after) == []


async def test_positions_that_hold_nothing_are_passed_over(conn: psycopg.AsyncConnection) -> None:
    before = await committed(conn, on("one", 0))
    await append(conn, [on("never", 0)], because())
    await conn.rollback()
    behind = await committed(conn, on("two", 0))

    assert behind[0].position == before[0].position + 2
    assert await replayed(conn) == [*before, *behind]


async def test_what_is_appended_meanwhile_belongs_to_the_next_replay(connect: Connect) -> None:
    reader, writer = await connect(), await connect()
    told = await committed(writer, on("one", 0, *[plain()] * 4))
    found: list[Recorded[Fact]] = []
    async for events in replay(reader, START, END, batch=1):
        found += events
        await committed(writer, on(f"two-{len(found)}", 0))

    assert found == list(told)


async def test_a_transaction_that_keeps_its_snapshot_is_replayed_from_it(connect: Connect) -> None:
    reader, writer = await connect(), await connect()
    await reader.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    told = await committed(writer, on("one", 0, *[plain()] * 4))
    async with reader.transaction():
        await read(reader)
        await committed(writer, on("two", 0))
        assert await replayed(reader) == list(told)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (("slot.painted", 1, "{}"), "no fact is known as 'slot.painted' version 1"),
        (("slot.claimed", 99, "{}"), "no fact is known as 'slot.claimed' version 99"),
        (("allocation.activated", 1, '{"colour":"red"}'), "allocation.activated version 1 cannot be read"),
        (("allocation.activated", 1, "no JSON"), "allocation.activated version 1 cannot be read"),
    ],
)
async def test_an_event_that_cannot_be_read_stands_at_its_place_among_those_that_can(
    conn: psycopg.AsyncConnection, database: Database, row: tuple[str, int, str], why: str
) -> None:
    before = await committed(conn, on("one", 0, plain(), plain()))
    at = await stored(conn, database, *row)
    behind = await committed(conn, on("two", 0, plain(), plain()))

    found = await replayed(conn, batch=5)

    assert found == await read(conn)
    assert [*found[:2], *found[3:]] == [*before, *behind]
    poison = found[2].fact
    assert isinstance(poison, Unreadable)
    assert (poison.type, poison.schema_version, poison.data) == row
    with pytest.raises(UnreadableEvent, match=f"{at}.*{why}") as refused:
        refuse_unreadable(found)
    assert refused.value.position == at


async def test_who_stops_early_keeps_a_connection_that_works(connect: Connect) -> None:
    conn = await connect()
    await conn.set_autocommit(True)
    told = await committed(conn, *(on(f"stream-{number}", 0, *[plain()] * 50) for number in range(40)))
    async with aclosing(replay(conn, START, END, batch=1)) as batches:
        first = await anext(batches)

    assert first == [told[0]]
    assert conn.pgconn.transaction_status == TransactionStatus.IDLE  # now, and not when somebody collects it
    assert await replayed(conn, batch=1000) == list(told)


def resident_bytes() -> int:
    """Of this process, what C libraries hold included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_memory_is_that_of_a_batch_however_long_the_stretch(conn: psycopg.AsyncConnection) -> None:
    much = SlotWithheld(SlotId("lab-a/0"), ALLOCATION, Reason("long", "x" * 200_000), ())
    for number in range(10):
        await committed(conn, on(f"slot-{number}", 0, *[much] * 10))
    before = resident_bytes()
    count = most = 0
    async for events in replay(conn, START, END, batch=2):
        count, most = count + len(events), max(most, resident_bytes())

    assert count == 100
    assert most - before < 40 * 200_000


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_connection_is_left_with_the_settings_it_had(connect: Connect, *, autocommit: bool) -> None:
    conn = await connect()
    await conn.set_autocommit(autocommit)
    await committed(conn, *(on(f"stream-{number}", 0, *[plain()] * 50) for number in range(40)))
    await replayed(conn)
    assert await sorts(conn)
    async with aclosing(replay(conn, START, END, batch=1)) as batches:
        await anext(batches)
    await conn.rollback()
    assert await sorts(conn)


async def sorts(conn: psycopg.AsyncConnection) -> bool:
    return await (await conn.execute("show enable_sort")).fetchone() == ("on",)


async def test_a_batch_of_nothing_is_refused(conn: psycopg.AsyncConnection) -> None:
    with pytest.raises(ValueError, match="not 0"):
        await replayed(conn, batch=0)
