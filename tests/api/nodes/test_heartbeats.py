"""The control plane sets the heartbeat interval, and a node is unreachable after four missed heartbeats (PLT-3)."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime

import httpx
import psycopg
import pytest
from pydantic import ValidationError
from sqlalchemy.ext.asyncio import create_async_engine

from control_plane.api.routes.agents.heartbeats import MOMENT_SECONDS, Beat, Heartbeats
from control_plane.decisions.refusals import Unauthorised
from control_plane.identity.sessions import PresentedCredential
from control_plane.settings import Settings
from deploy.embedded.postgres import PostgresServer
from events.values import NodeId
from tasks.agent_api import Heartbeat
from tests.api.node import BEAT, CREDENTIAL, admit, allocate, blocked_by, digest, enrol, register_node
from tests.servers.plane import RunningPlane, running

SECONDS = 10.0
SETTINGS = {"database_url": "postgresql+psycopg://", "redis_url": "redis://"}


@pytest.fixture
def slow_heartbeat_plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    """A control plane with a heartbeat interval of ten seconds."""
    with running(postgres_server, heartbeat_seconds=SECONDS) as made:
        yield made


def set_last_heartbeat(plane: RunningPlane, name: str, seconds_ago: float) -> None:
    plane.rows(
        "update work.node_seen set seen_at = now() - %(ago)s * interval '1 s' where node_id = %(name)s returning 1",
        ago=seconds_ago,
        name=name,
    )


def state_of(plane: RunningPlane, name: str) -> str:
    return str(plane.client().get(f"/nodes/{name}").json()["state"])


def test_session_granted_to_a_node_contains_the_heartbeat_interval(
    slow_heartbeat_plane: RunningPlane,
) -> None:
    granted = enrol(slow_heartbeat_plane, "n1", register_node(slow_heartbeat_plane, "n1")).json()
    assert granted["heartbeat_seconds"] == SECONDS


def test_node_is_unreachable_after_four_missed_heartbeats_and_not_before(
    slow_heartbeat_plane: RunningPlane,
) -> None:
    admit(slow_heartbeat_plane, "n1")
    set_last_heartbeat(slow_heartbeat_plane, "n1", 4 * SECONDS - 5)
    assert state_of(slow_heartbeat_plane, "n1") == "enrolled"
    set_last_heartbeat(slow_heartbeat_plane, "n1", 4 * SECONDS + 1)
    assert state_of(slow_heartbeat_plane, "n1") == "unreachable"


def test_unreachable_node_receives_no_allocation(slow_heartbeat_plane: RunningPlane) -> None:
    admit(slow_heartbeat_plane, "n1", slots=2)
    set_last_heartbeat(slow_heartbeat_plane, "n1", 4 * SECONDS + 1)
    assert [*blocked_by(slow_heartbeat_plane).values()] == ["unreachable"] * 3
    assert allocate(slow_heartbeat_plane).status_code == httpx.codes.CONFLICT
    set_last_heartbeat(slow_heartbeat_plane, "n1", 4 * SECONDS - 5)
    assert [*blocked_by(slow_heartbeat_plane).values()] == [None] * 3
    assert allocate(slow_heartbeat_plane).status_code == httpx.codes.ACCEPTED


def test_slots_of_a_silent_node_that_is_to_enrol_again_are_blocked_as_registered(
    slow_heartbeat_plane: RunningPlane,
) -> None:
    admit(slow_heartbeat_plane, "n1", slots=2)
    set_last_heartbeat(slow_heartbeat_plane, "n1", 4 * SECONDS + 1)
    with slow_heartbeat_plane.client() as client:
        assert client.post("/nodes/n1/enrolment").is_success
        assert client.get("/status").json()["blocked_slots"]["by_reason"] == {"registered": 2}
    assert state_of(slow_heartbeat_plane, "n1") == "registered"
    assert [*blocked_by(slow_heartbeat_plane).values()] == ["registered"] * 3


@pytest.mark.parametrize("seconds", [0.5, 301, "often"])
def test_heartbeat_interval_outside_its_bounds_is_refused(seconds: object) -> None:
    with pytest.raises(ValidationError, match="heartbeat_seconds"):
        Settings.model_validate({**SETTINGS, "heartbeat_seconds": seconds})


def test_default_heartbeat_interval_is_five_seconds() -> None:
    settings = Settings.model_validate(SETTINGS)
    assert (settings.heartbeat_seconds, settings.unreachable_after.total_seconds()) == (5, 20)


@pytest.fixture
async def heartbeats(emptied_plane: RunningPlane) -> AsyncIterator[Heartbeats]:
    """API component that stores heartbeats, on a database in which nodes `n1` and `n2` are enrolled."""
    for name in ("n1", "n2"):
        enrol(emptied_plane, name, register_node(emptied_plane, name))
    engine = create_async_engine(emptied_plane.settings.database_url.get_secret_value())
    yield Heartbeats(engine)
    await engine.dispose()


def beat_of(name: str, credential: str = CREDENTIAL, spooled: int = 0) -> Beat:
    heartbeat = Heartbeat.model_validate({**BEAT, "spooled_reports": spooled})
    return Beat(PresentedCredential(NodeId(name), digest(credential)), heartbeat)


def stored_heartbeats(plane: RunningPlane) -> dict[str, int]:
    return dict(plane.rows("select node_id, spooled_reports from work.node_seen"))


async def test_invalid_credential_in_a_batch_of_heartbeats_is_the_only_one_refused(
    heartbeats: Heartbeats, emptied_plane: RunningPlane
) -> None:
    beats = (beat_of("n1"), beat_of("n2", "guessed"), beat_of("n3"), beat_of("n2", spooled=2))
    first, *refused, last = await asyncio.gather(*map(heartbeats.take, beats), return_exceptions=True)
    assert isinstance(first, datetime)
    assert first == last
    assert [type(each) for each in refused] == [Unauthorised, Unauthorised]
    assert stored_heartbeats(emptied_plane) == {"n1": 0, "n2": 2}


async def test_last_of_several_heartbeats_of_a_node_in_one_batch_is_stored(
    heartbeats: Heartbeats, emptied_plane: RunningPlane
) -> None:
    await asyncio.gather(*(heartbeats.take(beat_of("n1", spooled=count)) for count in (3, 1, 2)))
    assert stored_heartbeats(emptied_plane) == {"n1": 2}


async def test_heartbeats_that_arrive_while_the_database_is_slow_are_written_by_one_sql_statement(
    heartbeats: Heartbeats, emptied_plane: RunningPlane
) -> None:
    with psycopg.connect(emptied_plane.database.admin_dsn) as slow:
        slow.execute("lock table work.node_seen in access exclusive mode")
        beats, began = list[asyncio.Future[datetime]](), time.monotonic()
        while (moment := time.monotonic() - began) < 10 * MOMENT_SECONDS:
            if moment > 2 * MOMENT_SECONDS * len(beats):
                beats.append(asyncio.ensure_future(heartbeats.take(beat_of("n1"))))
            await asyncio.sleep(MOMENT_SECONDS / 10)
        slow.rollback()
    moments = await asyncio.gather(*beats)
    assert len(set(moments)) == 2, "each statement returns one time"


async def test_disconnected_caller_does_not_cancel_the_heartbeats_of_its_batch(
    heartbeats: Heartbeats, emptied_plane: RunningPlane
) -> None:
    gone, stays = (asyncio.ensure_future(heartbeats.take(beat_of(name))) for name in ("n1", "n2"))
    await asyncio.sleep(0)
    gone.cancel()
    assert isinstance(await stays, datetime)
    assert stored_heartbeats(emptied_plane) == {"n1": 0, "n2": 0}
