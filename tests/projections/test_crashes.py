"""Tests of a projector that is killed or loses its connections at any moment: it continues at its next start, without
duplicates.
"""

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
from tests.projections.fleet import Fleet, living
from tests.projections.projector_process import caught_up, open_rebuilds, projector
from tests.servers.postgres import Database

pytestmark = [pytest.mark.slow]
CRASHES = 4


@pytest.fixture
async def fleet(database: Database) -> AsyncIterator[Fleet]:
    async with living(database) as fleet:
        await fleet.bring_up(NodeId("node-a"), slots=3)
        yield fleet


async def append_more(fleet: Fleet, number: int) -> None:
    """Append events: create an allocation, release it, report the removal of its slice, and issue an API key."""
    assert await fleet.create(1, f"project-{number}")
    allocation = AllocationId(list(fleet.placed)[-1])
    assert await fleet.release(allocation)
    await fleet.report_removed(allocation)
    assert await fleet.issue_key(f"key-{number}")


async def test_projector_killed_at_any_moment_projects_every_event_once(
    fleet: Fleet, database: Database, tmp_path: Path
) -> None:
    for number in range(CRASHES):
        for name in PROJECTIONS:
            await fleet.order_rebuild(name)
        limit = open_rebuilds(database) - number
        with projector(database, tmp_path / f"{number}.log") as process:
            await append_more(fleet, number)
            # In each round, the kill comes after one more of the ordered rebuilds.
            await eventually(partial(at_most_open, database, limit), "the rebuilds have begun")
            process.kill()
        await append_more(fleet, CRASHES + number)
    with projector(database, tmp_path / "last.log") as process:
        await eventually(lambda: not open_rebuilds(database), "every rebuild has finished")
        await eventually(lambda: caught_up(database), "the live tables contain all events")
        assert "Traceback" not in process.log()
    assert await fleet.verify() == ()


async def test_projector_with_terminated_connections_continues_without_a_restart(
    fleet: Fleet, database: Database, tmp_path: Path
) -> None:
    with projector(database, tmp_path / "projector.log") as process:
        await eventually(lambda: caught_up(database), "the projector has caught up")
        for number in range(CRASHES):
            for name in PROJECTIONS:
                await fleet.order_rebuild(name)
            database.cut()
            await append_more(fleet, number)
            database.cut()
        await eventually(lambda: not open_rebuilds(database), "every rebuild has finished")
        await eventually(lambda: caught_up(database), "the live tables contain all events")
        assert "Traceback" not in process.log()
        assert await fleet.verify() == ()


async def test_verification_interrupted_by_a_killed_projector_is_finished_by_the_next_one(
    fleet: Fleet, database: Database, tmp_path: Path
) -> None:
    async with fleet.handle.engine.begin() as conn:
        verification = await verifications.request(conn, "key:test")
    async with await psycopg.AsyncConnection.connect(database.admin_dsn) as blocker:
        await blocker.execute("lock table idle.slot")
        with projector(database, tmp_path / "first.log") as process:
            await eventually(lambda: state(database, verification) == "running", "the verification runs")
            process.kill()
    assert state(database, verification) == "running"
    with projector(database, tmp_path / "second.log"):
        await eventually(
            lambda: state(database, verification) == "equal", "the next projector finishes the verification"
        )


def at_most_open(database: Database, most: int) -> bool:
    return open_rebuilds(database) <= most


def state(database: Database, verification: UUID) -> str:
    with psycopg.connect(database.admin_dsn) as conn:
        query = "select state from work.verification where verification_id = %s"
        row = conn.execute(query, [verification]).fetchone()
    assert row is not None
    return str(row[0])
