"""Pages of filtered events are complete in both orders, however far the read models with the positions of events are
behind.
"""

import random
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest
from msgspec import structs
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.api.feed import ledger_pages
from control_plane.api.feed.ledger_pages import Past
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.append import append
from events.ledger.search import EventFilter, attributes_of
from events.values import (
    AllocationId,
    Position,
    ProjectId,
    StreamId,
    correlation_of,
    stream_of_allocation,
)
from read_models import allocations, checkpoints, projects
from tests.ledger.given import because, on, plain, takes
from tests.servers.postgres import Connect

pytestmark = pytest.mark.timeout(60)
EVENTS: Final = 80
ALLOCATIONS: Final = [AllocationId(f"alc-01h455vb4pex5vsknk084sn02{each}") for each in "qrs"]
PROJECTS: Final = [ProjectId(name) for name in ("red", "blue")]
STREAMS: Final = [*map(stream_of_allocation, ALLOCATIONS), StreamId("slot-n1/0"), StreamId("slot-n1/1")]
TYPES: Final = ("allocation.activated", "slot.claimed")
ACTORS: Final = ("caller:alice", "caller:bob")


async def recorded_events(conn: psycopg.AsyncConnection, chance: random.Random) -> list[Recorded[Fact]]:
    """Append events of random streams, types, projects, actors and correlation ids. Return them in ledger order."""
    versions = dict.fromkeys(STREAMS, 0)
    recorded: list[Recorded[Fact]] = []
    for number in range(EVENTS):
        stream = chance.choice(STREAMS)
        fact = takes(f"n{number}/0") if chance.random() < 0.1 else plain()
        own = [each for each in ALLOCATIONS if stream_of_allocation(each) == stream]
        cause = because(correlation_of(own[0] if own else chance.choice(ALLOCATIONS)))
        cause = structs.replace(cause, project=chance.choice([*PROJECTS, None]), actor=chance.choice(ACTORS))
        async with conn.transaction():
            recorded += await append(conn, [on(stream, versions[stream], fact)], cause)
        versions[stream] += 1
    return recorded


async def list_positions(engine: AsyncEngine, events: Sequence[Recorded[Fact]], upto: Position) -> None:
    """Write the read models that list the positions of events by project and allocation, up to the ledger position
    `upto`.
    """
    listed = [each for each in events if each.position <= upto]
    async with engine.begin() as conn:
        await conn.execute(
            projects.project_event.insert(),
            [
                {"project": each.cause.project, "position": each.position}
                for each in listed
                if each.cause.project is not None
            ],
        )
        await conn.execute(
            allocations.story.insert(),
            [
                {"correlation_id": each.cause.correlation_id, "position": each.position}
                for each in listed
                if not each.stream.startswith("allocation-")
            ],
        )
        for projection in ("allocations", "project_events"):
            await checkpoints.begin(conn, projection, upto)


def some_filter(chance: random.Random, ids: Sequence[UUID]) -> EventFilter:
    def some(values: Sequence[Any]) -> frozenset[Any]:
        return frozenset(chance.sample(values, chance.choice([0, 0, 1, min(2, len(values))])))

    correlations: list[UUID] = [correlation_of(each) for each in ALLOCATIONS]
    return EventFilter(
        some(STREAMS), some(TYPES), some(PROJECTS), some(ACTORS), some(correlations), some(ids)
    )


@pytest.mark.parametrize("seed", range(3))
async def test_pages_of_filtered_events_contain_every_matching_event_once_and_in_order(
    engine: AsyncEngine, connect: Connect, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(ledger_pages, "LISTED", chance.choice([1, 7, 2000]))
    monkeypatch.setattr(ledger_pages, "WINDOWS", chance.choice([1, 3, 50]))
    recorded = await recorded_events(await connect(), chance)
    await list_positions(engine, recorded, chance.choice(recorded[1:]).position)
    past = Past(engine)
    for _ in range(15):
        pick, limit = some_filter(chance, [each.event_id for each in recorded]), chance.choice([3, 20, 250])
        begin, upto = sorted(chance.choices([each.position for each in recorded], k=2))
        matching = [
            each for each in recorded if begin < each.position <= upto and pick.takes(attributes_of(each))
        ]
        assert await ascending(past, pick, begin, upto, limit) == matching, pick
        assert await descending(past, pick, begin, upto, limit) == matching[::-1], pick


async def ascending(
    past: Past, pick: EventFilter, begin: Position, upto: Position, limit: int
) -> list[Recorded[Fact]]:
    found: list[Recorded[Fact]] = []
    after = begin
    while after < upto:
        page = await past.full_page(pick, after, upto, limit)
        assert len(page.events) <= limit
        assert page.reached > after
        found += page.events
        after = page.reached
    return found


async def descending(
    past: Past, pick: EventFilter, begin: Position, upto: Position, limit: int
) -> list[Recorded[Fact]]:
    found: list[Recorded[Fact]] = []
    before = Position(upto + 1)
    while before > begin + 1:
        page = await past.newest(pick, begin, before, limit)
        assert len(page.events) <= limit
        assert page.reached < before
        found += page.events
        before = page.reached
    return found
