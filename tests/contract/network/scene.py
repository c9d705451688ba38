"""What an attack is played on: a node with Alice's slice, who attacks, and Bob's, her neighbour.

Each has a way in from outside. Bob's is also the one road by which Alice may reach him.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet

from events.values import Ipv4Address
from node_agent.flows import gateway_mac
from node_agent.lab.lab import LabNode
from node_agent.leases import LeaseAspect
from node_agent.looks import one_look
from node_agent.slices import Slice, SliceNetwork
from tests.contract.network.hosts import aspects_of, gateway_of
from tests.contract.network.senders import ALICE, Sender
from tests.contract.network.slices import GATEWAY, NETWORK, network, port_mapping, run, slice_on
from tests.contract.network.wire import Wire

if TYPE_CHECKING:
    from tests.contract.network.lab_host import Real

BOB: Final = network(1)
DOOR: Final = gateway_mac(GATEWAY)
WORLD: Final = "198.51.100.1"
BRIDGE: Final = NETWORK.bridge
BOBS_DOOR: Final = 20053
"""The port of the uplink's address that leads to Bob's port 53, by UDP."""
ALICES_DOOR: Final = 20022
"""And to Alice's SSH server."""

_numbers = itertools.count(1)


def fresh_mark() -> bytes:
    return b"<frame %d>" % next(_numbers)


@dataclass(frozen=True)
class Places:
    """What only a running node knows: its uplink's address, its own and another's on the management network, and the
    MAC of the host's end of Alice's tap.
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

    def bob_hears(self, last: Callable[[Packet], bool]) -> list[Packet]:
        """All before the first frame that is the `last`. He answers who asks for him meanwhile, as a machine does."""

        def is_last(frame: Packet) -> bool:
            if ARP in frame and (frame[ARP].op, frame[ARP].pdst) == (1, BOB.ip):
                here = ARP(op=2, hwsrc=BOB.mac, psrc=BOB.ip, hwdst=DOOR, pdst=GATEWAY)
                self.bob.send(Ether(src=BOB.mac, dst=DOOR) / here)
            return last(frame)

        return self.bob.until(is_last)

    def mend(self) -> None:
        """As a survey does; and nobody remembers what was told, or what passed, meanwhile."""
        with one_look():
            run(gateway_of(self.host).to_apply())
            for slot in (ALICE, BOB):
                for aspect in aspects_of(self.host):
                    run(aspect.to_apply(slice_of(slot, self.places.uplink)))
        for slot in (ALICE, BOB):
            self.host.filter.forget(slot.ip, lambda _: True)
        self.node.run(["ip", "neigh", "flush", "dev", BRIDGE])
        self.settle()

    def settle(self) -> None:
        """Make the switch forget at once what it concluded from flows that were changed since."""
        self.node.run(["ovs-appctl", "revalidator/purge"])

    def reserve_anew(self) -> None:
        """Bob's address, which the server no longer gives to anybody once it was declined."""
        aspect = LeaseAspect(self.host.leases)
        run(aspect.to_remove(BOB))
        run(aspect.to_apply(slice_of(BOB, self.places.uplink)))


def slice_of(slot: SliceNetwork, uplink: Ipv4Address) -> Slice:
    way_in = {
        ALICE.index: port_mapping(1, uplink, ALICES_DOOR, 22),
        BOB.index: port_mapping(2, uplink, BOBS_DOOR, 53).model_copy(update={"protocol": "udp"}),
    }
    return slice_on(slot, way_in[slot.index])


def setting(family: str, link: str, name: str) -> Path:
    """Of this thread's network namespace, the node's."""
    return Path(f"/proc/sys/net/{family}/conf/{link}/{name}")
