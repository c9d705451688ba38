"""Of two projectors one works. Whatever becomes of it, the other goes on within seconds, and nothing is done twice."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from events.values import NodeId
from read_models.projections import PROJECTIONS
from tests.projections.living import Fleet, living
from tests.projections.projector_process import ProjectorProcess, projector
from tests.servers.postgres import Database

pytestmark = [pytest.mark.slow]
LIVE = [each.name for each in PROJECTIONS.values() if not each.inline]
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


async def until(condition: Callable[[], bool], what: str) -> float:
    """Seconds until it holds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + 30, f"waited in vain until {what}"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


def caught_up(database: Database) -> bool:
    with psycopg.connect(database.admin_dsn) as conn:
        last = conn.execute("select max(position) from ledger.event").fetchone()
        query = "select count(*) from read.checkpoint where name = any(%s) and position >= %s"
        return last is not None and conn.execute(query, [LIVE, last[0]]).fetchone() == (len(LIVE),)


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
    await until(lambda: caught_up(database), "the live tables have it all")


async def test_one_works_and_the_other_waits(
    fleet: Fleet, database: Database, two: tuple[ProjectorProcess, ProjectorProcess]
) -> None:
    _, other = two
    await until(lambda: waiting_to_lead(database) == 2, "both want to lead")
    await more(fleet, database)
    assert not other.leads


async def test_when_the_leader_is_killed_the_other_goes_on(
    fleet: Fleet, database: Database, two: tuple[ProjectorProcess, ProjectorProcess]
) -> None:
    one, other = two
    await until(lambda: waiting_to_lead(database) == 2, "both want to lead")
    await more(fleet, database)
    one.kill()
    seconds = await until(lambda: other.leads, "the other leads")
    print(f"the other leads after {seconds:.1f} s")
    assert seconds < TAKES_OVER_SECONDS
    await more(fleet, database)
    assert await fleet.verify() == ()


async def test_when_the_leader_stops_the_other_goes_on_and_the_first_does_no_harm_when_it_is_back(
    fleet: Fleet, database: Database, two: tuple[ProjectorProcess, ProjectorProcess]
) -> None:
    one, other = two
    await until(lambda: waiting_to_lead(database) == 2, "both want to lead")
    await asyncio.gather(*(fleet.issue_key(f"k{number}") for number in range(20)))
    one.signal(signal.SIGSTOP)
    seconds = await until(lambda: other.leads, "the other leads")
    print(f"the other leads after {seconds:.1f} s")
    assert seconds < TAKES_OVER_SECONDS
    await more(fleet, database)
    await fleet.order_rebuild("holdings")
    one.signal(signal.SIGCONT)
    await until(lambda: "leadership_lost" in one.log(), "the first learns that it was replaced")
    await until(lambda: rebuilt(database), "the rebuild ends")
    await more(fleet, database)
    assert "Traceback" not in one.log() + other.log()
    assert await fleet.verify() == ()


def rebuilt(database: Database) -> bool:
    with psycopg.connect(database.admin_dsn) as conn:
        query = "select from ledger.event where type = 'projection.rebuilt'"
        return conn.execute(query).fetchone() is not None
