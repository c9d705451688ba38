"""Every drift kind on a real node is detected, reported with its kind and slot, and repaired if possible."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from redis.asyncio import Redis

from control_plane.queues import redis_nodes
from events.values import IngressId, PciAddress, SlotIndex
from node_agent.host.slices import tap_of
from node_agent.lab.fault_injection import INJECTED_FAULTS, OTHER_INJECTED_FAULTS, InjectedFault, names
from node_agent.lab.lab import Lab
from node_agent.settings import Settings, SlotSettings
from tasks.drift import CATALOGUE, KINDS, DriftKind, LocatedEvidence
from tasks.orders import Order
from tasks.reports import DriftRepaired, NodeSurveyed
from tests import matrix
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually
from tests.agent.orders import NODE, apply, network, ssh_ingress, stop
from tests.agent.queue import await_enrolment, send
from tests.agent.real_node import (
    RUN_FOLDER,
    RealNode,
    guest_images,
    node_queue,
    real_node,
)
from tests.node.pci_trees import lay_out

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.shared_system, pytest.mark.timeout(300)]
BOOT = 90.0
DETECTED = 30.0
FOUND_BY_DEFAULT: Final = 15.0
"""P17: seconds within which the default survey finds drift without a change event."""
Kind = tuple[int | None, str, IngressId | None]
"""Slot or None for the node, drift kind, and ingress rule if the kind has that scope."""
RUNNING, STOPPED = SlotIndex(0), SlotIndex(1)
"""Indexes of the slot with a running slice and of the slot with a stopped slice."""
INGRESS: Final = ssh_ingress()
KINDS_OF_STOPPED_SLOT: Final = {"slot.occupied", "slot.device"}
DEVICE: Final = "tmfifo_net0"
GPU: Final = PciAddress("0000:1b:00.0")
FLOWS: Final = "ovs-ofctl -O OpenFlow14 --no-stats dump-flows br-slice || :"
ELSEWHERE, PINNED = (f(os.sched_getaffinity(0)) for f in (min, max))
"""CPU of the host to which an operator moves a machine, and CPU to which the machine is pinned. Both are equal on a
host with one CPU, where a machine cannot be moved.
"""
NAMES: Final = names(
    RUNNING,
    network(RUNNING).mac_address,
    network(RUNNING).private_ip,
    RUN_FOLDER,
    off=tap_of(STOPPED),
    device=DEVICE,
    elsewhere=str(ELSEWHERE),
)


@dataclass(frozen=True)
class Detection:
    """How the agent detects drift: by change events, or by a survey at an interval in seconds."""

    watch_changes: bool
    survey_seconds: float


DETECTIONS: Final = {
    "events": Detection(watch_changes=True, survey_seconds=3600),
    "surveyed": Detection(watch_changes=False, survey_seconds=2),
    "surveyed by default": Detection(
        watch_changes=False, survey_seconds=Settings.model_fields["survey_seconds"].default
    ),
}


@dataclass
class CarryingNode:
    """A node with a running slice in one slot and a stopped slice in the other."""

    node: RealNode
    plane: FakeControlPlane
    sysfs: Path

    def do(self, script: str) -> None:
        self.node.do(script, {**NAMES, "function": str(self.sysfs / "bus/pci/devices" / GPU)})

    def restart_agent(self, detection: Detection) -> None:
        """Restart the agent with other settings and wait for the first survey.

        The restart clears the agent's record of recurring drift.
        """
        self.node.lab.stop_daemon("agent")
        settings = Settings.model_validate_json(self.node.config.read_text())
        self.node.config.write_text(settings.model_copy(update=vars(detection)).model_dump_json())
        before = len(self.plane.heartbeats)
        self.node.start()
        eventually(lambda: any(beat.resynced for beat in self.plane.heartbeats[before:]), BOOT, self.node.log)

    def flows(self) -> list[str]:
        """Return the flows of the OVS bridge. OVS removes them some time after a fault has changed the bridge, so the
        next fault must wait until they are restored.
        """
        return sorted(self.node.do(FLOWS).splitlines())

    def open(self) -> tuple[LocatedEvidence, ...]:
        """Return the open drift in the newest survey report."""
        described = [report.body for report in self.plane.reports if isinstance(report.body, NodeSurveyed)]
        return described[-1].drift if described else ()

    def reported(self, since: int) -> dict[Kind, str]:
        """Return the observed state of all drift in the reports from index `since` on."""
        found = dict[Kind, str]()
        for body in (report.body for report in self.plane.reports[since:]):
            match body:
                case DriftRepaired(slot=slot, drift=drift):
                    found |= {(slot, each.kind, each.ingress_id): each.observed for each in drift}
                case NodeSurveyed(drift=drift):
                    found |= {(each.slot, each.kind, each.ingress_id): each.observed for each in drift}
                case _:
                    pass
        return found


class Case(NamedTuple):
    """A fault with its name, the drift kind that it causes, and how the agent detects it."""

    detection: str
    name: str
    kind: DriftKind
    fault: InjectedFault

    def __str__(self) -> str:
        return f"{self.detection}-{self.name}"


ALL_FAULTS: Final[tuple[tuple[str, DriftKind, InjectedFault], ...]] = (
    *((kind, kind, fault) for kind, fault in INJECTED_FAULTS.items()),
    *((name, kind, fault) for name, (kind, fault) in OTHER_INJECTED_FAULTS.items()),
)
CASES: Final = [
    *(
        Case("events", *entry)
        for entry in ALL_FAULTS
        if CATALOGUE[entry[1]].source != "survey" and not entry[2].unreported
    ),
    *(Case("surveyed", *entry) for entry in ALL_FAULTS),
]


class Site:
    """A lab node with slices and an agent, which is restarted with the settings of each detection method."""

    def __init__(self, carrying: CarryingNode) -> None:
        self._carrying = carrying
        self._flows = carrying.flows()

    def carrying(self, detection: str) -> CarryingNode:
        """Restart the agent with this detection method, and return the node once it has no open drift."""
        self._carrying.restart_agent(DETECTIONS[detection])
        eventually(
            lambda: self._carrying.open() == () and self._carrying.flows() == self._flows,
            BOOT,
            self._carrying.node.log,
        )
        return self._carrying


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    with _carrying(lab) as carrying:
        yield Site(carrying)


@contextmanager
def _carrying(lab: Lab) -> Iterator[CarryingNode]:
    plane, sysfs = FakeControlPlane(), Path(tempfile.mkdtemp(prefix="sys-", dir=lab.node(NODE).folder))
    lay_out("hgx", sysfs)
    slots = (
        SlotSettings(index=RUNNING, vcpus=1, memory_mib=96, cpus=(PINNED,)),
        SlotSettings(index=STOPPED, vcpus=1, memory_mib=96, gpus=(GPU,)),
    )

    def changed(settings: Settings) -> Settings:
        changes = {"bf3_link": DEVICE, "sysfs_root": sysfs, "slots": slots}
        return settings.model_copy(update=changes)

    with node_queue(lab, plane) as url, real_node(lab, plane, guest_images(), changed) as node:
        node.do(f"ip link show {DEVICE} 2>/dev/null || ip link add {DEVICE} type bridge")
        node.start()
        carries = apply(7, ingress=(INGRESS,), rate=100, deadline=int(BOOT))
        asyncio.run(_bring_up(url, plane, carries, apply(8, index=STOPPED), stop(9, index=STOPPED)))
        plane.await_kind("slice.stopped", within=BOOT)
        plane.await_kind("slice.ready", within=BOOT)
        yield CarryingNode(node, plane, sysfs)


async def _bring_up(url: str, plane: FakeControlPlane, *orders: Order) -> None:
    async with Redis.from_url(url) as queue:
        await redis_nodes.ensure_scripts(queue)
        await await_enrolment(plane)
        for order in orders:
            await send(queue, order)


def test_every_drift_kind_that_a_node_reports_has_an_injected_fault() -> None:
    # Labs have no PCI device for a machine, and the control plane itself reports the other kinds.
    assert set(INJECTED_FAULTS) == set(KINDS) - {
        "machine.devices",
        "slot.ungranted",
        "slot.changed",
        "slot.absent",
    }


@matrix.cases("P17", CASES, few=1)
def test_injected_fault_is_detected_as_drift_of_its_kind_and_repaired_or_reported(
    site: Site, case: Case
) -> None:
    kind, carrying = case.kind, site.carrying(case.detection)
    fault, type_ = case.fault, CATALOGUE[kind]
    slot_index = None if type_.scope == "node" else int(STOPPED if kind in KINDS_OF_STOPPED_SLOT else RUNNING)
    ingress_id = INGRESS.ingress_id if type_.scope == "ingress" else None
    before = len(carrying.plane.reports)
    carrying.do(fault.inject_command)
    eventually(
        lambda: (slot_index, kind, ingress_id) in carrying.reported(before),
        DETECTED,
        lambda: f"{carrying.reported(before)}\n{carrying.node.log()[-4000:]}",
    )
    if type_.policy != "repair":
        assert (slot_index, kind, ingress_id) in {
            (each.slot, each.kind, each.ingress_id) for each in carrying.open()
        }
    carrying.do(fault.revert_command)
    eventually(lambda: carrying.open() == (), BOOT, carrying.node.log)
    if type_.scope != "node":
        others = {(slot, other) for slot, other, _ in carrying.reported(before) if slot != slot_index}
        assert others <= {(None, other) for other in fault.also_causes}, (
            "drift of one slot was reported for another slot"
        )


def test_drift_without_a_change_event_is_found_by_the_periodic_survey_within_15_seconds(
    site: Site,
) -> None:
    carrying = site.carrying("surveyed by default")
    kind: DriftKind = "gateway.forwarding"

    def inject_and_detect() -> None:
        before = len(carrying.plane.reports)
        carrying.do(INJECTED_FAULTS[kind].inject_command)
        eventually(
            lambda: (None, kind, None) in carrying.reported(before), FOUND_BY_DEFAULT, carrying.node.log
        )

    inject_and_detect()
    # A survey has just ended, so the second fault waits for the longest possible time.
    inject_and_detect()
