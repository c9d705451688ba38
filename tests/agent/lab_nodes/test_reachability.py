"""Unreachable slices on a real node: each cause is reported as drift with the failed hop until the slice recovers."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

import pytest
from redis.asyncio import Redis

from control_plane.queues import redis_nodes
from events.values import IngressId, SlotIndex
from node_agent.lab.connectivity_faults import CONNECTIVITY_FAULTS, ConnectivityFault
from node_agent.lab.fault_injection import names
from node_agent.lab.lab import Lab
from node_agent.settings import Settings
from node_agent.slots.inspection import LastDescription
from tasks.drift import LocatedEvidence
from tasks.orders import PortMapping
from tasks.reports import NodeSurveyed, SliceIngressObserved
from tests import matrix
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually
from tests.agent.orders import apply, network, ssh_ingress
from tests.agent.queue import await_enrolment, send
from tests.agent.real_node import RUN_FOLDER, RealNode, guest_images, node_queue, real_node

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.shared_system, pytest.mark.timeout(300)]
BOOT: Final = 90.0
DETECTED: Final = 15.0
"""P17: seconds within which an unreachable slice is reported."""
SLOT: Final = SlotIndex(0)


def _ingress() -> PortMapping:
    ingress = ssh_ingress()
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
class Detection:
    """How the agent detects unreachable slices: by change events, or by a survey at an interval in seconds."""

    watch_changes: bool
    survey_seconds: float


DETECTIONS: Final = {"events": Detection(True, 3600.0), "surveyed": Detection(False, 2.0)}


@dataclass
class CarryingNode:
    """A node with a running slice that has an ingress rule."""

    node: RealNode
    plane: FakeControlPlane

    def do(self, script: str) -> None:
        self.node.do(script, NAMES)

    def restart_agent(self, detection: Detection) -> None:
        """Restart the agent with this detection method and wait until no drift is open. The restart clears the agent's
        record of recurring drift.
        """
        self.node.lab.stop_daemon("agent")
        settings = Settings.model_validate_json(self.node.config.read_text())
        self.node.config.write_text(settings.model_copy(update=vars(detection)).model_dump_json())
        before = len(self.plane.heartbeats)
        self.node.start()
        eventually(lambda: any(beat.resynced for beat in self.plane.heartbeats[before:]), BOOT, self.node.log)
        eventually(lambda: self.open() == (), BOOT, self.node.log)

    def open(self) -> tuple[LocatedEvidence, ...]:
        described = [report.body for report in self.plane.reports if isinstance(report.body, NodeSurveyed)]
        return described[-1].drift if described else ()

    def has_recorded_its_report(self) -> bool:
        """Whether the agent has stored its newest survey report in its state folder and marked the report as sent."""
        settings = Settings.model_validate_json(self.node.config.read_bytes())
        stored = LastDescription.model_validate_json((settings.state_folder / "described.json").read_bytes())
        return stored.token_sha256 != "" and stored.description.drift == self.open()

    def unreachable(self) -> list[LocatedEvidence]:
        return [each for each in self.open() if each.kind == "slice.unreachable"]

    def lost(self) -> tuple[IngressId, ...]:
        """Return the ids of the ingress rules that the newest ingress report lists as lost."""
        reported = [
            report.body.lost for report in self.plane.reports if isinstance(report.body, SliceIngressObserved)
        ]
        return reported[-1] if reported else ()

    def log(self) -> str:
        return f"{self.open()}\n{self.node.log()[-4000:]}"


class Site:
    """Lab node with a slice and an agent, which is restarted with the settings of each detection method."""

    def __init__(self, carrying: CarryingNode) -> None:
        self._carrying = carrying

    def carrying(self, detection: str) -> CarryingNode:
        """Return the node, with an agent that uses this detection method, once it has no open drift."""
        self._carrying.restart_agent(DETECTIONS[detection])
        return self._carrying


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    with _carrying(lab) as carrying:
        yield Site(carrying)


@contextmanager
def _carrying(lab: Lab) -> Iterator[CarryingNode]:
    plane = FakeControlPlane()
    with node_queue(lab, plane) as url, real_node(lab, plane, guest_images()) as node:
        node.start()
        asyncio.run(_bring_up(url, plane))
        plane.await_kind("slice.ready", within=BOOT)
        yield CarryingNode(node, plane)


async def _bring_up(url: str, plane: FakeControlPlane) -> None:
    async with Redis.from_url(url) as queue:
        await redis_nodes.ensure_scripts(queue)
        await await_enrolment(plane)
        await send(queue, apply(7, ingress=(INGRESS,), rate=100, deadline=int(BOOT)))


class Case(NamedTuple):
    detection: str
    name: str
    fault: ConnectivityFault

    def __str__(self) -> str:
        return f"{self.detection}-{self.name}"


CASES: Final = [
    Case(detection, name, fault) for detection in DETECTIONS for name, fault in CONNECTIVITY_FAULTS.items()
]


@matrix.cases("P17", CASES, few=1)
def test_slice_cut_off_by_a_fault_is_reported_with_the_failed_hop_until_it_answers(
    site: Site, case: Case
) -> None:
    carrying = site.carrying(case.detection)
    carrying.do(case.fault.inject_command)
    try:
        eventually(lambda: carrying.unreachable() != [], DETECTED, carrying.log)
        found = carrying.unreachable()[0]
        assert found.observed.endswith(f"(hop: {case.fault.hop})")
        if case.fault.hop == "ingress":
            assert found.ingress_id == INGRESS.ingress_id
            eventually(lambda: carrying.lost() == (INGRESS.ingress_id,), DETECTED, carrying.log)
    finally:
        carrying.do(case.fault.revert_command)
    eventually(lambda: carrying.unreachable() == [], DETECTED, carrying.log)
    eventually(lambda: (carrying.open(), carrying.lost()) == ((), ()), BOOT, carrying.log)


def test_drift_of_an_unreachable_slice_stays_open_since_its_first_detection_across_an_agent_restart(
    site: Site,
) -> None:
    carrying, fault = site.carrying("surveyed"), CONNECTIVITY_FAULTS["filter.input_dropped"]
    carrying.do(fault.inject_command)
    try:
        eventually(lambda: carrying.unreachable() != [], DETECTED, carrying.log)
        # A kill before the agent has recorded its report would lead to a second report of the same drift.
        eventually(carrying.has_recorded_its_report, DETECTED, carrying.log)
        before, reports = carrying.unreachable(), len(carrying.plane.reports)
        renewed = len(carrying.plane.renewals)
        carrying.node.lab.kill("agent")
        eventually(lambda: len(carrying.plane.renewals) > renewed, BOOT, carrying.log)
        beats = len(carrying.plane.heartbeats)
        eventually(lambda: len(carrying.plane.heartbeats) > beats + 10, BOOT, carrying.log)
        assert carrying.unreachable() == before
        assert [r for r in carrying.plane.reports[reports:] if isinstance(r.body, NodeSurveyed)] == []
    finally:
        carrying.do(fault.revert_command)
    eventually(lambda: carrying.open() == (), DETECTED, carrying.log)
