import asyncio

import psycopg
import pytest

from events.ledger.append import append
from events.ledger.errors import VersionConflict
from events.ledger.store import read_positions, read_range, read_stream
from events.traces import continued, trace_id
from events.values import Epoch, Position, StreamId
from tests.ledger.given import because, committed, on, plain
from tests.servers.postgres import Connect, Database


async def last_drawn(conn: psycopg.AsyncConnection) -> int:
    row = await (await conn.execute("select last from ledger.fence()")).fetchone()
    assert row is not None
    last: int = row[0]
    return last


async def test_appended_event_is_read_back_as_recorded(conn: psycopg.AsyncConnection) -> None:
    (recorded,) = await committed(conn, on("allocation-a", 0))

    assert await read_stream(conn, StreamId("allocation-a")) == (recorded,)
    assert recorded.fact == plain()
    assert (recorded.position, recorded.version, recorded.epoch) == (1, 1, 1)


async def test_append_to_several_streams_assigns_positions_in_the_given_order(
    conn: psycopg.AsyncConnection,
) -> None:
    recorded = await committed(
        conn, on("slot-z", 0, plain(), plain()), on("allocation-a", 0), on("node-m", 0)
    )

    assert [(event.stream, event.version) for event in recorded] == [
        ("slot-z", 1), ("slot-z", 2), ("allocation-a", 1), ("node-m", 1),
    ]  # fmt: skip
    assert await read_range(conn, Position(0), Position(9), limit=9) == recorded


async def test_append_with_a_version_conflict_on_one_stream_writes_to_no_stream(
    conn: psycopg.AsyncConnection,
) -> None:
    await committed(conn, on("slot-a", 0))

    with pytest.raises(VersionConflict) as conflict:
        await committed(conn, on("allocation-a", 0), on("slot-a", 0))

    refused = conflict.value
    assert (refused.stream, refused.expected, refused.actual) == ("slot-a", 0, 1)
    assert await read_stream(conn, StreamId("allocation-a")) == ()
    assert len(await read_stream(conn, StreamId("slot-a"))) == 1


@pytest.mark.parametrize("expected", [1, 3])
async def test_append_with_an_expected_version_other_than_the_current_one_is_rejected(
    conn: psycopg.AsyncConnection, expected: int
) -> None:
    await committed(conn, on("slot-a", 0, plain(), plain()))

    with pytest.raises(VersionConflict) as conflict:
        await committed(conn, on("slot-a", expected))

    assert conflict.value.actual == 2


async def test_append_with_a_version_conflict_on_a_missing_stream_reports_version_zero(
    conn: psycopg.AsyncConnection,
) -> None:
    with pytest.raises(VersionConflict) as conflict:
        await committed(conn, on("slot-a", 4))

    assert conflict.value.actual == 0


async def test_concurrent_appends_to_one_stream_succeed_exactly_once_per_version(connect: Connect) -> None:
    conns = [await connect() for _ in range(8)]

    async def race(conn: psycopg.AsyncConnection) -> int:
        won = 0
        for version in range(20):
            try:
                await committed(conn, on("slot-a", version))
                won += 1
            except VersionConflict:
                continue
        return won

    wins = await asyncio.gather(*map(race, conns))

    stream = await read_stream(conns[0], StreamId("slot-a"))
    assert [event.version for event in stream] == list(range(1, sum(wins) + 1))
    assert sum(wins) == 20


async def test_concurrent_appends_to_the_same_streams_in_opposite_order_do_not_deadlock(
    connect: Connect,
) -> None:
    forward, backward = await connect(), await connect()
    # Without autocommit, the first read would open a transaction that spans all appends.
    await forward.set_autocommit(True)
    await backward.set_autocommit(True)
    await committed(forward, on("slot-a", 0), on("slot-b", 0))

    async def run(conn: psycopg.AsyncConnection, *streams: str) -> None:
        done = 0
        while done < 30:
            heads = [len(await read_stream(conn, StreamId(stream))) for stream in streams]
            try:
                await committed(conn, *(on(s, head) for s, head in zip(streams, heads, strict=True)))
                done += 1
            except VersionConflict:
                continue

    await asyncio.gather(run(forward, "slot-a", "slot-b"), run(backward, "slot-b", "slot-a"))


async def test_rejected_append_draws_no_position(conn: psycopg.AsyncConnection) -> None:
    await committed(conn, on("slot-a", 0))

    with pytest.raises(VersionConflict):
        await committed(conn, on("slot-a", 0))

    assert await last_drawn(conn) == 1


async def test_append_rolled_back_after_drawing_a_position_leaves_only_a_gap_in_the_positions(
    conn: psycopg.AsyncConnection,
) -> None:
    await append(conn, [on("slot-a", 0)], because())
    await conn.rollback()

    (recorded,) = await committed(conn, on("slot-a", 0))

    assert recorded.position == 2
    assert await read_positions(conn, [Position(1), Position(2)]) == (recorded,)


async def test_event_stream_read_up_to_a_position_ends_with_the_event_at_that_position(
    conn: psycopg.AsyncConnection,
) -> None:
    first, second, _ = await committed(conn, on("slot-a", 0, plain(), plain(), plain()))

    assert await read_stream(conn, StreamId("slot-a"), upto=second.position) == (first, second)


async def test_event_caused_by_another_event_has_the_same_correlation_id_trace_and_project(
    conn: psycopg.AsyncConnection,
) -> None:
    (first,) = await committed(conn, on("slot-a", 0))

    cause = first.leads_to(actor="process:placement", reason="placed", observed_at=first.recorded_at)
    (second,) = await append(conn, [on("slot-a", 1)], cause)

    assert second.cause.causation_id == first.event_id
    assert second.cause.correlation_id == first.cause.correlation_id
    assert trace_id(second.cause.trace_context) == trace_id(first.cause.trace_context) is not None
    assert second.cause.trace_context == continued(first.cause.trace_context, first.event_id)
    assert second.cause.project == first.cause.project


async def test_append_in_a_session_with_synchronous_commit_off_sets_synchronous_commit_on(
    conn: psycopg.AsyncConnection,
) -> None:
    await conn.execute("set local synchronous_commit = off")
    await append(conn, [on("slot-a", 0)], because())

    row = await (await conn.execute("show synchronous_commit")).fetchone()
    assert row == ("on",)


async def test_append_after_a_new_epoch_in_a_session_with_cached_plans_records_the_new_epoch(
    conn: psycopg.AsyncConnection, database: Database
) -> None:
    for version in range(8):  # PostgreSQL caches a generic plan after five executions.
        await committed(conn, on("slot-a", version))
    async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as admin:
        await admin.execute("select ledger.begin_epoch('restored from a backup')")

    (recorded,) = await committed(conn, on("slot-a", 8))

    assert recorded.epoch == Epoch(2)
    assert (await read_positions(conn, [recorded.position]))[0].epoch == 2


async def test_append_that_waited_while_a_new_epoch_began_records_the_new_epoch(
    connect: Connect, database: Database
) -> None:
    conn, watcher = await connect(), await connect()
    await watcher.set_autocommit(True)
    for version in range(8):
        await committed(conn, on("slot-a", version))
    async with await psycopg.AsyncConnection.connect(database.admin_dsn) as admin:
        await admin.execute("select ledger.begin_epoch('restored from a backup')")
        waiting = asyncio.create_task(committed(conn, on("slot-a", 8)))
        await until_an_append_waits_for_the_fence(watcher)
    (recorded,) = await waiting

    assert recorded.epoch == Epoch(2)
    assert (await read_positions(conn, [recorded.position]))[0].epoch == 2


async def until_an_append_waits_for_the_fence(conn: psycopg.AsyncConnection) -> None:
    query = "select 1 from pg_locks where locktype = 'advisory' and not granted"
    while await (await conn.execute(query)).fetchone() is None:
        await asyncio.sleep(0.005)


async def test_append_of_a_change_without_events_raises_value_error(conn: psycopg.AsyncConnection) -> None:
    with pytest.raises(ValueError, match="without facts"):
        await append(conn, [on("slot-a", 0)._replace(facts=())], because())
