"""Generated event histories for benchmarks: the ledger accepts them, and the control plane could have created them."""

from collections import Counter

import psycopg

from bench.ledger.histories import History
from bench.ledger.lifecycles import PROJECTS
from control_plane.decisions.allocation_states import fold, state_name
from control_plane.histories import allocation_facts
from events.allocations import AllocationFailed, LeaseExpired, SliceInterrupted, SliceRemovalIncomplete
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.replay import replay
from events.slots import SlotClaimed, SlotQuarantined, SlotReleased, SlotReleasing
from events.values import Position, StreamId
from tests.servers.postgres import Database, database, postgres_programs, postgres_server

__all__ = ["database", "postgres_programs", "postgres_server"]


async def test_event_history_generated_for_benchmarks_has_every_outcome_and_only_valid_allocation_streams(
    database: Database,
) -> None:
    history = History(database.app_dsn, nodes=8)
    assert await history.grow(4000, lambda _done: None) >= 4000
    streams: dict[StreamId, list[Recorded[Fact]]] = {}
    async with await psycopg.AsyncConnection.connect(database.app_dsn, autocommit=True) as conn:
        async for events in replay(conn, Position(0), Position(2**62)):
            for each in events:
                streams.setdefault(each.stream, []).append(each)
    kinds = Counter(type(each.fact) for stream in streams.values() for each in stream)
    assert kinds.total() == history.events
    assert kinds.keys() >= {
        AllocationFailed, LeaseExpired, SliceInterrupted, SliceRemovalIncomplete, SlotQuarantined
    }  # fmt: skip
    assert kinds[SlotClaimed] >= kinds[SlotReleasing] >= kinds[SlotReleased] > 300
    allocations = [
        fold(tuple(each.fact for each in allocation_facts(tuple(stream))))
        for name, stream in streams.items()
        if name.startswith("allocation-")
    ]
    assert {state_name(each) for each in allocations if each} == {
        "placed", "provisioning", "active", "releasing", "released", "failed"
    }  # fmt: skip


async def test_event_history_for_benchmarks_creates_the_keys_of_all_projects_first(
    database: Database,
) -> None:
    await History(database.app_dsn, nodes=8).grow(1, lambda _done: None)
    async with await psycopg.AsyncConnection.connect(database.app_dsn) as conn:
        keys = await conn.execute("select project from keys.project_key")
        assert {project for (project,) in await keys.fetchall()} == set(PROJECTS)
