"""The hosts that one suite runs on, and the simulated one of the two; it needs no package of the host drivers."""

from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from events.values import Ipv4Address, MacAddress
from node_agent.drivers.sysfs import SysfsPci
from node_agent.gateway import Bridges, DhcpServers, Gateway, HostLinks, NodeFilter, NodeNetwork
from node_agent.lab.simulated.dhcp import SimulatedLeases, ask_for_lease
from node_agent.lab.simulated.host import HeldRepresentor, SimulatedHost
from node_agent.lab.simulated.links import SimulatedLinks
from node_agent.lab.simulated.nat import SimulatedFilter
from node_agent.lab.simulated.ovs import SimulatedSwitch
from node_agent.lab.simulated.pci import SimulatedPci
from node_agent.leases import LeaseAspect, Leases
from node_agent.links import LinkAspect, Links, OtherLink, Representor
from node_agent.passthrough import PciBus
from node_agent.places import NO_PLACES, Places
from node_agent.ports import PortAspect, Switch
from node_agent.rivals import Diversion
from node_agent.slices import Aspect
from node_agent.translations import Filter, TranslationAspect
from tests.connections import inbound, outbound
from tests.node.pci_trees import switching

_NUMBER: Final = 77
THIEF: Final = "br-thief"
"""The bridge of `plant_master`."""


class AllLinks(Links, HostLinks, Protocol): ...


class AllSwitch(Switch, Bridges, Protocol): ...


class AllFilter(Filter, NodeFilter, Protocol): ...


class AllLeases(Leases, DhcpServers, Protocol): ...


class Host(Protocol):
    """The drivers of a host, and what a test does to it behind their back."""

    network: NodeNetwork
    links: AllLinks
    switch: AllSwitch
    filter: AllFilter
    leases: AllLeases
    bus: PciBus

    def lease(self, tap: str, mac: MacAddress) -> Ipv4Address | None:
        """What a guest on `tap` gets by DHCP."""
        ...

    def connect(self, ip: Ipv4Address) -> None:
        """Leave a tracked connection of `ip`."""
        ...

    def come_in(self, public: Ipv4Address, public_port: int, target: Ipv4Address, port: int) -> None:
        """Leave a tracked TCP connection of an allowed source that was translated."""
        ...

    def plant_link(self, name: str) -> None:
        """A link of another kind under this name."""
        ...

    def stop_forwarding(self, name: str) -> None:
        """Have the host forward nothing that the link receives."""
        ...

    def plant_unplugged(self, name: str) -> None:
        """A link that is up without a carrier, and a default route by it, until the link is deleted."""
        ...

    def plug_in(self, name: str) -> None:
        """Give that link its carrier."""
        ...

    def plant_diversion(self, to: Ipv4Address, port: int) -> None:
        """Have a table `other` send what comes to this TCP port to an address, until `uproot_diversion`."""
        ...

    def uproot_diversion(self) -> None: ...

    def plant_master(self, name: str) -> None:
        """Make the link a port of another bridge, until the end of the test."""
        ...

    def plant_strangers(self) -> None:
        """Have a mirror called `spy` copy all frames of the bridge, and have a controller at `tcp:127.0.0.1:9`."""
        ...

    def plant_vlan(self, tap: str, tag: int) -> None:
        """Put the tap's port in a VLAN."""
        ...

    def plant_representor(self, name: str, folder: Path) -> int:
        """Have a card that switches (`tests.node.pci_trees`, laid out in the folder), whose first virtual function has
        this link; the link's number."""
        ...

    def lose_representor(self) -> None:
        """The card's functions were made anew, or its mode was changed."""
        ...


class Simulated:
    def __init__(self, network: NodeNetwork, host: SimulatedHost | None = None) -> None:
        self.network, self.host = network, host or SimulatedHost(uplink=network.uplink)
        self.links: AllLinks = SimulatedLinks(self.host)
        self.switch: AllSwitch = SimulatedSwitch(self.host)
        self.filter: AllFilter = SimulatedFilter(self.host)
        self.leases: AllLeases = SimulatedLeases(self.host)
        self.bus: PciBus = SimulatedPci(self.host)

    def lease(self, tap: str, mac: MacAddress) -> Ipv4Address | None:
        return ask_for_lease(self.host, mac)

    def connect(self, ip: Ipv4Address) -> None:
        with self.host.change() as state:
            state.connections.append(outbound(ip))

    def come_in(self, public: Ipv4Address, public_port: int, target: Ipv4Address, port: int) -> None:
        with self.host.change() as state:
            state.connections.append(inbound(public, public_port, target, port))

    def plant_link(self, name: str) -> None:
        with self.host.change() as state:
            state.others.append(OtherLink(name, "veth"))

    def stop_forwarding(self, name: str) -> None:
        with self.host.change() as state:
            state.not_forwarding.append(name)

    def plant_unplugged(self, name: str) -> None:
        with self.host.change() as state:
            state.others.append(OtherLink(name, "veth"))

    def plug_in(self, name: str) -> None:
        with self.host.change() as state:
            state.uplinks.append(name)

    def plant_diversion(self, to: Ipv4Address, port: int) -> None:
        with self.host.change() as state:
            state.diversions = [
                Diversion("ip other", "pre", 2, protocol="tcp", ports=((port, port),), to=(f"{to}/32",))
            ]

    def uproot_diversion(self) -> None:
        with self.host.change() as state:
            state.diversions = []

    def plant_master(self, name: str) -> None:
        with self.host.change() as state:
            state.taps = [replace(each, master=THIEF) if each.name == name else each for each in state.taps]
            state.representors = [
                HeldRepresentor(each.number, replace(each.link, master=THIEF))
                if each.link.name == name
                else each
                for each in state.representors
            ]

    def plant_strangers(self) -> None:
        strangers = frozenset({"mirror spy", "controller tcp:127.0.0.1:9"})
        with self.host.change() as state:
            state.bridges = [replace(each, strangers=strangers) for each in state.bridges]

    def plant_vlan(self, tap: str, tag: int) -> None:
        with self.host.change() as state:
            state.ports = [
                replace(each, vlans=frozenset({tag})) if each.name == tap else each for each in state.ports
            ]

    def plant_representor(self, name: str, folder: Path) -> int:
        with self.host.change() as state:
            state.pci = list(SysfsPci(switching(folder, _NUMBER)).devices())
            state.representors = [HeldRepresentor(_NUMBER, Representor(name, up=False, mute=False))]
        return _NUMBER

    def lose_representor(self) -> None:
        with self.host.change() as state:
            state.pci, state.representors = [], []


def gateway_of(host: Host) -> Gateway:
    return Gateway(host.network, host.switch, host.links, host.filter, host.leases)


def aspects_of(host: Host, places: Places = NO_PLACES) -> tuple[Aspect, ...]:
    """In the order in which a slice is made."""
    return (
        LinkAspect(host.links, host.bus, places),
        LeaseAspect(host.leases),
        PortAspect(host.switch),
        TranslationAspect(host.filter, host.network.uplink),
    )
