"""P16: no object of a removed slice remains on its node, even if the slice failed or faults were injected.

Each cycle orders a slice with an ingress rule. The slice starts or is made to fail. The cycle waits until the slice
reaches a randomly chosen stage or fails, injects a fault or kills a process on the node, and removes the slice. The
node reports the proof that the slice is absent. A leak checker that shares no code with the node verifies this proof
with the first complete snapshot after the report: a later snapshot could follow another survey, and would not detect
that the node reported the proof too early. Objects of the node itself may remain until the next survey.

The leak check of these tests omits Redis keys: the dispatcher requeues the messages that a killed agent had in flight,
and these tests run no dispatcher. `tests/faults/lab/test_killed_programs.py` compares Redis keys too.
"""

import random
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from control_plane.queues import redis_nodes
from events.values import SlotIndex
from node_agent.lab.fault_injection import INJECTED_FAULTS, names
from node_agent.lab.lab import Lab
from node_agent.lab.leaks.snapshot import Difference, Snapshot, differences, take
from node_agent.lab.leaks.target import HostTarget
from tasks.drift import DriftKind
from tasks.orders import Order
from tests import matrix
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually, eventually_async
from tests.agent.orders import NODE, apply, network, remove, ssh_ingress
from tests.agent.queue import await_enrolment, send
from tests.agent.real_node import (
    RUN_FOLDER,
    RealNode,
    guest_images,
    node_queue,
    real_node,
)
from tests.torture import seed

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(4 * 3600)]
CYCLES: Final = 1000 if matrix.is_full() else 2
CONVERGED: Final = 90.0
STAGES: Final = ("immediately", "slice.starting", "slice.starting", "slice.address", "slice.ready")
"""Stages from which each cycle chooses the one that the slice reaches before the fault is injected."""
INJECTED: Final[tuple[DriftKind, ...]] = (
    "bridge.absent",
    "bridge.changed",
    "bridge.foreign_flows",
    "gateway.address",
    "gateway.forwarding",
    "gateway.rules",
    "link.absent",
    "link.changed",
    "lease.unreserved",
    "lease.conflicting",
    "port.absent",
    "port.flows",
    "port.meter",
    "rules.changed",
    "machine.absent",
    "machine.paused",
)
KILLED: Final = ("agent", "ovs-vswitchd", "ovsdb-server", "dnsmasq", "libvirtd", "qemu-system-x86_64")
LINES: Final[dict[str, str]] = {kind: INJECTED_FAULTS[kind].inject_command for kind in INJECTED}
FAULTS: Final = (*LINES, *KILLED, "nothing")
FAILING: Final[dict[str, dict[str, Any]]] = {
    "deadline too short": {"deadline": 1},
    "unknown image": {"image": "gone"},
}
"""Changes to an order that make its slice fail."""
OUTCOMES: Final = ("becomes ready", "becomes ready", "becomes ready", *FAILING)
NODE_OBJECTS: Final = (
    # Flow that the fault `bridge.foreign_flows` adds.
    re.compile(r"br-slice: .*cookie=0x77.* actions=NORMAL"),
    # Flow of a bridge that forwards as a plain switch (fault `bridge.changed`).
    re.compile(r"br-slice: priority=0 actions=NORMAL"),
)
"""Objects that belong to the node and not to a slice: they may remain after a removal until the next survey."""


@pytest.fixture
def url(lab: Lab, plane: FakeControlPlane) -> Iterator[str]:
    with node_queue(lab, plane) as url:
        yield url


@pytest.fixture
def url_file(url: str, tmp_path: Path) -> Path:
    """File from which the leak checker reads the URL of the Redis of the task queue."""
    file = tmp_path / "redis-url"
    file.write_text(url)
    return file


@pytest.fixture
async def control(url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(url) as client:
        await redis_nodes.ensure_scripts(client)
        yield client


@pytest.fixture
def node(lab: Lab, plane: FakeControlPlane) -> Iterator[RealNode]:
    with real_node(lab, plane, guest_images()) as node:
        yield node


def inject(node: RealNode, fault: str, index: SlotIndex) -> None:
    """Inject the fault on the node, or kill the process that `fault` names; a missing target is ignored."""
    if fault in KILLED:
        with suppress(ProcessLookupError):
            node.lab.kill(fault)
    elif fault in LINES:
        own = network(index)
        known = names(index, own.mac_address, own.private_ip, RUN_FOLDER, off="slice9", device="none0")
        node.lab.run(["sh", "-c", LINES[fault]], check=False, environment=known)


def is_reported(plane: FakeControlPlane, position: int, kind: str) -> bool:
    name = apply(position).order_id
    return any(report.order_id == name and report.body.kind == kind for report in plane.reports)


def order_at(position: int, outcome: str) -> Order:
    return apply(position, ingress=(ssh_ingress(),), rate=100, **{"deadline": 120} | FAILING.get(outcome, {}))


async def await_stage(plane: FakeControlPlane, node: RealNode, position: int, stage: str) -> None:
    """Wait until the node has reported that the slice reached the stage or failed."""
    if stage != "immediately":
        await eventually_async(
            lambda: any(is_reported(plane, position, kind) for kind in (stage, "slice.failed")),
            CONVERGED,
            node.log,
        )


async def remove_slice(control: Redis, plane: FakeControlPlane, node: RealNode, position: int) -> None:
    await send(control, remove(position))
    await eventually_async(lambda: is_reported(plane, position, "slice.removed"), CONVERGED, node.log)


def take_snapshot(lab: Lab, redis_url_file: Path) -> Snapshot:
    return take(
        HostTarget(
            pid=lab.node(NODE).pid,
            disks="/run/sliceplane/disks",
            dhcp_hosts="/run/sliceplane/dhcp/hosts",
            dhcp_leases="/run/sliceplane/dhcp/leases",
            slices="10.100.1.0/24",
            redis_url_file=str(redis_url_file),
            namespace=f"ctl:{NODE}",
        )
    )


async def first_complete_snapshot(lab: Lab, url_file: Path) -> Snapshot:
    """Return the first complete host snapshot. Snapshots are incomplete while a killed process restarts."""
    snapshots: list[Snapshot] = []

    def is_complete() -> bool:
        snapshots.append(take_snapshot(lab, url_file))
        return not snapshots[-1].unreadable

    await eventually_async(is_complete, CONVERGED, lambda: str(snapshots[-1].unreadable))
    return snapshots[-1]


def differing(before: Snapshot, found: Snapshot) -> list[Difference]:
    return [each for each in differences(before, found) if each.kind != "redis key"]


def left_behind(before: Snapshot, found: Snapshot) -> list[Difference]:
    """Return the objects that exist only in the second snapshot, except objects that belong to the node itself."""
    return [
        each
        for each in differing(before, found)
        if each.change == "appeared" and not any(own.fullmatch(each.object) for own in NODE_OBJECTS)
    ]


async def test_slices_removed_at_random_stages_with_random_faults_leave_no_object_on_the_node(
    lab: Lab, node: RealNode, plane: FakeControlPlane, control: Redis, url_file: Path
) -> None:
    chance = random.Random(seed())
    node.start()
    await await_enrolment(plane)
    # The first slice creates the objects that the node keeps for all slices.
    await send(control, apply(1))
    await remove_slice(control, plane, node, 2)
    before = take_snapshot(lab, url_file)
    assert not before.unreadable
    for cycle in range(1, CYCLES + 1):
        position, stage, fault = 10 * cycle, chance.choice(STAGES), chance.choice(FAULTS)
        outcome = chance.choice(OUTCOMES)
        print(f"cycle {cycle} of {CYCLES}: {outcome}, {stage}, {fault}")
        await send(control, order_at(position, outcome))
        await await_stage(plane, node, position, stage)
        if outcome in FAILING and stage == "slice.ready":
            assert is_reported(plane, position, "slice.failed")
        inject(node, fault, SlotIndex(0))
        await remove_slice(control, plane, node, position + 1)
        found = await first_complete_snapshot(lab, url_file)
        assert left_behind(before, found) == []

        def is_as_before() -> bool:
            again = take_snapshot(lab, url_file)
            return not again.unreadable and differing(before, again) == []

        if differing(before, found):
            eventually(is_as_before, CONVERGED, lambda: str(differing(before, take_snapshot(lab, url_file))))
