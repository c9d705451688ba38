"""Interface of the hosts on which the network contract tests run, and the simulated host. This module needs no package
of the host drivers.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol, assert_never
from uuid import UUID

from events.values import Ipv4Address, MacAddress
from node_agent.aspects.flows import LOCAL_NUMBER
from node_agent.aspects.gateway import (
    Bridges,
    DhcpServers,
    Gateway,
    HostLinks,
    HostRouting,
    NodeFilter,
    NodeNetwork,
)
from node_agent.aspects.leases import LeaseAspect, Leases
from node_agent.aspects.links import Alterations, LinkAspect, Links, OtherLink, Representor
from node_agent.aspects.machine_plans import FoundDomain
from node_agent.aspects.passthrough import PciBus
from node_agent.aspects.ports import Port, PortAspect, Switch, Switching
from node_agent.aspects.translations import Filter, TranslationAspect
from node_agent.drivers.sysfs import SysfsPci
from node_agent.host.host import Reachability
from node_agent.host.host_resources import NO_PLACES, Places
from node_agent.host.slices import Aspect, SliceNetwork
from node_agent.lab.simulated.dhcp import SimulatedLeases, ask_for_lease
from node_agent.lab.simulated.host import HeldRepresentor, SimulatedHost
from node_agent.lab.simulated.links import SimulatedLinks
from node_agent.lab.simulated.nat import SimulatedFilter
from node_agent.lab.simulated.ovs import SimulatedSwitch
from node_agent.lab.simulated.pci import SimulatedPci
from node_agent.lab.simulated.reaching import SimulatedReachability
from node_agent.lab.simulated.routing import SimulatedRouting
from node_agent.packets.foreign_rules import ForeignRule, ForeignTable
from node_agent.packets.rules import AddressTranslation, Chain, canonical, match
from node_agent.packets.rules import field as port_of
from node_agent.packets.xfrm import XfrmPolicy
from tests.connections import inbound, outbound
from tests.contract.network.traffic.interference import CHANGED, Interference
from tests.node.pci_trees import switching

_NUMBER: Final = 77
Addition = Literal[
    "address", "qdisc", "mirror", "redirect", "program", "macvlan", "mac", "route_localnet", "xdp"
]
"""Names of the changes that an administrator makes to a network link. Frames are mirrored and redirected to the link
`slice1`.
"""
ADDED: Final[Mapping[Addition, Alterations]] = {
    "address": Alterations(others=frozenset({"address 10.100.1.10/32"})),
    "qdisc": Alterations(others=frozenset({"qdisc tbf at its root"})),
    "mirror": Alterations(
        frozenset({"u32 filter that mirrors to slice1"}), frozenset({"qdisc clsact at its hooks"})
    ),
    "redirect": Alterations(
        frozenset({"u32 filter that redirects to slice1"}), frozenset({"qdisc ingress at its hooks"})
    ),
    "program": Alterations(frozenset({"bpf filter that is there"}), frozenset({"qdisc clsact at its hooks"})),
    "macvlan": Alterations(frozenset({"macvlan link spy0 stacked on this link"})),
    "mac": Alterations(others=frozenset({"MAC 02:00:00:00:00:99"})),
    "route_localnet": Alterations(others=frozenset({"setting route_localnet"})),
    "xdp": Alterations(frozenset({"an XDP program"})),
}
"""Alterations that the agent must find on a tap, for each change by an administrator."""


@dataclass(frozen=True)
class FilterChange:
    """Change of the agent's nftables tables, as lines of `nft`, and its expected effect in a listing of the ruleset.

    `others` are listed objects that the agent's declaration of its tables does not contain. `chains` maps the name of a
    changed chain to the attributes with which it is listed.
    """

    nft: str
    others: tuple[str, ...] = ()
    chains: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def chain(self, chain: Chain) -> Chain:
        return replace(chain, **self.chains.get(chain.name, {}))


FILTER_CHANGES: Final = {
    "dormant table": FilterChange(
        "add table inet sliceplane { flags dormant; }", ("table inet with dormant",)
    ),
    "dormant table at the bridge": FilterChange(
        "add table netdev sliceplane { flags dormant; }", ("table netdev with dormant",)
    ),
    "policy drop": FilterChange(
        "add chain inet sliceplane forward { policy drop; }", chains={"forward": {"policy": "drop"}}
    ),
    "another priority": FilterChange(
        "delete chain inet sliceplane untracked_in;"
        " add chain inet sliceplane untracked_in { type filter hook prerouting priority 10; }",
        chains={"untracked_in": {"priority": 10}},
    ),
    "another device": FilterChange(
        "delete chain netdev sliceplane replies; add chain netdev sliceplane replies"
        " { type filter hook egress device lo priority 0; }",
        chains={"replies": {"device": "lo"}},
    ),
    "a set": FilterChange("add set inet sliceplane allowed { type ipv4_addr; }", ("set inet allowed",)),
    "a map": FilterChange(
        "add map inet sliceplane ways { type inet_service : ipv4_addr; }", ("map inet ways",)
    ),
    "a counter": FilterChange("add counter inet sliceplane seen", ("counter inet seen",)),
    "a quota": FilterChange("add quota inet sliceplane much { 9 mbytes; }", ("quota inet much",)),
}
"""Changes of the tables' declaration that leave each rule as it is, except the rules of a chain that is created again.
"""
OTHER_BRIDGE: Final = "br-other"
"""Name of the Linux bridge to which `plant_master` attaches a link."""


@dataclass(frozen=True)
class SwitchSetting:
    """Foreign settings that an administrator makes in Open vSwitch, by a command that contains `{bridge}` and `{tap}`.

    `found` is the text by which the agent reports the setting. `of` states what the setting belongs to: the slice's OVS
    port, the bridge, the slice's OpenFlow port (`switch port`), the whole OpenFlow switch, or the list of OVS ports
    that belong to no slot (`ports`).
    """

    command: str
    of: Literal["port", "bridge", "switch port", "switch", "ports"]
    found: str


SETTINGS: Final = {
    "policing": SwitchSetting(
        "ovs-vsctl set interface {tap} ingress_policing_rate=1000", "port", "ingress_policing_rate=1000"
    ),
    "policing of packets": SwitchSetting(
        "ovs-vsctl set interface {tap} ingress_policing_kpkts_rate=1", "port", "ingress_policing_kpkts_rate=1"
    ),
    "options": SwitchSetting("ovs-vsctl set interface {tap} options:n_rxq=2", "port", "options=n_rxq:2"),
    "a native VLAN": SwitchSetting(
        "ovs-vsctl set port {tap} vlan_mode=native-untagged", "port", "vlan_mode=native-untagged"
    ),
    "protected": SwitchSetting("ovs-vsctl set port {tap} protected=true", "port", "protected=true"),
    "policing of the bridge": SwitchSetting(
        "ovs-vsctl set interface {bridge} ingress_policing_rate=1000", "bridge", "ingress_policing_rate=1000"
    ),
    "STP": SwitchSetting("ovs-vsctl set bridge {bridge} stp_enable=true", "bridge", "stp_enable=true"),
    "RSTP": SwitchSetting("ovs-vsctl set bridge {bridge} rstp_enable=true", "bridge", "rstp_enable=true"),
    "multicast snooping": SwitchSetting(
        "ovs-vsctl set bridge {bridge} mcast_snooping_enable=true", "bridge", "mcast_snooping_enable=true"
    ),
    "further configuration": SwitchSetting(
        "ovs-vsctl set bridge {bridge} other_config:forward-bpdu=true",
        "bridge",
        "other_config=disable-in-band:true,forward-bpdu:true,hwaddr:02:53:0a:64:01:01",
    ),
    "no forwarding": SwitchSetting(
        "ovs-ofctl mod-port {bridge} {tap} no-forward", "switch port", "no-forward"
    ),
    "no receiving": SwitchSetting(
        "ovs-ofctl mod-port {bridge} {tap} no-receive", "switch port", "no-receive"
    ),
    "no forwarding to the gateway": SwitchSetting(
        "ovs-ofctl mod-port {bridge} 65534 no-forward", "switch", "its local port no-forward"
    ),
    "no fragments": SwitchSetting("ovs-ofctl set-frags {bridge} drop", "switch", "fragments drop"),
    "an internal port": SwitchSetting(
        "ovs-vsctl add-port {bridge} extra0 -- set interface extra0 type=internal", "ports", "extra0"
    ),
    "a patch": SwitchSetting(
        "ovs-vsctl add-port {bridge} patch0 -- set interface patch0 type=patch options:peer=nowhere",
        "ports",
        "patch0",
    ),
    "a tunnel": SwitchSetting(
        "ovs-vsctl add-port {bridge} vx0 -- set interface vx0 type=vxlan options:remote_ip=192.0.2.1",
        "ports",
        "vx0",
    ),
}
"""Foreign settings of Open vSwitch, each with a readable name for the test case."""


class AllLinks(Links, HostLinks, Protocol): ...


class AllSwitch(Switch, Bridges, Protocol): ...


class AllFilter(Filter, NodeFilter, Protocol): ...


class AllLeases(Leases, DhcpServers, Protocol): ...


class Host(Protocol):
    """Network drivers of a host under test, and changes that a test makes to the host without these drivers."""

    network: NodeNetwork
    links: AllLinks
    routing: HostRouting
    switch: AllSwitch
    filter: AllFilter
    leases: AllLeases
    bus: PciBus
    reachability: Reachability

    def answering(self, slot: SliceNetwork) -> AbstractContextManager[None]:
        """Run a simulated guest on the slot's tap that answers ARP, and TCP at every port."""
        ...

    def lease(self, tap: str, mac: MacAddress) -> Ipv4Address | None:
        """Return the address that a guest on `tap` gets by DHCP, or None."""
        ...

    def connect(self, ip: Ipv4Address) -> None:
        """Add a tracked connection from the address `ip` to the host's connection tracking table."""
        ...

    def connect_inbound(self, public: Ipv4Address, public_port: int, target: Ipv4Address, port: int) -> None:
        """Add a tracked TCP connection from an allowed source to a public address, with the slice as its translated
        destination.
        """
        ...

    def plant_link(self, name: str) -> None:
        """Add a network link with this name that is not a tap."""
        ...

    def stop_forwarding(self, name: str) -> None:
        """Disable IP forwarding of packets that arrive at the link."""
        ...

    def plant_link_without_carrier(self, name: str) -> None:
        """Add a link that is up without a carrier, and a default route over this link. Both exist until the link is
        deleted.
        """
        ...

    def plug_in(self, name: str) -> None:
        """Give a carrier to the link that `plant_link_without_carrier` added."""
        ...

    def plant_diversion(self, to: Ipv4Address, port: int) -> None:
        """Add the nftables table `other`, which redirects connections to this TCP port to the given address, until
        `remove_diversion` is called.
        """
        ...

    def remove_diversion(self) -> None: ...

    def plant_addition(self, name: str, addition: Addition) -> None:
        """Add a foreign object or setting (`Addition`) to the network link, as another program would."""
        ...

    def interfere(self, interference: Interference) -> None:
        """Make a foreign change of the host's routing or uplink, which lasts until `end_interference` is called."""
        ...

    def end_interference(self, interference: Interference) -> None: ...

    def make_diversion_dormant(self) -> None:
        """Set the flag `dormant` of the nftables table `other`, without deleting the table."""
        ...

    def plant_policy(self, source: str, destination: str) -> None:
        """Add an IPsec policy that drops packets forwarded between these networks, until `remove_policy` is called."""
        ...

    def remove_policy(self, source: str, destination: str) -> None: ...

    def plant_in_filter(self, what: str) -> None:
        """Change the agent's own nftables tables by the entry of `FILTER_CHANGES` with this name."""
        ...

    def plant_master(self, name: str) -> None:
        """Make the link a port of another Linux bridge, until the end of the test."""
        ...

    def plant_foreign_objects(self) -> None:
        """Add to the OVS bridge a mirror called `spy`, which copies all frames of the bridge, and a controller at
        `tcp:127.0.0.1:9`.
        """
        ...

    def drop_datapath_type(self, datapath_type: str) -> None:
        """Remove the support of this datapath type from the virtual switch. A real switch does not support the type
        `nonsense` in any case.
        """
        ...

    def refusing(self, translation: AddressTranslation) -> AbstractContextManager[None]:
        """Let the host's packet filter refuse rules with this kind of address translation, as a kernel without its
        module does.
        """
        ...

    def plant_without_datapath(self) -> None:
        """Set the OVS bridge to a datapath type that its switch does not support."""
        ...

    def plant_vlan(self, tap: str, tag: int) -> None:
        """Put the OVS port of the tap in a VLAN."""
        ...

    def set_in_switch(self, tap: str, setting: SwitchSetting) -> None: ...

    def damage_reservation(self, tap: str, command: str) -> None:
        """Change the tap's DHCP reservation file, or add a file to its folder, by a shell command that contains
        `{file}` and `{folder}`.
        """
        ...

    def plant_dhcp_server(self) -> None:
        """Start a DHCP server of another program on the bridge, until `remove_dhcp_server` is called."""
        ...

    def remove_dhcp_server(self) -> None: ...

    def plant_manager(self, *targets: str) -> None:
        """Set the managers from which the Open vSwitch database accepts changes."""
        ...

    def plant_representor(self, name: str, folder: Path) -> int:
        """Add a network card in switchdev mode, as `tests.node.pci_trees` describes it, with its PCI tree below the
        folder. The named link is the representor of the card's first virtual function. Return the number of this link.
        """
        ...

    def lose_representor(self) -> None:
        """Remove the PCI functions of the card that `plant_representor` added, as when the functions are created again
        or the mode of the card is changed.
        """
        ...


class Simulated:
    def __init__(self, network: NodeNetwork, host: SimulatedHost | None = None) -> None:
        self.network, self.host = network, host or SimulatedHost(uplink=network.uplink)
        self.links: AllLinks = SimulatedLinks(self.host)
        self.routing: HostRouting = SimulatedRouting(self.host)
        self.switch: AllSwitch = SimulatedSwitch(self.host)
        self.filter: AllFilter = SimulatedFilter(self.host)
        self.leases: AllLeases = SimulatedLeases(self.host)
        self.bus: PciBus = SimulatedPci(self.host)
        self.reachability: Reachability = SimulatedReachability(self.host)

    @contextmanager
    def answering(self, slot: SliceNetwork) -> Iterator[None]:
        guest = FoundDomain(slot.tap, UUID(int=slot.index), "running", None)
        with self.host.change() as state:
            state.domains.append(guest)
        yield
        with self.host.change() as state:
            state.domains.remove(guest)

    def lease(self, tap: str, mac: MacAddress) -> Ipv4Address | None:
        return ask_for_lease(self.host, mac)

    def connect(self, ip: Ipv4Address) -> None:
        with self.host.change() as state:
            state.connections.append(outbound(ip))

    def connect_inbound(self, public: Ipv4Address, public_port: int, target: Ipv4Address, port: int) -> None:
        with self.host.change() as state:
            state.connections.append(inbound(public, public_port, target, port))

    def plant_link(self, name: str) -> None:
        with self.host.change() as state:
            state.others.append(OtherLink(name, "veth"))

    def stop_forwarding(self, name: str) -> None:
        with self.host.change() as state:
            state.not_forwarding.append(name)

    def plant_link_without_carrier(self, name: str) -> None:
        with self.host.change() as state:
            state.others.append(OtherLink(name, "veth"))

    def plug_in(self, name: str) -> None:
        with self.host.change() as state:
            state.uplinks.append(name)

    def plant_diversion(self, to: Ipv4Address, port: int) -> None:
        with self.host.change() as state:
            chain = Chain("ip", "pre", "nat", "prerouting", -101, "accept")
            body = canonical((match(port_of("tcp", "dport"), port), {"dnat": {"addr": to}}))
            rules = (ForeignRule("pre", "handle 2", body),)
            state.foreign_tables = [ForeignTable("ip other", "ip", (chain,), rules)]

    def make_diversion_dormant(self) -> None:
        self.remove_diversion()

    def remove_diversion(self) -> None:
        with self.host.change() as state:
            state.foreign_tables = []

    def plant_addition(self, name: str, addition: Addition) -> None:
        added = ADDED[addition]
        with self.host.change() as state:
            state.taps = [
                replace(each, alterations=added) if each.name == name else each for each in state.taps
            ]
            state.representors = [
                HeldRepresentor(each.number, replace(each.link, alterations=added))
                if each.link.name == name
                else each
                for each in state.representors
            ]
            if name in state.links:
                state.links[name] = replace(state.links[name], alterations=added)

    def interfere(self, interference: Interference) -> None:
        with self.host.change() as state:
            self._before = copy.deepcopy(state)
            for name, value in CHANGED[interference](state).items():
                setattr(state, name, value)

    def end_interference(self, interference: Interference) -> None:
        with self.host.change() as state:
            for name in ("routes", "policy_rules", "uplink", "upper_links", "silent"):
                setattr(state, name, getattr(self._before, name))

    def plant_policy(self, source: str, destination: str) -> None:
        with self.host.change() as state:
            state.policies = [XfrmPolicy("fwd", source, destination, "drop")]

    def remove_policy(self, source: str, destination: str) -> None:
        with self.host.change() as state:
            state.policies = []

    def plant_in_filter(self, what: str) -> None:
        change = FILTER_CHANGES[what]
        with self.host.change() as state:
            state.nat_others += change.others
            state.chains = [change.chain(each) for each in state.chains]

    def plant_master(self, name: str) -> None:
        with self.host.change() as state:
            state.taps = [
                replace(each, master=OTHER_BRIDGE) if each.name == name else each for each in state.taps
            ]
            state.representors = [
                HeldRepresentor(each.number, replace(each.link, master=OTHER_BRIDGE))
                if each.link.name == name
                else each
                for each in state.representors
            ]

    def plant_foreign_objects(self) -> None:
        foreign_objects = frozenset({"mirror spy", "controller tcp:127.0.0.1:9"})
        with self.host.change() as state:
            state.bridges = [replace(each, foreign_objects=foreign_objects) for each in state.bridges]

    def drop_datapath_type(self, datapath_type: str) -> None:
        with self.host.change() as state:
            state.datapaths_missing = [datapath_type]

    @contextmanager
    def refusing(self, translation: AddressTranslation) -> Iterator[None]:
        with self.host.change() as state:
            state.refused_translations = {translation: f"no module for {translation}"}
        try:
            yield
        finally:
            with self.host.change() as state:
                state.refused_translations = {}

    def plant_without_datapath(self) -> None:
        with self.host.change() as state:
            state.bridges = [
                replace(each, datapath_type="system", has_datapath=False) for each in state.bridges
            ]

    def plant_vlan(self, tap: str, tag: int) -> None:
        with self.host.change() as state:
            state.ports = [
                replace(each, vlans=frozenset({tag})) if each.name == tap else each for each in state.ports
            ]

    def set_in_switch(self, tap: str, setting: SwitchSetting) -> None:
        found = frozenset({setting.found})
        bridge = self.network.bridge
        with self.host.change() as state:
            match setting.of:
                case "port":
                    state.ports = [
                        replace(each, unmanaged=found) if each.name == tap else each for each in state.ports
                    ]
                case "bridge":
                    state.bridges = [replace(each, unmanaged=found) for each in state.bridges]
                case "switch port":
                    [number] = [each.number or 0 for each in state.ports if each.name == tap]
                    state.switching[bridge] = Switching(ports={number: found})
                case "switch" if setting.found.startswith("fragments "):
                    state.switching[bridge] = Switching(setting.found.removeprefix("fragments "))
                case "switch":
                    words = frozenset({setting.found.rpartition(" ")[2]})
                    state.switching[bridge] = Switching(ports={LOCAL_NUMBER: words})
                case "ports":
                    state.others.append(OtherLink(setting.found, "internal"))
                    state.ports.append(Port(setting.found, bridge, 1))
                case _:
                    assert_never(setting.of)

    def damage_reservation(self, tap: str, command: str) -> None:
        with self.host.change() as state:
            if "{file}" not in command:
                state.foreign_files = [command]
                return
            state.reservations = [
                replace(each, spoilt=command) if each.name == tap else each for each in state.reservations
            ]

    def plant_dhcp_server(self) -> None:
        with self.host.change() as state:
            state.foreign_servers = ["process 7, dnsmasq"]

    def remove_dhcp_server(self) -> None:
        with self.host.change() as state:
            state.foreign_servers = []

    def plant_manager(self, *targets: str) -> None:
        with self.host.change() as state:
            state.managers = list(targets)

    def plant_representor(self, name: str, folder: Path) -> int:
        with self.host.change() as state:
            state.pci = list(SysfsPci(switching(folder, _NUMBER)).devices())
            state.representors = [HeldRepresentor(_NUMBER, Representor(name, up=False, mute=False))]
        return _NUMBER

    def lose_representor(self) -> None:
        with self.host.change() as state:
            state.pci, state.representors = [], []


def gateway_of(host: Host) -> Gateway:
    return Gateway(host.network, host.switch, host.links, host.filter, host.leases, routing=host.routing)


def aspects_of(host: Host, places: Places = NO_PLACES) -> tuple[Aspect, ...]:
    """Return the agent's network aspects (link, DHCP lease, OVS port, address translation) in the order of set-up."""
    return (
        LinkAspect(host.links, host.bus, places),
        LeaseAspect(host.leases),
        PortAspect(host.switch),
        TranslationAspect(host.filter, host.network.uplink),
    )
