"""A node says that it lives as often as its control plane wants to hear it (PLT-3)."""

from collections.abc import Callable

from redis.asyncio import Redis

from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually_async
from tests.agent.test_agent import Running, start, toy

__all__ = ["start", "toy"]
OFTEN, SELDOM = 0.05, 300.0
MANY = 20


def settled_beats(plane: FakeControlPlane) -> int:
    """Before it is settled, a node beats by itself more often."""
    return sum(beat.resynced and not beat.spooled_reports for beat in plane.heartbeats)


async def test_a_node_beats_as_often_as_its_session_says(
    start: Callable[..., Running], plane: FakeControlPlane, control: Redis
) -> None:
    plane.heartbeat_seconds = OFTEN
    start(heartbeat_seconds=None)
    await eventually_async(lambda: settled_beats(plane) > MANY)


async def test_a_node_that_was_told_otherwise_does_not_ask_its_session(
    start: Callable[..., Running], plane: FakeControlPlane, control: Redis
) -> None:
    plane.heartbeat_seconds = SELDOM
    start(heartbeat_seconds=OFTEN)
    await eventually_async(lambda: settled_beats(plane) > MANY)


async def test_a_shorter_interval_holds_from_the_renewal_on(
    start: Callable[..., Running], plane: FakeControlPlane, control: Redis
) -> None:
    plane.heartbeat_seconds = SELDOM
    start(heartbeat_seconds=None, renewal_seconds=0.3)
    await eventually_async(lambda: settled_beats(plane) == 1)
    plane.heartbeat_seconds = OFTEN
    await eventually_async(lambda: settled_beats(plane) > MANY)
