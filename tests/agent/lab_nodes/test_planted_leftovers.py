"""ALC-11: an object that appears between a slot's teardown and its verification is reported and blocks the slot.

A failpoint stops the agent after the last step of the teardown. Meanwhile the test creates an object that belongs to
the slot, with ordinary host tools.
"""

import itertools
import re
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest
from redis.asyncio import Redis

from control_plane.queues import redis_nodes
from events.values import SlotIndex
from node_agent.lab.fault_injection import names
from node_agent.lab.lab import Lab
from tasks.orders import Order
from tasks.reports import SliceNotRemoved
from tests import matrix
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually_async
from tests.agent.orders import apply, network, remove
from tests.agent.queue import await_enrolment, send
from tests.agent.real_node import (
    RUN_FOLDER,
    RealNode,
    guest_images,
    node_queue,
    real_node,
)

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.shared_system, pytest.mark.timeout(300)]
TIMEOUT: Final = 60.0
AFTER_THE_LAST_STEP: Final = "stop:agent.link.delete.after"
_FLOWS: Final = "ovs-ofctl -O OpenFlow14"
_VIRSH: Final = "virsh -q -c qemu:///system"
_MACHINE: Final = (
    "echo \"<domain type='qemu'><name>{name}</name><memory unit='MiB'>16</memory><os><type>hvm</type></os>"
    '<devices>{devices}</devices></domain>" > /run/planted.xml; '
    f"{_VIRSH} create --paused /run/planted.xml"
)
_WITH_ITS_CARD: Final = "<interface type='user'><mac address='$mac'/></interface>"
_LEASE: Final = 'echo "$(($(date +%s) + 3600)) 52:54:00:99:99:99 $ip thief *" >> $run/dhcp/leases'


@dataclass(frozen=True)
class Planted:
    """Planted object: script that creates it, and one pattern per leftover that the agent reports.

    `delete` is a script that deletes the object if the agent does not remove it, because it is not the agent's own.
    """

    create: str
    leftovers: tuple[str, ...]
    delete: str = ""


PLANTED: Final = {
    "a tap": Planted("ip tuntap add $tap mode tap", ("tap slice0",)),
    "another link": Planted("ip link add $tap type bridge", ("bridge link slice0",)),
    "a port": Planted("ovs-vsctl add-port br-slice $tap", ("ovs port slice0 on br-slice",)),
    "a port elsewhere": Planted(
        "ovs-vsctl --may-exist add-br br-other -- set bridge br-other datapath_type=netdev -- add-port br-other $tap",
        ("ovs port slice0 on br-other",),
    ),
    "a flow": Planted(
        f"{_FLOWS} add-flow br-slice cookie=$cookie,priority=9,actions=NORMAL",
        ("1 flows of slice0 on br-slice",),
    ),
    "a meter": Planted(
        f"{_FLOWS} add-meter br-slice meter=$meter,kbps,band=type=drop,rate=9",
        ("1 meters of slice0 on br-slice",),
    ),
    "a mapping": Planted(
        'nft "insert rule inet sliceplane mapping tcp dport 80 dnat ip to $ip comment \\"$tap foreign\\""',
        ("nft rule of slice0 foreign in mapping",),
    ),
    "a permission": Planted(
        'nft "insert rule inet sliceplane out_of_slices ip saddr $ip accept comment \\"$tap\\""',
        ("nft rule of slice0 in out_of_slices",),
    ),
    "a connection": Planted(
        "conntrack -I -p tcp -s 198.51.100.1 -d $ip --sport 999 --dport 80 --state ESTABLISHED -t 600",
        ("1 tracked connections of 10.100.1.10",),
    ),
    "a reservation of its card": Planted(
        "echo $mac,10.100.1.77 > $run/dhcp/hosts/foreign",
        ("dhcp reservation foreign of 10.100.1.77 for $mac",),
    ),
    "a reservation of its address": Planted(
        "echo 52:54:00:99:99:99,$ip > $run/dhcp/hosts/foreign",
        ("dhcp reservation foreign of $ip for 52:54:00:99:99:99",),
    ),
    "a lease": Planted(_LEASE, ("dhcp lease of $ip to 52:54:00:99:99:99",)),
    "a file": Planted(
        "mkdir -p $run/disks/$tap; echo theirs > $run/disks/$tap/left",
        ("file slice0", "file slice0/left"),
    ),
    "a file in the place of its folder": Planted(
        "mkdir -p $run/disks; echo theirs > $run/disks/$tap", ("file slice0",)
    ),
    "a machine": Planted(
        _MACHINE.format(name="$tap", devices=""),
        (r"domain slice0 \(\S+, paused\)", r"qemu process \d+ of slice0"),
    ),
    "a machine of another with its card": Planted(
        _MACHINE.format(name="other", devices=_WITH_ITS_CARD),
        (r"domain other \(\S+, paused\)",),
        delete=f"{_VIRSH} destroy other",
    ),
}


@dataclass
class Site:
    """Lab node with its agent, and the task queue and the fake control plane of this agent."""

    node: RealNode
    plane: FakeControlPlane
    url: str
    positions: Iterator[int] = field(default_factory=lambda: itertools.count(10))

    def do(self, script: str) -> None:
        own = network()
        known = names(SlotIndex(0), own.mac_address, own.private_ip, RUN_FOLDER)
        self.node.do(script, known)

    def has_reported(self, order: Order, kind: str) -> bool:
        """Return whether the node has sent a report of the given kind as the result of the order."""
        return any(each.order_id == order.order_id and each.body.kind == kind for each in self.plane.reports)

    def leftovers(self, order: Order) -> list[str]:
        return [
            left
            for each in self.plane.reports
            if each.order_id == order.order_id and isinstance(each.body, SliceNotRemoved)
            for left in each.body.leftovers
        ]

    async def await_two_surveys(self) -> None:
        beats = len(self.plane.heartbeats)
        await eventually_async(lambda: len(self.plane.heartbeats) >= beats + 5, TIMEOUT, self.node.log)


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    plane = FakeControlPlane()
    with node_queue(lab, plane) as url, real_node(lab, plane, guest_images()) as node:
        yield Site(node, plane, url)


@pytest.fixture
async def control(site: Site) -> AsyncIterator[Redis]:
    async with Redis.from_url(site.url) as client:
        await redis_nodes.ensure_scripts(client)
        yield client


async def tear_down_up_to_verification(site: Site, control: Redis) -> Order:
    """Run a removal up to its last step, stop the agent before the verification, and return the removal order."""
    site.node.lab.stop_daemon("agent")
    site.node.start(AFTER_THE_LAST_STEP)
    await await_enrolment(site.plane)
    await send(control, apply(next(site.positions), deadline=120))
    await eventually_async(lambda: site.node.taps() == ["slice0"], TIMEOUT, site.node.log)
    order = remove(next(site.positions))
    await send(control, order)
    await eventually_async(site.node.is_stopped_at_failpoint, TIMEOUT, site.node.log)
    return order


@matrix.cases("P16", [*PLANTED], few=1)
async def test_object_created_during_a_slice_removal_is_reported_as_a_leftover_until_it_no_longer_exists(
    site: Site, control: Redis, case: str
) -> None:
    planted = PLANTED[case]
    order = await tear_down_up_to_verification(site, control)
    site.do(planted.create)
    site.node.lab.kill("agent", signal.SIGCONT)
    await eventually_async(lambda: site.leftovers(order) != [], TIMEOUT, site.node.log)
    patterns = [
        each.replace("$ip", network().private_ip).replace("$mac", network().mac_address)
        for each in planted.leftovers
    ]
    found = site.leftovers(order)
    assert len(found) == len(patterns), found
    assert all(map(re.fullmatch, patterns, found)), found
    if planted.delete:
        await site.await_two_surveys()
        assert not site.has_reported(order, "slice.removed")
        site.do(planted.delete)
    await eventually_async(lambda: site.has_reported(order, "slice.removed"), TIMEOUT, site.node.log)
    assert (site.node.ports(), site.node.domains(), site.node.taps()) == ([], [], [])


async def test_slice_removed_from_a_host_without_foreign_objects_is_reported_removed_without_leftovers(
    site: Site, control: Redis
) -> None:
    order = await tear_down_up_to_verification(site, control)
    site.node.lab.kill("agent", signal.SIGCONT)
    await eventually_async(lambda: site.has_reported(order, "slice.removed"), TIMEOUT, site.node.log)
    assert site.leftovers(order) == []
