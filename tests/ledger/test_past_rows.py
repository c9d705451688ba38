"""Tests of read model rows at an earlier ledger position: a row computed from only those events that the database
selects from a long stream equals the row computed from all its events.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control_plane.time_travel.rows import Row, advanced, row_of, rows_at, since, streams_up_to
from events.catalog import encode
from events.envelope import Recorded
from events.facts import Fact
from events.values import Position, StreamId
from read_models.inline import NODES, SLOTS
from read_models.rows import Patched
from tests.decisions.test_the_past import discovered, histories, of_node, of_slot, registered
from tests.servers.postgres import Database

_INSERT = """
insert into ledger.event values (%s, gen_random_uuid(), %s, %s, %s, %s, null, 'key:x', 'x', gen_random_uuid(), null,
  null, now(), now(), 1, %s, '')
"""
_HEADS = "insert into ledger.head select stream_id, max(version) from ledger.event group by stream_id"
SLOT_STREAMS = [StreamId("slot-a/0"), StreamId("slot-a/1")]
NODE_STREAMS = [StreamId("node-a")]
slot_histories = st.tuples(histories(discovered, of_slot), histories(discovered, of_slot))
node_histories = st.tuples(histories(registered, of_node))
on_one_database = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@contextmanager
def written(
    database: Database,
    streams: Sequence[StreamId],
    facts_by_stream: Sequence[list[tuple[int, Fact]]],
    turns: Sequence[int],
) -> Iterator[Position]:
    """Write events of several streams to the ledger, alternately and with some gaps. Yield the last position."""
    pending = [list(history) for history in facts_by_stream]
    position, rows = 0, []
    for turn in (*turns, *range(sum(map(len, facts_by_stream)))):
        position += 1
        at = turn % len(streams)
        if pending[at]:
            version, fact = pending[at].pop(0)
            rows.append((position, streams[at], version, *encode(fact)))
    rows += [
        (position := position + 1, streams[at], version, *encode(fact))
        for at, history in enumerate(pending)
        for version, fact in history
    ]
    with psycopg.connect(database.admin_dsn, autocommit=True) as admin:
        admin.cursor().executemany(_INSERT, rows)
        admin.execute(_HEADS)
        try:
            yield Position(position)
        finally:
            admin.execute("delete from ledger.event; delete from ledger.head")


async def check(database: Database, model: Patched, streams: list[StreamId], end: Position) -> None:
    async with await psycopg.AsyncConnection.connect(database.app_dsn) as conn:
        for position in map(Position, range(end + 2)):
            whole = await streams_up_to(conn, streams, position)
            assert await rows_at(conn, model, streams, position) == {
                stream: row_of(model, history) for stream, history in whole.items()
            }
        for stream in streams:
            await check_steps(conn, model, stream, end)


async def check_steps(conn: psycopg.AsyncConnection, model: Patched, stream: StreamId, end: Position) -> None:
    """Take the row at an earlier position and update it by each later event in order. Check that after every update it
    equals the row computed from all events so far.
    """
    whole = (await streams_up_to(conn, [stream], end))[stream]
    for start in map(Position, range(0, end, 3)):
        row: Row | None = (await rows_at(conn, model, [stream], start)).get(stream)
        news: list[Recorded[Fact]] = await since(conn, stream, start, end, 1000)
        assert news == [each for each in whole if each.position > start]
        assert await since(conn, stream, start, end, 2) == news[:2]
        for each in news:
            row = advanced(model, row, each)
            assert row == row_of(model, [earlier for earlier in whole if earlier.version <= each.version])


@on_one_database
@given(slot_histories, st.lists(st.integers(0, 1), max_size=30))
def test_past_slot_rows_at_every_ledger_position_equal_the_result_of_applying_their_events(
    database: Database, facts_by_stream: tuple[list[tuple[int, Fact]], ...], turns: list[int]
) -> None:
    with written(database, SLOT_STREAMS, facts_by_stream, turns) as end:
        asyncio.run(check(database, SLOTS, SLOT_STREAMS, end))


@on_one_database
@given(node_histories, st.lists(st.integers(0, 1), max_size=10))
def test_past_node_rows_at_every_ledger_position_equal_the_result_of_applying_their_events(
    database: Database, facts_by_stream: tuple[list[tuple[int, Fact]], ...], turns: list[int]
) -> None:
    with written(database, NODE_STREAMS, facts_by_stream, turns) as end:
        asyncio.run(check(database, NODES, NODE_STREAMS, end))
