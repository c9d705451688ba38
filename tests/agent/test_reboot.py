"""P26 on a real node: a host loses its power, and with it its switch, rules, taps, DHCP server and guests.

With its disk or without it, with its control plane or without: what comes back is what was ordered last, the way in to
a slice too, and a slice that is off stays off. An order from before, of which the queue still has a copy, is refused.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from redis.asyncio import Redis

from node_agent.lab.lab import Lab
from node_agent.settings import Settings
from tests import matrix
from tests.agent.control_plane import FakeControlPlane, Mood
from tests.agent.eventually import eventually_async
from tests.agent.orders import NODE, apply, remove, ssh_from_outside, stop
from tests.agent.queue import enrolled, send
from tests.agent.real_node import (
    RealNode,
    control_of,
    guest_images,
    real_node,
)

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]
BOOT: Final = 90.0
PUBLIC_PORT: Final = 20022


@dataclass(frozen=True)
class Case:
    keeps_its_disk: bool
    mood: Mood

    def __str__(self) -> str:
        disk = "with" if self.keeps_its_disk else "without"
        return f"{disk}-its-disk-while-the-control-plane-is-{self.mood}"


CASES: Final[list[Case]] = [
    Case(keeps_its_disk=True, mood="well"),
    Case(keeps_its_disk=True, mood="away"),
    Case(keeps_its_disk=False, mood="well"),
    Case(keeps_its_disk=False, mood="away"),
]


@pytest.fixture
async def control(lab: Lab, plane: FakeControlPlane) -> AsyncIterator[Redis]:
    async with control_of(lab, plane) as client:
        yield client


@pytest.fixture
def node(lab: Lab, plane: FakeControlPlane) -> Iterator[RealNode]:
    with real_node(lab, plane, guest_images()) as node:
        yield node


def answers_from_outside(lab: Lab) -> bool:
    """Whether the guest of the first slot does, by its public port."""
    ask = f"exec 3<>/dev/tcp/{lab.node(NODE).uplink_address}/{PUBLIC_PORT} && head -c 4 <&3"
    return lab.site.run(["timeout", "2", "bash", "-c", ask], check=False).stdout == "SSH-"


def lose_disk(node: RealNode, plane: FakeControlPlane) -> None:
    """It is another host now: a person must say that this one may be the node."""
    settings = Settings.model_validate_json(node.config.read_text())
    shutil.rmtree(settings.state_folder)
    plane.token = "another-token-for-one-use"
    Path(settings.enrolment_token_file).write_text(plane.token)


def things(node: RealNode) -> tuple[list[str], ...]:
    """Ports, machines, taps and reservations."""
    ports = node.do("ovs-vsctl list-ports br-slice 2>/dev/null || :").split()
    reservations = node.do("ls /run/sliceplane/dhcp/hosts 2>/dev/null || :").split()
    return ports, node.domains(), node.taps(), reservations


@matrix.cases("P26", CASES, few=2)
async def test_a_host_that_rebooted_carries_again_what_was_last_ordered(
    lab: Lab, node: RealNode, plane: FakeControlPlane, control: Redis, case: Case
) -> None:
    runs = apply(7, deadline=120, ways=(ssh_from_outside(PUBLIC_PORT, node.lab.uplink_address),))
    off = stop(9, index=1)
    node.start()
    await enrolled(plane)
    for order in (runs, apply(8, index=1, deadline=120), off):
        await send(control, order)
    await eventually_async(lambda: {"slice.ready", "slice.stopped"} <= {*plane.kinds()}, BOOT, node.log)
    assert answers_from_outside(lab)
    plane.desired = [runs, off]

    # In a thread of its own: what plugs the node in again runs an event loop.
    await asyncio.to_thread(lab.reboot, NODE)
    assert things(node) == ([], [], [], [])
    if not case.keeps_its_disk:
        lose_disk(node, plane)
    await send(control, apply(5, index=1))
    plane.mood, turned_away = case.mood, plane.turned_away
    node.start()
    if case.mood == "away" and not case.keeps_its_disk:
        await eventually_async(lambda: plane.turned_away > turned_away + 2, BOOT, node.log)
        assert things(node) == ([], [], [], []), "nobody knows what it should carry"
        plane.mood = "well"
    await eventually_async(lambda: answers_from_outside(lab), BOOT, node.log)
    plane.mood = "well"
    await eventually_async(lambda: "order.refused" in plane.kinds(), BOOT, node.log)
    assert things(node) == (["slice0"], ["slice0"], ["slice0"], ["slice0", "slice1"])

    for order in (remove(10), remove(11, index=1)):
        await send(control, order)
    await eventually_async(lambda: plane.kinds().count("slice.removed") == 2, BOOT, node.log)
    assert things(node) == ([], [], [], [])
