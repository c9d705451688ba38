"""A projector that dies or loses its connections at any moment: its next start goes on, and nothing is there twice."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from control_plane.projector import verifications
from events.values import AllocationId, NodeId
from read_models.projections import PROJECTIONS
from tests.projections.eventually import eventually
from tests.projections.living import Fleet, living
from tests.projections.projector_process import caught_up, projector, rebuilds_open
from tests.servers.postgres import Database

pytestmark = [pytest.mark.slow]
CRASHES = 4


@pytest.fixture
async def fleet(database: Database) -> AsyncIterator[Fleet]:
    async with living(database) as fleet:
        await fleet.bring_up(NodeId("node-a"), slots=3)
        yield fleet


async def some_more(fleet: Fleet, number: int) -> None:
    """A life of an allocation, from its request to the proof that it is gone."""
    assert await fleet.create(1, f"project-{number}")
    allocation = AllocationId(list(fleet.placed)[-1])
    assert await fleet.release(allocation)
    await fleet.prove_gone(allocation)
    assert await fleet.issue_key(f"key-{number}")


async def test_killed_at_any_moment_every_event_is_projected_once(
    fleet: Fleet, database: Database, tmp_path: Path
) -> None:
    for number in range(CRASHES):
        for name in PROJECTIONS:
            await fleet.order_rebuild(name)
        most_open = rebuilds_open(database) - number
        with projector(database, tmp_path / f"{number}.log") as process:
            await some_more(fleet, number)
            # Each time it is killed when it has done a little more of what was ordered.
            await eventually(partial(few_open, database, most_open), "it is under way")
            process.kill()
        await some_more(fleet, CRASHES + number)
    with projector(database, tmp_path / "last.log") as process:
        await eventually(lambda: not rebuilds_open(database), "every rebuild is done")
        await eventually(lambda: caught_up(database), "the live tables have it all")
        assert "Traceback" not in process.log()
    assert await fleet.verify() == ()


async def test_with_its_connections_cut_it_goes_on_by_itself(
    fleet: Fleet, database: Database, tmp_path: Path
) -> None:
    with projector(database, tmp_path / "it.log") as process:
        await eventually(lambda: caught_up(database), "it works")
        for number in range(CRASHES):
            for name in PROJECTIONS:
                await fleet.order_rebuild(name)
            database.cut()
            await some_more(fleet, number)
            database.cut()
        await eventually(lambda: not rebuilds_open(database), "every rebuild is done")
        await eventually(lambda: caught_up(database), "the live tables have it all")
        assert "Traceback" not in process.log()
        assert await fleet.verify() == ()


async def test_a_verification_that_ran_when_its_process_died_is_done_by_the_next(
    fleet: Fleet, database: Database, tmp_path: Path
) -> None:
    async with fleet.handle.engine.begin() as conn:
        asked = await verifications.ask(conn, "key:test")
    async with await psycopg.AsyncConnection.connect(database.admin_dsn) as somebody:
        await somebody.execute("lock table idle.slot")
        with projector(database, tmp_path / "first.log") as process:
            await eventually(lambda: state(database, asked) == "running", "it runs")
            process.kill()
    assert state(database, asked) == "running"
    with projector(database, tmp_path / "second.log"):
        await eventually(lambda: state(database, asked) == "equal", "the next one ends it")


def few_open(database: Database, most: int) -> bool:
    return rebuilds_open(database) <= most


def state(database: Database, asked: UUID) -> str:
    with psycopg.connect(database.admin_dsn) as conn:
        query = "select state from work.verification where verification_id = %s"
        row = conn.execute(query, [asked]).fetchone()
    assert row is not None
    return str(row[0])
