"""Every kind of drift that another program can make on a real node: noticed, named, scoped, and mended or told."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from redis.asyncio import Redis

from control_plane import redis_nodes
from events.values import IngressId, PciAddress, SlotIndex
from node_agent.lab.harms import HARMS, OTHER_HARMS, Harm, names
from node_agent.lab.lab import Lab
from node_agent.settings import Settings, SlotSettings
from node_agent.slices import tap_of
from tasks.drift import CATALOGUE, KINDS, DriftKind, DriftSeen
from tasks.orders import Order
from tasks.reports import DriftMended, NodeSurveyed
from tests import matrix
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually
from tests.agent.orders import NODE, apply, network, ssh_from_outside, stop
from tests.agent.queue import enrolled, send
from tests.agent.real_node import (
    RUN_FOLDER,
    RealNode,
    guest_images,
    queue_of,
    real_node,
)
from tests.node.pci_trees import lay_out

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]
BOOT = 90.0
NOTICED = 30.0
FOUND_BY_DEFAULT: Final = 15.0
"""P17: seconds, though nobody hears of it."""
Kind = tuple[int | None, str, IngressId | None]
"""In which place, of what kind, and of which way in where it is of one."""
CARRYING, OFF = SlotIndex(0), SlotIndex(1)
"""The slot that carries a slice, and the one whose slice is off."""
WAY_IN: Final = ssh_from_outside()
OF_OFF: Final = {"slot.occupied", "slot.device"}
DEVICE: Final = "tmfifo_net0"
GPU: Final = PciAddress("0000:1b:00.0")
FLOWS: Final = "ovs-ofctl -O OpenFlow14 --no-stats dump-flows br-slice || :"
ELSEWHERE, PINNED = (f(os.sched_getaffinity(0)) for f in (min, max))
"""Two CPUs: on a host that has just one, no machine can be moved to another."""
NAMES: Final = names(
    CARRYING,
    network(CARRYING).mac_address,
    network(CARRYING).private_ip,
    RUN_FOLDER,
    off=tap_of(OFF),
    device=DEVICE,
    elsewhere=str(ELSEWHERE),
)


@dataclass
class Carrying:
    """A node with a slice in one slot, and one that is off in the other."""

    node: RealNode
    plane: FakeControlPlane
    sysfs: Path

    def do(self, script: str) -> None:
        self.node.do(script, {**NAMES, "function": str(self.sysfs / "bus/pci/devices" / GPU)})

    def restart_agent(self) -> None:
        """It has looked at everything once, and forgot what came up often of late."""
        self.node.lab.stop_daemon("agent")
        before = len(self.plane.heartbeats)
        self.node.start()
        eventually(lambda: any(beat.resynced for beat in self.plane.heartbeats[before:]), BOOT, self.node.log)

    def flows(self) -> list[str]:
        """Of the bridge: what is done to that ends theirs too, a moment later."""
        return sorted(self.node.do(FLOWS).splitlines())

    def open(self) -> tuple[DriftSeen, ...]:
        """By the node's last word."""
        described = [report.body for report in self.plane.reports if isinstance(report.body, NodeSurveyed)]
        return described[-1].drift if described else ()

    def told(self, since: int) -> dict[Kind, str]:
        """All drift that it reported after so many reports, and what was found."""
        told = dict[Kind, str]()
        for body in (report.body for report in self.plane.reports[since:]):
            match body:
                case DriftMended(slot=slot, drift=drift):
                    told |= {(slot, each.kind, each.ingress_id): each.found for each in drift}
                case NodeSurveyed(drift=drift):
                    told |= {(each.slot, each.kind, each.ingress_id): each.found for each in drift}
                case _:
                    pass
        return told


@dataclass(frozen=True)
class Ways:
    """By which the agent may notice: what it hears, or a survey every so many seconds."""

    hears_changes: bool
    survey_seconds: float


WAYS: Final = {
    "heard": Ways(hears_changes=True, survey_seconds=3600),
    "surveyed": Ways(hears_changes=False, survey_seconds=2),
    "surveyed by default": Ways(
        hears_changes=False, survey_seconds=Settings.model_fields["survey_seconds"].default
    ),
}


class Case(NamedTuple):
    """A harm by its name, what it makes, and by what the agent notices it."""

    ways: str
    name: str
    kind: DriftKind
    harm: Harm

    def __str__(self) -> str:
        return f"{self.ways}-{self.name}"


DONE: Final[tuple[tuple[str, DriftKind, Harm], ...]] = (
    *((kind, kind, harm) for kind, harm in HARMS.items()),
    *((name, kind, harm) for name, (kind, harm) in OTHER_HARMS.items()),
)
CASES: Final = [
    *(Case("heard", *done) for done in DONE if CATALOGUE[done[1]].source != "survey" and not done[2].silent),
    *(Case("surveyed", *done) for done in DONE),
]


class Site:
    """A lab node whose agent notices in one way or the other; another way is another agent."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._ends = lab, ExitStack()
        self._now: tuple[str, Carrying] | None = None
        self._flows: list[str] = []

    def carrying(self, ways: str) -> Carrying:
        """The node, while nothing is open there."""
        if self._now is None or self._now[0] != ways:
            self.close()
            self._now = ways, self._ends.enter_context(_carrying(self._lab, WAYS[ways]))
            self._flows = self._now[1].flows()
        carrying = self._now[1]
        carrying.restart_agent()
        eventually(lambda: carrying.open() == () and carrying.flows() == self._flows, BOOT, carrying.node.log)
        return carrying

    def close(self) -> None:
        self._ends.close()


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    site = Site(lab)
    yield site
    site.close()


@contextmanager
def _carrying(lab: Lab, ways: Ways) -> Iterator[Carrying]:
    plane, sysfs = FakeControlPlane(), Path(tempfile.mkdtemp(prefix="sys-", dir=lab.node(NODE).folder))
    lay_out("hgx", sysfs)
    slots = (
        SlotSettings(index=CARRYING, vcpus=1, memory_mib=96, cpus=(PINNED,)),
        SlotSettings(index=OFF, vcpus=1, memory_mib=96, gpus=(GPU,)),
    )

    def changed(settings: Settings) -> Settings:
        its = {"bf3_link": DEVICE, "sysfs_root": sysfs, "slots": slots, **vars(ways)}
        return settings.model_copy(update=its)

    with queue_of(lab, plane) as url, real_node(lab, plane, guest_images(), changed) as node:
        node.do(f"ip link show {DEVICE} 2>/dev/null || ip link add {DEVICE} type bridge")
        node.start()
        carries = apply(7, ways=(WAY_IN,), rate=100, deadline=int(BOOT))
        asyncio.run(_bring_up(url, plane, carries, apply(8, index=OFF), stop(9, index=OFF)))
        plane.await_kind("slice.stopped", within=BOOT)
        plane.await_kind("slice.ready", within=BOOT)
        yield Carrying(node, plane, sysfs)


async def _bring_up(url: str, plane: FakeControlPlane, *orders: Order) -> None:
    async with Redis.from_url(url) as queue:
        await redis_nodes.ensure_scripts(queue)
        await enrolled(plane)
        for order in orders:
            await send(queue, order)


def test_every_kind_that_a_node_names_is_made_by_some_harm() -> None:
    # No lab has a PCI device to give a machine, and the others the control plane names by itself.
    assert set(HARMS) == set(KINDS) - {"machine.devices", "slot.ungranted", "slot.absent"}


@matrix.cases("P17", CASES, few=8)
def test_drift_is_noticed_named_and_mended_or_told(site: Site, case: Case) -> None:
    kind, carrying = case.kind, site.carrying(case.ways)
    harm, type_ = case.harm, CATALOGUE[kind]
    place = None if type_.scope == "node" else int(OFF if kind in OF_OFF else CARRYING)
    way = WAY_IN.ingress_id if type_.scope == "exposure" else None
    before = len(carrying.plane.reports)
    carrying.do(harm.done)
    eventually(
        lambda: (place, kind, way) in carrying.told(before),
        NOTICED,
        lambda: f"{carrying.told(before)}\n{carrying.node.log()[-4000:]}",
    )
    if type_.policy != "repair":
        assert (place, kind, way) in {(each.slot, each.kind, each.ingress_id) for each in carrying.open()}
    carrying.do(harm.undone)
    eventually(lambda: carrying.open() == (), BOOT, carrying.node.log)
    if type_.scope != "node":
        others = {(slot, other) for slot, other, _ in carrying.told(before) if slot != place}
        assert others <= {(None, other) for other in harm.beside}, "its slot's drift is told of others"


def test_what_nobody_hears_of_is_found_in_time_by_the_survey_as_it_is_set_by_default(site: Site) -> None:
    carrying = site.carrying("surveyed by default")
    kind: DriftKind = "gateway.forwarding"

    def found_anew() -> None:
        before = len(carrying.plane.reports)
        carrying.do(HARMS[kind].done)
        eventually(lambda: (None, kind, None) in carrying.told(before), FOUND_BY_DEFAULT, carrying.node.log)

    found_anew()
    # Now a look has just ended, so that this one waits as long as anything ever does.
    found_anew()
