"""How often nodes say that they live is the control plane's to say, and silence is four times as long (PLT-3)."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime

import httpx
import psycopg
import pytest
from pydantic import ValidationError
from sqlalchemy.ext.asyncio import create_async_engine

from control_plane.api.heartbeats import MOMENT_SECONDS, Beat, Heartbeats
from control_plane.decisions.refusals import Unauthorised
from control_plane.sessions import Shown
from control_plane.settings import Settings
from deploy.embedded.postgres import PostgresServer
from events.values import NodeId
from tasks.agent_api import Heartbeat
from tests.api.node import BEAT, CREDENTIAL, admit, allocate, blocked, digest, enrol, expect
from tests.servers.plane import RunningPlane, running

SECONDS = 10.0
SETTINGS = {"database_url": "postgresql+psycopg://", "redis_url": "redis://"}


@pytest.fixture
def calm_plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    """One that is content with a heartbeat every ten seconds."""
    with running(postgres_server, heartbeat_seconds=SECONDS) as made:
        yield made


def last_heard(plane: RunningPlane, name: str, seconds_ago: float) -> None:
    plane.rows(
        "update work.node_seen set seen_at = now() - %(ago)s * interval '1 s' where node_id = %(name)s returning 1",
        ago=seconds_ago,
        name=name,
    )


def state_of(plane: RunningPlane, name: str) -> str:
    return str(plane.client().get(f"/nodes/{name}").json()["state"])


def test_a_session_says_how_often_to_beat(calm_plane: RunningPlane) -> None:
    granted = enrol(calm_plane, "n1", expect(calm_plane, "n1")).json()
    assert granted["heartbeat_seconds"] == SECONDS


def test_a_node_is_silent_after_four_heartbeats_and_not_before(calm_plane: RunningPlane) -> None:
    admit(calm_plane, "n1")
    last_heard(calm_plane, "n1", 4 * SECONDS - 5)
    assert state_of(calm_plane, "n1") == "enrolled"
    last_heard(calm_plane, "n1", 4 * SECONDS + 1)
    assert state_of(calm_plane, "n1") == "silent"


def test_nothing_new_is_placed_on_a_silent_node(calm_plane: RunningPlane) -> None:
    admit(calm_plane, "n1", slots=2)
    last_heard(calm_plane, "n1", 4 * SECONDS + 1)
    assert [*blocked(calm_plane).values()] == ["silent"] * 3
    assert allocate(calm_plane).status_code == httpx.codes.CONFLICT
    last_heard(calm_plane, "n1", 4 * SECONDS - 5)
    assert [*blocked(calm_plane).values()] == [None] * 3
    assert allocate(calm_plane).status_code == httpx.codes.ACCEPTED


@pytest.mark.parametrize("seconds", [0.5, 301, "often"])
def test_an_interval_beyond_its_bounds_is_refused(seconds: object) -> None:
    with pytest.raises(ValidationError, match="heartbeat_seconds"):
        Settings.model_validate({**SETTINGS, "heartbeat_seconds": seconds})


def test_nodes_beat_every_five_seconds_unless_told_otherwise() -> None:
    settings = Settings.model_validate(SETTINGS)
    assert (settings.heartbeat_seconds, settings.silent_after.total_seconds()) == (5, 20)


@pytest.fixture
async def heartbeats(running_plane: RunningPlane) -> AsyncIterator[Heartbeats]:
    """What the API takes heartbeats with, of nodes `n1` and `n2`."""
    for name in ("n1", "n2"):
        enrol(running_plane, name, expect(running_plane, name))
    engine = create_async_engine(running_plane.settings.database_url.get_secret_value())
    yield Heartbeats(engine)
    await engine.dispose()


def beat_of(name: str, credential: str = CREDENTIAL, spooled: int = 0) -> Beat:
    said = Heartbeat.model_validate({**BEAT, "spooled_reports": spooled})
    return Beat(Shown(NodeId(name), digest(credential)), said)


def heard(plane: RunningPlane) -> dict[str, int]:
    return dict(plane.rows("select node_id, spooled_reports from work.node_seen"))


async def test_a_stranger_among_those_of_the_same_moment_is_refused_alone(
    heartbeats: Heartbeats, running_plane: RunningPlane
) -> None:
    beats = (beat_of("n1"), beat_of("n2", "guessed"), beat_of("n3"), beat_of("n2", spooled=2))
    first, *strangers, last = await asyncio.gather(*map(heartbeats.take, beats), return_exceptions=True)
    assert isinstance(first, datetime)
    assert first == last
    assert [type(each) for each in strangers] == [Unauthorised, Unauthorised]
    assert heard(running_plane) == {"n1": 0, "n2": 2}


async def test_of_a_node_that_speaks_twice_in_a_moment_the_later_counts(
    heartbeats: Heartbeats, running_plane: RunningPlane
) -> None:
    await asyncio.gather(*(heartbeats.take(beat_of("n1", spooled=count)) for count in (3, 1, 2)))
    assert heard(running_plane) == {"n1": 2}


async def test_while_the_database_is_slow_all_that_come_meanwhile_wait_for_one_statement(
    heartbeats: Heartbeats, running_plane: RunningPlane
) -> None:
    with psycopg.connect(running_plane.database.admin_dsn) as slow:
        slow.execute("lock table work.node_seen in access exclusive mode")
        beats, began = list[asyncio.Future[datetime]](), time.monotonic()
        while (moment := time.monotonic() - began) < 10 * MOMENT_SECONDS:
            if moment > 2 * MOMENT_SECONDS * len(beats):
                beats.append(asyncio.ensure_future(heartbeats.take(beat_of("n1"))))
            await asyncio.sleep(MOMENT_SECONDS / 10)
        slow.rollback()
    moments = await asyncio.gather(*beats)
    assert len(set(moments)) == 2, "each statement has one"


async def test_a_caller_who_hangs_up_takes_nobodys_heartbeat_with_him(
    heartbeats: Heartbeats, running_plane: RunningPlane
) -> None:
    gone, stays = (asyncio.ensure_future(heartbeats.take(beat_of(name))) for name in ("n1", "n2"))
    await asyncio.sleep(0)
    gone.cancel()
    assert isinstance(await stays, datetime)
    assert heard(running_plane) == {"n1": 0, "n2": 0}
