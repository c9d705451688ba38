"""Heartbeats are sent at the interval that the control plane or the settings define (PLT-3)."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from redis.asyncio import Redis
from typing_extensions import override

from node_agent.runtime.clock import NodeClock
from node_agent.runtime.timetable import Timetable
from node_agent.transport import heartbeat
from node_agent.transport.client import ControlPlane
from node_agent.transport.contact import Contact
from node_agent.transport.gate import Gate
from node_agent.transport.heartbeat import HeartbeatSender
from node_agent.transport.reporter import Reporter
from node_agent.transport.spool import Spool
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually, eventually_async
from tests.agent.program.test_agent import Running, start, toy
from tests.agent.program.test_reporter import spool_reports

__all__ = ["start", "toy"]
SHORT, LONG = 0.05, 300.0
MANY = 20


def settled_heartbeats(plane: FakeControlPlane) -> int:
    """Count heartbeats sent with resync complete and spool empty; before that, heartbeats are sent more often."""
    return sum(beat.resynced and not beat.spooled_reports for beat in plane.heartbeats)


async def test_node_sends_heartbeats_at_the_interval_of_its_session(
    start: Callable[..., Running], plane: FakeControlPlane, control: Redis
) -> None:
    plane.heartbeat_seconds = SHORT
    start(heartbeat_seconds=None)
    await eventually_async(lambda: settled_heartbeats(plane) > MANY)


async def test_configured_heartbeat_interval_overrides_the_heartbeat_interval_of_the_session(
    start: Callable[..., Running], plane: FakeControlPlane, control: Redis
) -> None:
    plane.heartbeat_seconds = LONG
    start(heartbeat_seconds=SHORT)
    await eventually_async(lambda: settled_heartbeats(plane) > MANY)


async def test_shorter_heartbeat_interval_takes_effect_at_the_session_renewal(
    start: Callable[..., Running], plane: FakeControlPlane, control: Redis
) -> None:
    plane.heartbeat_seconds = LONG
    start(heartbeat_seconds=None, renewal_seconds=0.3)
    await eventually_async(lambda: settled_heartbeats(plane) == 1)
    plane.heartbeat_seconds = SHORT
    await eventually_async(lambda: settled_heartbeats(plane) > MANY)


def test_heartbeat_is_sent_at_once_when_the_last_spooled_report_was_accepted(
    client: ControlPlane,
    enrolled_plane: FakeControlPlane,
    spool: Spool,
    reporter: Reporter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "UNSETTLED_SECONDS", LONG)
    spool_reports(reporter)
    contact_record = CountedContact()
    with heartbeat_sender(client, spool, contact=contact_record) as beats:
        beats.resynced()
        eventually(lambda: contact_record.times == 1)
        spool.forget(1)
        beats.delivered()
        eventually(lambda: contact_record.times == 2)
        beats.delivered()
        # A superfluous heartbeat would already be in flight, before the heartbeat that this call requests.
        beats.resynced()
        eventually(lambda: contact_record.times == 3)
        spool_reports(reporter)
        beats.resynced()
        eventually(lambda: spooled_counts(enrolled_plane)[-1] == 1)
    assert spooled_counts(enrolled_plane) == [1, 0, 0, 1]


class CountedContact(Contact):
    """`Contact` that counts completed heartbeats: `record_answer` is the last call of each heartbeat."""

    def __init__(self) -> None:
        super().__init__(lambda: LONG)
        self.times = 0

    @override
    def record_answer(self) -> None:
        super().record_answer()
        self.times += 1


def spooled_counts(plane: FakeControlPlane) -> list[int]:
    return [beat.spooled_reports for beat in plane.heartbeats]


def test_spooled_reports_do_not_shorten_the_heartbeat_interval(
    client: ControlPlane,
    enrolled_plane: FakeControlPlane,
    spool: Spool,
    reporter: Reporter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "UNSETTLED_SECONDS", 0.01)
    spool_reports(reporter)
    began = time.monotonic()
    with heartbeat_sender(client, spool, seconds=0.3) as beats:
        beats.resynced()
        eventually(lambda: spooled_counts(enrolled_plane) == [1, 1, 1])
    assert time.monotonic() - began > 0.5


@contextmanager
def heartbeat_sender(
    client: ControlPlane, spool: Spool, *, seconds: float = LONG, contact: Contact | None = None
) -> Iterator[HeartbeatSender]:
    clock, contact_record = NodeClock(), contact or Contact(lambda: LONG)
    gate = Gate(spool, clock)
    with Timetable() as timetable:
        yield HeartbeatSender(
            client, clock, spool, gate, timetable, contact=contact_record, seconds=lambda: seconds
        )
