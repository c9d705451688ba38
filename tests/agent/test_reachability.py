"""A slice that cannot be reached, whatever the cause, on a real node: noticed, reported with its hop, and ended."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

import pytest
from redis.asyncio import Redis

from control_plane import redis_nodes
from events.values import IngressId, SlotIndex
from node_agent.lab.cuts import CUTS, Cut
from node_agent.lab.harms import names
from node_agent.lab.lab import Lab
from node_agent.settings import Settings
from tasks.drift import DriftSeen
from tasks.orders import PortMapping
from tasks.reports import NodeSurveyed, SliceExposed
from tests import matrix
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually
from tests.agent.orders import apply, network, ssh_from_outside
from tests.agent.queue import enrolled, send
from tests.agent.real_node import RUN_FOLDER, RealNode, guest_images, queue_of, real_node

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]
BOOT: Final = 90.0
NOTICED: Final = 15.0
"""P17: seconds."""
SLOT: Final = SlotIndex(0)


def _ingress() -> PortMapping:
    ingress = ssh_from_outside()
    assert isinstance(ingress, PortMapping)
    return ingress


INGRESS: Final = _ingress()
NAMES: Final = names(
    SLOT,
    network().mac_address,
    network().private_ip,
    RUN_FOLDER,
    public=INGRESS.public_address,
    public_port=str(INGRESS.public_port),
)


@dataclass(frozen=True)
class Ways:
    """What triggers the survey: hints and changed findings, or an interval in seconds."""

    hears_changes: bool
    survey_seconds: float


WAYS: Final = {"heard": Ways(True, 3600.0), "surveyed": Ways(False, 2.0)}


@dataclass
class Carrying:
    """A node with a slice that has an ingress."""

    node: RealNode
    plane: FakeControlPlane

    def do(self, script: str) -> None:
        self.node.do(script, NAMES)

    def restart_agent(self) -> None:
        """It forgets what came up often of late."""
        self.node.lab.stop_daemon("agent")
        before = len(self.plane.heartbeats)
        self.node.start()
        eventually(lambda: any(beat.resynced for beat in self.plane.heartbeats[before:]), BOOT, self.node.log)
        eventually(lambda: self.open() == (), BOOT, self.node.log)

    def open(self) -> tuple[DriftSeen, ...]:
        described = [report.body for report in self.plane.reports if isinstance(report.body, NodeSurveyed)]
        return described[-1].drift if described else ()

    def unreachable(self) -> list[DriftSeen]:
        return [each for each in self.open() if each.kind == "slice.unreachable"]

    def lost(self) -> tuple[IngressId, ...]:
        """The ingresses that are not reachable as published, by the newest report."""
        told = [report.body.lost for report in self.plane.reports if isinstance(report.body, SliceExposed)]
        return told[-1] if told else ()

    def log(self) -> str:
        return f"{self.open()}\n{self.node.log()[-4000:]}"


class Site:
    """A lab node whose agent surveys in one way or the other; another way is another agent."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._ends = lab, ExitStack()
        self._now: tuple[str, Carrying] | None = None

    def carrying(self, ways: str) -> Carrying:
        """The node, while nothing is open there."""
        if self._now is None or self._now[0] != ways:
            self.close()
            self._now = ways, self._ends.enter_context(_carrying(self._lab, WAYS[ways]))
        self._now[1].restart_agent()
        return self._now[1]

    def close(self) -> None:
        self._ends.close()


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    site = Site(lab)
    yield site
    site.close()


@contextmanager
def _carrying(lab: Lab, ways: Ways) -> Iterator[Carrying]:
    def changed(settings: Settings) -> Settings:
        return settings.model_copy(update=vars(ways))

    plane = FakeControlPlane()
    with queue_of(lab, plane) as url, real_node(lab, plane, guest_images(), changed) as node:
        node.start()
        asyncio.run(_bring_up(url, plane))
        plane.await_kind("slice.ready", within=BOOT)
        yield Carrying(node, plane)


async def _bring_up(url: str, plane: FakeControlPlane) -> None:
    async with Redis.from_url(url) as queue:
        await redis_nodes.ensure_scripts(queue)
        await enrolled(plane)
        await send(queue, apply(7, ways=(INGRESS,), rate=100, deadline=int(BOOT)))


class Case(NamedTuple):
    ways: str
    name: str
    cut: Cut

    def __str__(self) -> str:
        return f"{self.ways}-{self.name}"


CASES: Final = [Case(ways, name, cut) for ways in WAYS for name, cut in CUTS.items()]


@matrix.cases("P17", CASES, few=3)
def test_slice_that_is_cut_off_is_reported_with_the_hop_that_failed_until_it_answers(
    site: Site, case: Case
) -> None:
    carrying = site.carrying(case.ways)
    carrying.do(case.cut.done)
    try:
        eventually(lambda: carrying.unreachable() != [], NOTICED, carrying.log)
        found = carrying.unreachable()[0]
        assert found.found.endswith(f"(hop: {case.cut.hop})")
        if case.cut.hop == "ingress":
            assert found.ingress_id == INGRESS.ingress_id
            eventually(lambda: carrying.lost() == (INGRESS.ingress_id,), NOTICED, carrying.log)
    finally:
        carrying.do(case.cut.undone)
    eventually(lambda: carrying.unreachable() == [], NOTICED, carrying.log)
    eventually(lambda: (carrying.open(), carrying.lost()) == ((), ()), BOOT, carrying.log)


def test_slice_that_is_unreachable_when_the_agent_starts_again_stays_reported_since_then(site: Site) -> None:
    carrying, cut = site.carrying("surveyed"), CUTS["filter.input_dropped"]
    carrying.do(cut.done)
    try:
        eventually(lambda: carrying.unreachable() != [], NOTICED, carrying.log)
        before, reports = carrying.unreachable(), len(carrying.plane.reports)
        carrying.node.lab.kill("agent")
        eventually(lambda: len(carrying.plane.renewals) > 0, BOOT, carrying.log)
        beats = len(carrying.plane.heartbeats)
        eventually(lambda: len(carrying.plane.heartbeats) > beats + 10, BOOT, carrying.log)
        assert carrying.unreachable() == before
        assert [r for r in carrying.plane.reports[reports:] if isinstance(r.body, NodeSurveyed)] == []
    finally:
        carrying.do(cut.undone)
    eventually(lambda: carrying.open() == (), NOTICED, carrying.log)
