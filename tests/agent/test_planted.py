"""ALC-11: what appears between a slot's teardown and the look that proves it empty keeps the slot out, and is named.

The agent stops behind its last step, which a failpoint does to it. Meanwhile another program, with an operator's own
tools, leaves something on the node that has to do with the slot.
"""

import itertools
import re
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest
from redis.asyncio import Redis

from control_plane import redis_nodes
from events.values import SlotIndex
from node_agent.lab.harms import names
from node_agent.lab.lab import Lab
from tasks.orders import Order
from tasks.reports import SliceRemains
from tests import matrix
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually_async
from tests.agent.orders import apply, network, remove
from tests.agent.queue import enrolled, send
from tests.agent.real_node import (
    RUN_FOLDER,
    RealNode,
    guest_images,
    queue_of,
    real_node,
)

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]
DONE: Final = 60.0
BEHIND_THE_LAST_STEP: Final = "stop:agent.link.delete.after"
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
    """How it is `done`, and what the node says of it, a pattern a line. `undone` is what no agent may take away."""

    done: str
    said: tuple[str, ...]
    undone: str = ""


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
        'nft "insert rule inet sliceplane mapping tcp dport 80 dnat ip to $ip comment \\"$tap somebody\\""',
        ("nft rule of slice0 somebody in mapping",),
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
        "echo $mac,10.100.1.77 > $run/dhcp/hosts/rival", ("dhcp reservation rival of 10.100.1.77 for $mac",)
    ),
    "a reservation of its address": Planted(
        "echo 52:54:00:99:99:99,$ip > $run/dhcp/hosts/rival",
        ("dhcp reservation rival of $ip for 52:54:00:99:99:99",),
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
        undone=f"{_VIRSH} destroy other",
    ),
}


@dataclass
class Site:
    """A node whose agent comes and goes, on a queue, and its control plane."""

    node: RealNode
    plane: FakeControlPlane
    url: str
    positions: Iterator[int] = field(default_factory=lambda: itertools.count(10))

    def do(self, script: str) -> None:
        own = network()
        known = names(SlotIndex(0), own.mac_address, own.private_ip, RUN_FOLDER)
        self.node.do(script, known)

    def says(self, order: Order, kind: str) -> bool:
        """Whether the node says that of the order."""
        return any(each.order_id == order.order_id and each.body.kind == kind for each in self.plane.reports)

    def leftovers(self, order: Order) -> list[str]:
        return [
            left
            for each in self.plane.reports
            if each.order_id == order.order_id and isinstance(each.body, SliceRemains)
            for left in each.body.leftovers
        ]

    async def until_surveyed_twice(self) -> None:
        beats = len(self.plane.heartbeats)
        await eventually_async(lambda: len(self.plane.heartbeats) >= beats + 5, DONE, self.node.log)


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    plane = FakeControlPlane()
    with queue_of(lab, plane) as url, real_node(lab, plane, guest_images()) as node:
        yield Site(node, plane, url)


@pytest.fixture
async def control(site: Site) -> AsyncIterator[Redis]:
    async with Redis.from_url(site.url) as client:
        await redis_nodes.ensure_scripts(client)
        yield client


async def torn_down(site: Site, control: Redis) -> Order:
    """An order to remove a slice, of which nothing is left, while the agent has yet to look."""
    site.node.lab.stop_daemon("agent")
    site.node.start(BEHIND_THE_LAST_STEP)
    await enrolled(site.plane)
    await send(control, apply(next(site.positions), deadline=120))
    await eventually_async(lambda: site.node.taps() == ["slice0"], DONE, site.node.log)
    order = remove(next(site.positions))
    await send(control, order)
    await eventually_async(site.node.is_held, DONE, site.node.log)
    return order


@matrix.cases("P16", [*PLANTED], few=5)
async def test_what_was_planted_after_the_teardown_is_named_and_the_slot_is_not_proved_empty(
    site: Site, control: Redis, case: str
) -> None:
    planted = PLANTED[case]
    order = await torn_down(site, control)
    site.do(planted.done)
    site.node.lab.kill("agent", signal.SIGCONT)
    await eventually_async(lambda: site.leftovers(order) != [], DONE, site.node.log)
    patterns = [
        each.replace("$ip", network().private_ip).replace("$mac", network().mac_address)
        for each in planted.said
    ]
    found = site.leftovers(order)
    assert len(found) == len(patterns), found
    assert all(map(re.fullmatch, patterns, found)), found
    if planted.undone:
        await site.until_surveyed_twice()
        assert not site.says(order, "slice.removed")
        site.do(planted.undone)
    await eventually_async(lambda: site.says(order, "slice.removed"), DONE, site.node.log)
    assert (site.node.ports(), site.node.domains(), site.node.taps()) == ([], [], [])


async def test_where_nothing_was_planted_the_same_look_proves_the_slot_empty(
    site: Site, control: Redis
) -> None:
    order = await torn_down(site, control)
    site.node.lab.kill("agent", signal.SIGCONT)
    await eventually_async(lambda: site.says(order, "slice.removed"), DONE, site.node.log)
    assert site.leftovers(order) == []
