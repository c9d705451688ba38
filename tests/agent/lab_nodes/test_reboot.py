"""P26 on a real node: a host loses its power, and with it its switch, rules, taps, DHCP server and guests.

With or without its disk and its control plane, the host restores the slices of the newest orders, with their ingress
rules, and a stopped slice stays stopped. An older order of which the queue still has a copy is refused.
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
from tests.agent.control_plane import FakeControlPlane, Mode
from tests.agent.eventually import eventually_async
from tests.agent.orders import NODE, apply, remove, ssh_ingress, stop
from tests.agent.queue import await_enrolment, send
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
    keeps_disk: bool
    mode: Mode

    def __str__(self) -> str:
        disk = "with" if self.keeps_disk else "without"
        return f"{disk}-disk-and-control-plane-{self.mode}"


CASES: Final[list[Case]] = [
    Case(keeps_disk=True, mode="available"),
    Case(keeps_disk=True, mode="unavailable"),
    Case(keeps_disk=False, mode="available"),
    Case(keeps_disk=False, mode="unavailable"),
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
    """Return whether the guest of the first slot answers on its public port."""
    probe = f"exec 3<>/dev/tcp/{lab.node(NODE).uplink_address}/{PUBLIC_PORT} && head -c 4 <&3"
    return lab.site.run(["timeout", "2", "bash", "-c", probe], check=False).stdout == "SSH-"


def lose_disk(node: RealNode, plane: FakeControlPlane) -> None:
    """Delete the state folder of the agent and issue a new enrolment token, as an operator does for a new host."""
    settings = Settings.model_validate_json(node.config.read_text())
    shutil.rmtree(settings.state_folder)
    plane.token = "another-token-for-one-use"
    Path(settings.enrolment_token_file).write_text(plane.token)


def objects_on_node(node: RealNode) -> tuple[list[str], ...]:
    """Return the OVS ports, libvirt domains, taps and DHCP reservations on the node."""
    ports = node.do("ovs-vsctl list-ports br-slice 2>/dev/null || :").split()
    reservations = node.do("ls /run/sliceplane/dhcp/hosts 2>/dev/null || :").split()
    return ports, node.domains(), node.taps(), reservations


@matrix.cases("P26", CASES, few=1)
async def test_rebooted_host_restores_the_slices_of_the_newest_orders(
    lab: Lab, node: RealNode, plane: FakeControlPlane, control: Redis, case: Case
) -> None:
    runs = apply(7, deadline=120, ingress=(ssh_ingress(PUBLIC_PORT, node.lab.uplink_address),))
    off = stop(9, index=1)
    node.start()
    await await_enrolment(plane)
    for order in (runs, apply(8, index=1, deadline=120), off):
        await send(control, order)
    await eventually_async(lambda: {"slice.ready", "slice.stopped"} <= {*plane.kinds()}, BOOT, node.log)
    assert answers_from_outside(lab)
    plane.desired = [runs, off]

    # In a separate thread, because the reboot runs its own event loop.
    await asyncio.to_thread(lab.reboot, NODE)
    assert objects_on_node(node) == ([], [], [], [])
    if not case.keeps_disk:
        lose_disk(node, plane)
    await send(control, apply(5, index=1))
    plane.mode, rejected_requests = case.mode, plane.rejected_requests
    node.start()
    if case.mode == "unavailable" and not case.keeps_disk:
        await eventually_async(lambda: plane.rejected_requests > rejected_requests + 2, BOOT, node.log)
        assert objects_on_node(node) == ([], [], [], []), (
            "without a control plane, no desired state is available"
        )
        plane.mode = "available"
    await eventually_async(lambda: answers_from_outside(lab), BOOT, node.log)
    plane.mode = "available"
    await eventually_async(lambda: "order.refused" in plane.kinds(), BOOT, node.log)
    assert objects_on_node(node) == (["slice0"], ["slice0"], ["slice0"], ["slice0", "slice1"])

    for order in (remove(10), remove(11, index=1)):
        await send(control, order)
    await eventually_async(lambda: plane.kinds().count("slice.removed") == 2, BOOT, node.log)
    assert objects_on_node(node) == ([], [], [], [])
