"""Setting of an attack: a node with two slices, that of the attacker Alice and that of its neighbour Bob.

Each slice has an ingress rule. Bob's ingress rule is also the only path by which Alice may reach Bob.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet

from events.values import Ipv4Address
from node_agent.aspects.flows import gateway_mac
from node_agent.aspects.leases import LeaseAspect
from node_agent.host.slices import Slice, SliceNetwork
from node_agent.host.snapshots import host_snapshot
from node_agent.lab.lab import LabNode
from tests.contract.network.hosts import aspects_of, gateway_of
from tests.contract.network.senders import ALICE, Sender
from tests.contract.network.slices import GATEWAY, NETWORK, network, port_mapping, run, slice_on
from tests.contract.network.traffic.wire import Wire

if TYPE_CHECKING:
    from tests.contract.network.lab_host import Real

BOB: Final = network(1)
GATEWAY_MAC: Final = gateway_mac(GATEWAY)
WORLD: Final = "198.51.100.1"
BRIDGE: Final = NETWORK.bridge
BOBS_PUBLIC_PORT: Final = 20053
"""The port of the uplink's address that leads to Bob's port 53, by UDP."""
ALICES_PUBLIC_PORT: Final = 20022
"""The port of the uplink's address that leads to Alice's SSH server."""

_numbers = itertools.count(1)


def fresh_mark() -> bytes:
    return b"<frame %d>" % next(_numbers)


@dataclass(frozen=True)
class Places:
    """Addresses that are known only at run time: the uplink's address, the node's address and that of another host on
    the management network, and the MAC of the host's end of Alice's tap.
    """

    uplink: Ipv4Address
    management: str
    manager: str
    tap: str


@dataclass(frozen=True)
class Scene:
    host: "Real"
    node: LabNode
    places: Places
    sender: Sender
    bob: Wire

    def frames_at_bob(self, last: Callable[[Packet], bool]) -> list[Packet]:
        """Return all frames that reach Bob's slice before the first frame for which `last` is true. Bob answers ARP
        requests meanwhile.
        """

        def is_last(frame: Packet) -> bool:
            if ARP in frame and (frame[ARP].op, frame[ARP].pdst) == (1, BOB.ip):
                here = ARP(op=2, hwsrc=BOB.mac, psrc=BOB.ip, hwdst=GATEWAY_MAC, pdst=GATEWAY)
                self.bob.send(Ether(src=BOB.mac, dst=GATEWAY_MAC) / here)
            return last(frame)

        return self.bob.until(is_last)

    def repair(self) -> None:
        """Repair the node's network as a survey does, and remove the ARP entries and tracked connections that the
        attack left.
        """
        with host_snapshot():
            run(gateway_of(self.host).to_apply())
            for slot in (ALICE, BOB):
                for aspect in aspects_of(self.host):
                    run(aspect.to_apply(slice_of(slot, self.places.uplink)))
        for slot in (ALICE, BOB):
            self.host.filter.forget(slot.ip, lambda _: True)
        self.node.run(["ip", "neigh", "flush", "dev", BRIDGE])
        self.settle()

    def settle(self) -> None:
        """Make Open vSwitch drop the datapath flows that it cached before its OpenFlow flows were changed."""
        self.node.run(["ovs-appctl", "revalidator/purge"])

    def reserve_again(self) -> None:
        """Make Bob's DHCP reservation again, because the DHCP server no longer offers an address that a client
        declined.
        """
        aspect = LeaseAspect(self.host.leases)
        run(aspect.to_remove(BOB))
        run(aspect.to_apply(slice_of(BOB, self.places.uplink)))


def slice_of(slot: SliceNetwork, uplink: Ipv4Address) -> Slice:
    way_in = {
        ALICE.index: port_mapping(1, uplink, ALICES_PUBLIC_PORT, 22),
        BOB.index: port_mapping(2, uplink, BOBS_PUBLIC_PORT, 53).model_copy(update={"protocol": "udp"}),
    }
    return slice_on(slot, way_in[slot.index])


def setting(family: str, link: str, name: str) -> Path:
    """Return the file of a kernel network setting of a link, in the network namespace of this thread, which is that of
    the node.
    """
    return Path(f"/proc/sys/net/{family}/conf/{link}/{name}")
