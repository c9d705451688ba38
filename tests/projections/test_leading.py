"""Of two projectors one works. Whatever becomes of it, the other goes on within seconds, and nothing is done twice."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from events.values import NodeId
from tests.projections.eventually import eventually
from tests.projections.living import Fleet, living
from tests.projections.projector_process import ProjectorProcess, caught_up, projector, rebuilds_open
from tests.servers.postgres import Database

pytestmark = [pytest.mark.slow]
TAKES_OVER_SECONDS = 10.0


@pytest.fixture
async def fleet(database: Database) -> AsyncIterator[Fleet]:
    async with living(database) as fleet:
        assert await fleet.expect(NodeId("node-a"))
        yield fleet


@pytest.fixture
def two(database: Database, tmp_path: Path) -> Iterator[tuple[ProjectorProcess, ProjectorProcess]]:
    """The one that leads, and the one that waits."""
    with projector(database, tmp_path / "one.log") as one:
        deadline = time.monotonic() + 30
        while not one.leads:
            assert time.monotonic() < deadline, one.log()
        with projector(database, tmp_path / "other.log") as other:
            yield one, other


def waiting_to_lead(database: Database) -> int:
    """How many sessions there are of projectors that lead or would."""
    query = "select count(*) from pg_stat_activity where application_name = 'lead projector' and datname = %s"
    with psycopg.connect(database.admin_dsn) as conn:
        row = conn.execute(query, [database.name]).fetchone()
    assert row is not None
    return int(row[0])


async def more(fleet: Fleet, database: Database) -> None:
    for name in ("a", "b", "c"):
        assert await fleet.issue_key(name)
    await eventually(lambda: caught_up(database), "the live tables have it all")


async def test_one_works_and_the_other_waits(
    fleet: Fleet, database: Database, two: tuple[ProjectorProcess, ProjectorProcess]
) -> None:
    _, other = two
    await eventually(lambda: waiting_to_lead(database) == 2, "both want to lead")
    await more(fleet, database)
    assert not other.leads


async def test_when_the_leader_is_killed_the_other_goes_on(
    fleet: Fleet, database: Database, two: tuple[ProjectorProcess, ProjectorProcess]
) -> None:
    one, other = two
    await eventually(lambda: waiting_to_lead(database) == 2, "both want to lead")
    await more(fleet, database)
    one.kill()
    seconds = await eventually(lambda: other.leads, "the other leads")
    print(f"the other leads after {seconds:.1f} s")
    assert seconds < TAKES_OVER_SECONDS
    await more(fleet, database)
    assert await fleet.verify() == ()


async def test_when_the_leader_stops_the_other_goes_on_and_the_first_does_no_harm_when_it_is_back(
    fleet: Fleet, database: Database, two: tuple[ProjectorProcess, ProjectorProcess]
) -> None:
    one, other = two
    await eventually(lambda: waiting_to_lead(database) == 2, "both want to lead")
    await asyncio.gather(*(fleet.issue_key(f"k{number}") for number in range(20)))
    one.signal(signal.SIGSTOP)
    seconds = await eventually(lambda: other.leads, "the other leads")
    print(f"the other leads after {seconds:.1f} s")
    assert seconds < TAKES_OVER_SECONDS
    await more(fleet, database)
    await fleet.order_rebuild("holdings")
    one.signal(signal.SIGCONT)
    await eventually(lambda: "leadership_lost" in one.log(), "the first learns that it was replaced")
    await eventually(lambda: not rebuilds_open(database), "the rebuild ends")
    await more(fleet, database)
    assert "Traceback" not in one.log() + other.log()
    assert await fleet.verify() == ()
