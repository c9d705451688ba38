"""A node says that it lives as often as its control plane wants to hear it (PLT-3)."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from redis.asyncio import Redis
from typing_extensions import override

from node_agent import heartbeat
from node_agent.client import ControlPlane
from node_agent.clock import NodeClock
from node_agent.contact import Contact
from node_agent.gate import Gate
from node_agent.heartbeat import HeartbeatSender
from node_agent.reporter import Reporter
from node_agent.spool import Spool
from tasks.timetable import Timetable
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually, eventually_async
from tests.agent.test_agent import Running, start, toy
from tests.agent.test_reporter import tell

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


def test_that_the_last_report_was_taken_is_said_at_once(
    client: ControlPlane,
    known: FakeControlPlane,
    spool: Spool,
    reporter: Reporter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "UNSETTLED_SECONDS", SELDOM)
    tell(reporter)
    heard = Heard()
    with beating(client, spool, contact=heard) as beats:
        beats.resynced()
        eventually(lambda: heard.times == 1)
        spool.forget(1)
        beats.delivered()
        eventually(lambda: heard.times == 2)
        beats.delivered()
        # One beat too many would be under way by now, and these, which are asked for, come after it.
        beats.resynced()
        eventually(lambda: heard.times == 3)
        tell(reporter)
        beats.resynced()
        eventually(lambda: told(known)[-1] == 1)
    assert told(known) == [1, 0, 0, 1]


class Heard(Contact):
    """Counts the beats that are over: that it was heard is the last that a beat does."""

    def __init__(self) -> None:
        super().__init__(lambda: SELDOM)
        self.times = 0

    @override
    def heard(self) -> None:
        super().heard()
        self.times += 1


def told(plane: FakeControlPlane) -> list[int]:
    return [beat.spooled_reports for beat in plane.heartbeats]


def test_reports_that_wait_are_no_reason_to_beat_more_often(
    client: ControlPlane,
    known: FakeControlPlane,
    spool: Spool,
    reporter: Reporter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "UNSETTLED_SECONDS", 0.01)
    tell(reporter)
    began = time.monotonic()
    with beating(client, spool, seconds=0.3) as beats:
        beats.resynced()
        eventually(lambda: told(known) == [1, 1, 1])
    assert time.monotonic() - began > 0.5


@contextmanager
def beating(
    client: ControlPlane, spool: Spool, *, seconds: float = SELDOM, contact: Contact | None = None
) -> Iterator[HeartbeatSender]:
    clock, heard = NodeClock(), contact or Contact(lambda: SELDOM)
    gate = Gate(spool, clock)
    with Timetable() as timetable:
        yield HeartbeatSender(client, clock, spool, gate, timetable, contact=heard, seconds=lambda: seconds)
