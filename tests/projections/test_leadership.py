"""Tests of two projectors, one of which leads. If the leader fails, the other takes over within seconds, and no event
is projected twice.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from events.values import NodeId
from tests.projections.eventually import eventually
from tests.projections.fleet import Fleet, living
from tests.projections.projector_process import ProjectorProcess, caught_up, open_rebuilds, projector
from tests.servers.postgres import Database

pytestmark = [pytest.mark.slow]
TAKES_OVER_SECONDS = 10.0


@pytest.fixture
async def fleet(database: Database) -> AsyncIterator[Fleet]:
    async with living(database) as fleet:
        assert await fleet.register(NodeId("node-a"))
        yield fleet


@pytest.fixture
def projectors(database: Database, tmp_path: Path) -> Iterator[tuple[ProjectorProcess, ProjectorProcess]]:
    """Two projector processes: the leader and the one that waits to lead."""
    with projector(database, tmp_path / "one.log") as leader:
        deadline = time.monotonic() + 30
        while not leader.leads:
            assert time.monotonic() < deadline, leader.log()
        with projector(database, tmp_path / "other.log") as other:
            yield leader, other


def waiting_to_lead(database: Database) -> int:
    """Return the number of database sessions of projectors that lead or wait to lead."""
    query = "select count(*) from pg_stat_activity where application_name = 'lead projector' and datname = %s"
    with psycopg.connect(database.admin_dsn) as conn:
        row = conn.execute(query, [database.name]).fetchone()
    assert row is not None
    return int(row[0])


async def append_more(fleet: Fleet, database: Database) -> None:
    for name in ("a", "b", "c"):
        assert await fleet.issue_key(name)
    await eventually(lambda: caught_up(database), "the live tables contain all events")


async def test_second_projector_does_not_lead_while_the_first_one_does(
    fleet: Fleet, database: Database, projectors: tuple[ProjectorProcess, ProjectorProcess]
) -> None:
    _, other = projectors
    await eventually(lambda: waiting_to_lead(database) == 2, "both projectors have requested leadership")
    await append_more(fleet, database)
    assert not other.leads


async def test_second_projector_takes_over_when_the_leader_is_killed(
    fleet: Fleet, database: Database, projectors: tuple[ProjectorProcess, ProjectorProcess]
) -> None:
    leader, other = projectors
    await eventually(lambda: waiting_to_lead(database) == 2, "both projectors have requested leadership")
    await append_more(fleet, database)
    leader.kill()
    seconds = await eventually(lambda: other.leads, "the second projector leads")
    print(f"the second projector leads after {seconds:.1f} s")
    assert seconds < TAKES_OVER_SECONDS
    await append_more(fleet, database)
    assert await fleet.verify() == ()


async def test_second_projector_leads_when_the_leader_is_stopped_and_the_first_does_not_lead_when_continued(
    fleet: Fleet, database: Database, projectors: tuple[ProjectorProcess, ProjectorProcess]
) -> None:
    leader, other = projectors
    await eventually(lambda: waiting_to_lead(database) == 2, "both projectors have requested leadership")
    await asyncio.gather(*(fleet.issue_key(f"k{number}") for number in range(20)))
    leader.signal(signal.SIGSTOP)
    seconds = await eventually(lambda: other.leads, "the second projector leads")
    print(f"the second projector leads after {seconds:.1f} s")
    assert seconds < TAKES_OVER_SECONDS
    await append_more(fleet, database)
    await fleet.order_rebuild("holdings")
    leader.signal(signal.SIGCONT)
    await eventually(
        lambda: "leadership_lost" in leader.log(),
        "the first projector has detected that it lost the leadership",
    )
    await eventually(lambda: not open_rebuilds(database), "the rebuild has finished")
    await append_more(fleet, database)
    assert "Traceback" not in leader.log() + other.log()
    assert await fleet.verify() == ()
