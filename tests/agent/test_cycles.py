"""P16: whatever happens to a node while slices come and go, once they are proved gone nothing of them is left (Leak-0).

In each cycle a slice with a way in is ordered and comes up as far as chance has it, unless it is made to fail,
something on the node is broken or killed, and the slice is ordered away. The proof of absence is the node's; that it
is true is found by a checker that shares no code with it, at the first look after the proof that sees everything:
after another survey, a proof that came too early would pass for a true one. Only what is the node's own may come back
later.

Of its kinds one is left out, "redis key": a message that a killed agent had in hand is the dispatcher's to give again,
and there is no dispatcher here. With one, they are compared too (`tests/faults/test_killed_programs.py`).
"""

import random
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from control_plane import redis_nodes
from events.values import SlotIndex
from node_agent.lab.harms import HARMS, names
from node_agent.lab.lab import Lab
from node_agent.lab.leaks.snapshot import Difference, Snapshot, differences, take
from node_agent.lab.leaks.target import HostTarget
from tasks.drift import DriftKind
from tasks.orders import Order
from tests import matrix
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually, eventually_async
from tests.agent.orders import NODE, apply, network, remove, ssh_from_outside
from tests.agent.queue import enrolled, send
from tests.agent.real_node import (
    RUN_FOLDER,
    RealNode,
    guest_images,
    queue_of,
    real_node,
)
from tests.torture import seed

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(4 * 3600)]
CYCLES: Final = 1000 if matrix.is_full() else 50
CONVERGED: Final = 90.0
MOMENTS: Final = ("at once", "slice.starting", "slice.starting", "slice.address", "slice.ready")
"""How far a slice comes before something happens to its node."""
BROKEN: Final[tuple[DriftKind, ...]] = (
    "bridge.absent",
    "bridge.changed",
    "bridge.foreign_flows",
    "gateway.address",
    "gateway.forwarding",
    "gateway.rules",
    "link.absent",
    "link.changed",
    "lease.unreserved",
    "lease.rival",
    "port.absent",
    "port.flows",
    "port.meter",
    "rules.changed",
    "machine.absent",
    "machine.paused",
)
KILLED: Final = ("agent", "ovs-vswitchd", "ovsdb-server", "dnsmasq", "libvirtd", "qemu-system-x86_64")
LINES: Final[dict[str, str]] = {kind: HARMS[kind].done for kind in BROKEN}
FAULTS: Final = (*LINES, *KILLED, "nothing")
FAILING: Final[dict[str, dict[str, Any]]] = {
    "no time": {"deadline": 1},
    "no such image": {"image": "gone"},
}
"""Orders of slices that cannot come up."""
FATES: Final = ("comes up", "comes up", "comes up", *FAILING)
NODES_OWN: Final = (
    # What `bridge.foreign_flows` adds.
    re.compile(r"br-slice: .*cookie=0x77.* actions=NORMAL"),
    # Of a bridge that forwards by itself (`bridge.changed`).
    re.compile(r"br-slice: priority=0 actions=NORMAL"),
)
"""What may still be there when a slot is proved empty, to be taken away by a survey: no slice's."""


@pytest.fixture
def url(lab: Lab, plane: FakeControlPlane) -> Iterator[str]:
    with queue_of(lab, plane) as url:
        yield url


@pytest.fixture
def url_file(url: str, tmp_path: Path) -> Path:
    """The checker reads the queue's URL from a file."""
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


def happen(node: RealNode, fault: str, index: SlotIndex) -> None:
    """What it would break may not be there, or may be gone the next moment: then nothing happens."""
    if fault in KILLED:
        with suppress(ProcessLookupError):
            node.lab.kill(fault)
    elif fault in LINES:
        own = network(index)
        known = names(index, own.mac_address, own.private_ip, RUN_FOLDER, off="slice9", device="none0")
        node.lab.run(["sh", "-c", LINES[fault]], check=False, environment=known)


def said_of(plane: FakeControlPlane, position: int, kind: str) -> bool:
    name = apply(position).order_id
    return any(report.order_id == name and report.body.kind == kind for report in plane.reports)


def ordered(position: int, fate: str) -> Order:
    return apply(position, ways=(ssh_from_outside(),), rate=100, **{"deadline": 120} | FAILING.get(fate, {}))


async def come_up(plane: FakeControlPlane, node: RealNode, position: int, moment: str) -> None:
    """As far as that, unless the slice fails."""
    if moment != "at once":
        await eventually_async(
            lambda: any(said_of(plane, position, kind) for kind in (moment, "slice.failed")),
            CONVERGED,
            node.log,
        )


async def remove_it(control: Redis, plane: FakeControlPlane, node: RealNode, position: int) -> None:
    await send(control, remove(position))
    await eventually_async(lambda: said_of(plane, position, "slice.removed"), CONVERGED, node.log)


def look(lab: Lab, redis_url_file: Path) -> Snapshot:
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


async def first_full_look(lab: Lab, url_file: Path) -> Snapshot:
    """What was killed is being started again; meanwhile a look does not see all there is."""
    looks: list[Snapshot] = []

    def sees_everything() -> bool:
        looks.append(look(lab, url_file))
        return not looks[-1].unseen

    await eventually_async(sees_everything, CONVERGED, lambda: str(looks[-1].unseen))
    return looks[-1]


def differing(before: Snapshot, seen: Snapshot) -> list[Difference]:
    return [each for each in differences(before, seen) if each.kind != "redis key"]


def left_behind(before: Snapshot, seen: Snapshot) -> list[Difference]:
    """What is there beyond what was, but for the node's own."""
    return [
        each
        for each in differing(before, seen)
        if each.change == "appeared" and not any(own.fullmatch(each.object) for own in NODES_OWN)
    ]


async def test_cycles_of_slices_that_fail_or_not_with_faults_between_leave_nothing(
    lab: Lab, node: RealNode, plane: FakeControlPlane, control: Redis, url_file: Path
) -> None:
    chance = random.Random(seed())
    node.start()
    await enrolled(plane)
    # The first leaves what the node keeps for all slices.
    await send(control, apply(1))
    await remove_it(control, plane, node, 2)
    before = look(lab, url_file)
    assert not before.unseen
    for cycle in range(1, CYCLES + 1):
        position, moment, fault = 10 * cycle, chance.choice(MOMENTS), chance.choice(FAULTS)
        fate = chance.choice(FATES)
        print(f"cycle {cycle} of {CYCLES}: {fate}, {moment}, {fault}")
        await send(control, ordered(position, fate))
        await come_up(plane, node, position, moment)
        if fate in FAILING and moment == "slice.ready":
            assert said_of(plane, position, "slice.failed")
        happen(node, fault, SlotIndex(0))
        await remove_it(control, plane, node, position + 1)
        seen = await first_full_look(lab, url_file)
        assert left_behind(before, seen) == []

        def is_as_before() -> bool:
            again = look(lab, url_file)
            return not again.unseen and differing(before, again) == []

        if differing(before, seen):
            eventually(is_as_before, CONVERGED, lambda: str(differing(before, look(lab, url_file))))
