"""The node's own part: bridge, filter, gateway address and DHCP server, which stand before any slice does.

Prepared at the agent's start and looked at by every survey, since any of it can vanish: a restarted vswitchd makes the
bridge's device anew, without its address. Order: the bridge, which is `secure` and passes nothing; the filter, which
needs the bridge's device; only then the address, forwarding and DHCP. A crash in between leaves a node that carries
less, never one that is more open, and the same comparison goes on from there.
"""

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from events.values import MAX_SLOTS, Ipv4Address, Ipv4Subnet, MacAddress, SlotIndex, ipv4_address
from node_agent.flows import LOCAL_NUMBER, Flow, gateway_mac
from node_agent.foreign import Foreign, foreign_on
from node_agent.foreign_rules import Finding, ForeignTables, findings, mirrored, reported, ways_of
from node_agent.gateway_rules import chains_on, node_rules
from node_agent.host import Prerequisite
from node_agent.links import DEFAULT_MTU, UNALTERED, Alterations
from node_agent.meters import Meter
from node_agent.ports import Switching
from node_agent.routing import (
    Neighbour,
    PolicyRule,
    Route,
    diverting_rules,
    foreign_routes,
    gateways_of,
    own_routes,
)
from node_agent.rules import MAPPING, Chain, Change, Rule, Ruleset, in_words
from node_agent.settings import Settings
from node_agent.slices import Difference, HostRefused, HostUnreadable, Step, tap_of
from node_agent.traffic import NodeView
from node_agent.xfrm import XfrmPolicy, policies_drift
from tasks.drift import DriftKind

PROTOCOLS: Final = frozenset({"OpenFlow13", "OpenFlow14", "OpenFlow15"})
SLOTS: Final = frozenset(tap_of(SlotIndex(index)) for index in range(MAX_SLOTS))


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """A node's network as its settings and its enrolment want it. `lease_seconds` is what DHCP grants at once."""

    bridge: str
    subnet: Ipv4Subnet
    gateway: Ipv4Address
    uplink: str
    datapath_type: str
    lease_seconds: int = 3600
    resolvers: tuple[Ipv4Address, ...] = ()
    mtu: int = DEFAULT_MTU


def node_network(settings: Settings, subnet: Ipv4Subnet) -> NodeNetwork:
    """The network of a node with these settings that enrolled with this subnet; its gateway is the first host."""
    return NodeNetwork(
        bridge=settings.bridge,
        subnet=subnet,
        gateway=ipv4_address(str(ipaddress.IPv4Network(subnet)[1])),
        uplink=settings.uplink,
        datapath_type=settings.datapath_type,
        resolvers=settings.resolvers,
    )


@dataclass(frozen=True, slots=True)
class Bridge:
    """An OVS bridge. `secure` is False for `fail_mode=standalone`, which forwards like any switch.

    `in_band`: a controller is reached through it, past all flows. `strangers` are foreign objects that receive its
    frames or set its flows, each by its kind and name: `mirror spy`. `unmanaged` are settings of the bridge and its own
    port that this program does not make, each as `stp_enable=true`.
    """

    name: str
    datapath_type: str
    mac: MacAddress | None
    secure: bool
    protocols: frozenset[str]
    in_band: bool = False
    strangers: frozenset[str] = frozenset()
    unmanaged: frozenset[str] = frozenset()
    has_datapath: bool = True
    """Whether the switch made it: False where the kernel or the switch does not support its datapath type."""


@dataclass(frozen=True, slots=True)
class GatewayLink:
    """The bridge's own device, on which the gateway's address stands. `addresses` are in CIDR form, `mtu` is in bytes.

    As declared, `mac` or `mtu` None leaves what the link has. `arp` is False for a link on which the host answers no
    ARP request.
    """

    addresses: frozenset[str]
    up: bool
    mac: MacAddress | None = None
    mtu: int | None = None
    arp: bool = True
    alterations: Alterations = UNALTERED


@dataclass(frozen=True, slots=True)
class Uplink:
    """A link of the host that slices reach the world by; it is not the agent's. `mtu` in bytes.

    `queueing` is what may delay, drop or redirect its frames, in words: disciplines, filters, programs.
    """

    mac: str | None
    mtu: int
    arp: bool
    queueing: frozenset[str] = frozenset()


class Bridges(Protocol):
    def missing(self, datapath_type: str) -> tuple[str, ...]:
        """What a bridge of this type lacks on the host, in words."""
        ...

    def bridge(self, name: str) -> Bridge | None: ...

    def set_bridge(self, bridge: Bridge) -> None:
        """Create or change the bridge; foreign objects and unmanaged settings are removed."""
        ...

    def ports(self, bridge: str) -> frozenset[str]:
        """Names of the ports of a bridge, its own aside; empty when there is no such bridge."""
        ...

    def delete_port(self, name: str) -> None: ...

    def managers(self) -> tuple[str, ...]:
        """Where other programs may change the switch's database, beside the host's own socket (ovs-vsctl(8))."""
        ...

    def switching(self, bridge: str) -> Switching:
        """The defaults when there is no such bridge."""
        ...

    def reset_switching(self, bridge: str) -> None:
        """Have fragments pass as other packets do, and the bridge's own port receive and forward."""
        ...

    def flows(self, bridge: str) -> Mapping[int, frozenset[Flow]]: ...

    def set_flows(self, bridge: str, cookie: int, flows: frozenset[Flow]) -> None: ...

    def meters(self, bridge: str) -> Mapping[int, Meter | None]: ...

    def delete_meter(self, bridge: str, number: int) -> None: ...


class HostLinks(Protocol):
    def gateway_link(self, name: str) -> GatewayLink | None: ...

    def set_gateway_link(self, name: str, link: GatewayLink) -> None:
        """Set the link's addresses, MAC, MTU and flags, and remove all alterations."""
        ...

    def addresses(self, name: str) -> tuple[Ipv4Address, ...]: ...

    def default_route_links(self) -> frozenset[str]:
        """Those that have a carrier: of one whose cable is out the kernel keeps the route."""
        ...

    def not_forwarding(self, *names: str) -> tuple[str, ...]:
        """Of `all`, the host as a whole, and these links, which do not forward what IPv4 they receive."""
        ...

    def set_forwarding(self, *names: str) -> None:
        """For the host as a whole and for these links; one that is not there counts as done."""
        ...

    def uplink(self, name: str) -> Uplink | None: ...

    def upper_links(self, name: str) -> tuple[str, ...]:
        """Links that are stacked on this one (macvlan, VLAN), in words."""
        ...


class HostRouting(Protocol):
    """Reads raise `HostUnreadable`; changes that and `HostRefused`."""

    def routes(self) -> tuple[Route, ...]:
        """IPv4 routes of all tables."""
        ...

    def set_routes(self, routes: Iterable[Route]) -> None:
        """Add routes of the kernel for an address; one that is there counts as done."""
        ...

    def policy_rules(self) -> tuple[PolicyRule, ...]: ...

    def static_neighbours(self, link: str) -> tuple[Neighbour, ...]:
        """Neighbours on a link whose MACs were set, and not learned."""
        ...

    def delete_neighbours(self, link: str, neighbours: Iterable[Neighbour]) -> None: ...

    def silent(self, link: str, gateways: frozenset[Ipv4Address]) -> frozenset[Ipv4Address]:
        """Return those of the gateways on a link that do not answer ARP requests. If that is unknown, the kernel is
        asked to send some, and a later call has the result."""
        ...


class NodeFilter(Protocol):
    def missing(self) -> tuple[str, ...]: ...

    def ruleset(self) -> Ruleset: ...

    def foreign(self) -> ForeignTables:
        """All tables of other programs; the same object as long as none of them changes."""
        ...

    def policies(self) -> tuple[XfrmPolicy, ...]:
        """The host's IPsec policies for IPv4."""
        ...

    def change(self, change: Change) -> None: ...


class DhcpServers(Protocol):
    def missing(self) -> tuple[str, ...]: ...

    def serves(self, network: NodeNetwork) -> bool:
        """Whether exactly the wanted server runs and is not stopped by a signal; its end is reported from then on."""
        ...

    def serve(self, network: NodeNetwork) -> None:
        """Run the server, in place of one that runs otherwise, and keep it running. Leases are kept."""
        ...

    def foreign_files(self) -> tuple[str, ...]:
        """Files among the reservations that are not as this program writes them, in words."""
        ...

    def remove_foreign_files(self) -> None:
        """Remove the foreign files, and have the server drop the reservations in them."""
        ...

    def foreign_servers(self, network: NodeNetwork) -> tuple[str, ...]:
        """Descriptions of other programs that receive DHCP requests on the network's bridge."""
        ...


class Gateway:
    """Reads raise `HostUnreadable`, steps that and `HostRefused`."""

    def __init__(
        self,
        wanted: NodeNetwork,
        bridges: Bridges,
        links: HostLinks,
        filter_: NodeFilter,
        dhcp: DhcpServers,
        *,
        routing: HostRouting,
    ) -> None:
        self._wanted, self._bridges, self._links = wanted, bridges, links
        self._routing, self._filter, self._dhcp = routing, filter_, dhcp
        self._uplink: Uplink | None = None
        """The uplink as first read after the agent's start."""
        self._forwarding = wanted.bridge, wanted.uplink

    def to_apply(self) -> tuple[Step, ...]:
        """Steps that make the node fit to carry slices; empty when it is."""
        return (
            *self._bridge_steps(),
            *self._filter_steps(),
            *self._link_steps(),
            *self._routing_steps(),
            *self._dhcp_steps(),
        )

    def lost(self) -> tuple[Difference, ...]:
        """What the node needs and no step can bring back, and what others do that is theirs to undo."""
        return tuple(self._lost())

    def _lost(self) -> Iterator[Difference]:
        found, wanted = self._links.default_route_links(), self._wanted.uplink
        if wanted not in found:
            others = ", ".join(sorted(found)) or "no link that has a carrier"
            yield Difference("uplink.lost", f"a default route by {wanted}", f"default routes by {others}")
        foreign = (
            reported(self._foreign_rules()),
            policies_drift(self._filter.policies(), self._wanted.subnet),
        )
        yield from (each for each in foreign if each is not None)
        if managers := self._bridges.managers():
            yield Difference(
                "foreign.switch_manager", "no manager of Open vSwitch", f"managers {', '.join(managers)}"
            )
        if servers := self._dhcp.foreign_servers(self._wanted):
            alone = f"one DHCP server on {self._wanted.bridge}"
            yield Difference("foreign.dhcp_server", alone, f"{alone}, and {'; '.join(servers)}")
        yield from self._foreign_routing()
        yield from self._uplink_differs()

    def _foreign_routing(self) -> Iterator[Difference]:
        """Yield foreign routing that may divert slices' packets; it is reported with its source, and not changed."""
        bridge, subnet = self._wanted.bridge, self._wanted.subnet
        routes = self._routing.routes()
        found = (
            foreign_routes(routes, bridge, subnet),
            diverting_rules(self._routing.policy_rules(), routes, subnet, bridge),
        )
        yield from (each for each in found if each is not None)
        if upper := self._links.upper_links(bridge):
            yield Difference("foreign.upper_link", f"no link on {bridge}", ", ".join(sorted(upper)))

    def _uplink_differs(self) -> Iterator[Difference]:
        name = self._wanted.uplink
        found = self._links.uplink(name)
        if found is None:
            return
        self._uplink = first = self._uplink or found
        if (first.mac, first.mtu, first.arp) != (found.mac, found.mtu, found.arp):
            yield Difference("uplink.changed", _uplink_words(name, first), _uplink_words(name, found))
        if found.queueing:
            words = ", ".join(sorted(found.queueing))
            yield Difference("foreign.uplink_qdisc", f"no limits, filters or programs on {name}", words)
        if silent := self._routing.silent(name, gateways_of(self._routing.routes(), name)):
            words = f"no answer from {', '.join(sorted(silent))}"
            yield Difference("uplink.silent", f"a default gateway on {name} that answers ARP", words)

    def mirrored(self) -> Mapping[SlotIndex, Difference]:
        """The slots whose frames a rule of another program sends to another slice, or that receive another's."""
        return mirrored(self._foreign_rules())

    def _foreign_rules(self) -> tuple[Finding, ...]:
        tables, wanted = self._filter.foreign(), self._wanted
        if tables.is_empty:
            return ()
        rules = (each.rule for each in self._filter.ruleset().rules if each.rule.chain == MAPPING)
        node = NodeView(
            wanted.bridge,
            wanted.uplink,
            wanted.subnet,
            wanted.gateway,
            self._links.addresses(wanted.uplink),
            ways_of(tuple(each for each in rules if each.place in SLOTS)),
        )
        return findings(tables, node)

    def missing(self) -> tuple[str, ...]:
        """What must be installed on the host before anything can be done there, in words."""
        return tuple(words for _, words in self._lacking())

    def prerequisites(self) -> tuple[Prerequisite, ...]:
        """What the node needs, after all that could be done about it (NOD-6)."""
        lacking = tuple(Prerequisite(name, ok=False, detail=words) for name, words in self._lacking())
        # Without the means to look, the rest would only repeat the same in other words.
        return lacking or self._looked_at()

    def _lacking(self) -> Iterator[tuple[str, str]]:
        lacking = {
            "switch": self._bridges.missing(self._wanted.datapath_type),
            "translation": self._filter.missing(),
            "dhcp": self._dhcp.missing(),
        }
        return ((name, words) for name, of in lacking.items() for words in of)

    # What a repair would ask, where there is one: fit is a node of which nothing is left to mend.
    def _looked_at(self) -> tuple[Prerequisite, ...]:
        wanted = self._wanted
        return (
            _found("switch", f"bridge {wanted.bridge}", lambda: not any(self._bridge_steps())),
            _found("forwarding", "IPv4 forwarding", lambda: not self._not_forwarding()),
            _found("uplink", f"default route by {wanted.uplink}", self._has_uplink),
            _found(
                "translation",
                f"masquerade and filter rules for {wanted.subnet}",
                lambda: not any(self._filter_steps()),
            ),
            _found("dhcp", "DHCP server", lambda: self._dhcp.serves(wanted)),
        )

    def _has_uplink(self) -> bool:
        return self._wanted.uplink in self._links.default_route_links()

    def _not_forwarding(self) -> tuple[str, ...]:
        return self._links.not_forwarding(*self._forwarding)

    def _bridge_steps(self) -> Iterator[Step]:
        wanted = Bridge(
            self._wanted.bridge,
            self._wanted.datapath_type,
            gateway_mac(self._wanted.gateway),
            secure=True,
            protocols=PROTOCOLS,
        )
        found = self._bridges.bridge(wanted.name)
        if found != wanted:
            kind: DriftKind = "bridge.changed" if found else "bridge.absent"
            differs = Difference(kind, _bridge_words(wanted), _bridge_words(found))
            yield Step("gateway.set_bridge", lambda: self._bridges.set_bridge(wanted), differs)
        if found is None or not found.has_datapath or found.datapath_type != wanted.datapath_type:
            # It has no flows that could be read, or loses them with its datapath.
            return
        yield from self._port_steps()
        flows, meters = self._bridges.flows(wanted.name), self._bridges.meters(wanted.name)
        foreign = foreign_on(flows, meters, secure=found.secure)
        if (strange := foreign.difference()) is not None:
            yield Step("gateway.remove_foreign_flows", lambda: self._remove(foreign), strange)

    def _port_steps(self) -> Iterator[Step]:
        """Remove ports that are not a slot's: each bypasses the rules that isolate the slots' ports."""
        name = self._wanted.bridge
        if foreign := sorted(self._bridges.ports(name) - SLOTS):
            differs = Difference(
                "bridge.foreign_port", f"ports of slots alone on {name}", f"ports {', '.join(foreign)}"
            )
            yield Step("gateway.remove_foreign_ports", lambda: self._delete_ports(foreign), differs)
        if settings := switching_words(self._bridges.switching(name)):
            differs = Difference(
                "bridge.changed", f"bridge {name}, fragments normal", f"bridge {name}, {settings}"
            )
            yield Step("gateway.set_bridge", lambda: self._bridges.reset_switching(name), differs)

    def _delete_ports(self, names: Iterable[str]) -> None:
        for name in names:
            self._bridges.delete_port(name)

    def _remove(self, foreign: Foreign) -> None:
        for cookie in foreign.cookies:
            self._bridges.set_flows(self._wanted.bridge, cookie, frozenset())
        for number in foreign.meters:
            self._bridges.delete_meter(self._wanted.bridge, number)

    def _rules(self) -> tuple[Rule, ...]:
        wanted = self._wanted
        return node_rules(wanted.bridge, wanted.uplink, wanted.subnet, self._links.addresses(wanted.uplink))

    def _filter_steps(self) -> Iterator[Step]:
        chains, wanted, found = chains_on(self._wanted.bridge), self._rules(), self._filter.ruleset()
        change = plan_filter(chains, wanted, found)
        if change is not None:
            yield Step(
                "gateway.set_rules",
                lambda: self._set_rules(change),
                filter_difference(chains, wanted, found),
            )

    def _set_rules(self, change: Change) -> None:
        try:
            self._filter.change(change)
        except HostRefused:
            if not change.afresh or not change.delete:
                raise
            # A slot's rule was deleted since the listing, or cannot be made again (it matches another's set, say).
            # Without their rules the slots are cut off until they put them back.
            self._filter.change(replace(change, delete=(), insert=()))

    def _link_steps(self) -> Iterator[Step]:
        name, length = self._wanted.bridge, self._wanted.subnet.partition("/")[2]
        wanted = GatewayLink(
            frozenset({f"{self._wanted.gateway}/{length}"}),
            up=True,
            mac=gateway_mac(self._wanted.gateway),
            mtu=self._wanted.mtu,
        )
        found = self._links.gateway_link(name)
        if found != wanted:
            kind: DriftKind = "gateway.link" if _has_addresses_of(wanted, found) else "gateway.address"
            differs = Difference(kind, _link_words(name, wanted), _link_words(name, found))
            yield Step("gateway.set_address", lambda: self._links.set_gateway_link(name, wanted), differs)
        if off := self._not_forwarding():
            found_off = f"IPv4 forwarding off for {', '.join(off)}"
            differs = Difference("gateway.forwarding", "IPv4 forwarding on", found_off)
            forwarding = self._forwarding
            yield Step("gateway.set_forwarding", lambda: self._links.set_forwarding(*forwarding), differs)

    def _routing_steps(self) -> Iterator[Step]:
        wanted, bridge = (
            own_routes(self._wanted.bridge, self._wanted.subnet, self._wanted.gateway),
            self._wanted.bridge,
        )
        found = self._links.gateway_link(bridge)
        length = self._wanted.subnet.partition("/")[2]
        # The kernel adds them with the address, and when the link comes up.
        if found is not None and found.up and f"{self._wanted.gateway}/{length}" in found.addresses:
            routes = self._routing.routes()
            missing = tuple(each for each in wanted if each not in routes)
            if missing:
                words = "; ".join(map(str, missing))
                differs = Difference("gateway.route", "; ".join(map(str, wanted)), f"not there: {words}")
                yield Step("gateway.set_routes", lambda: self._routing.set_routes(missing), differs)
        neighbours = self._routing.static_neighbours(bridge)
        if neighbours:
            words = "; ".join(sorted(map(str, neighbours)))
            differs = Difference("gateway.neighbour", f"learned neighbours alone on {bridge}", words)
            yield Step(
                "gateway.delete_neighbours",
                lambda: self._routing.delete_neighbours(bridge, neighbours),
                differs,
            )

    def _dhcp_steps(self) -> Iterator[Step]:
        if not self._dhcp.serves(self._wanted):
            served = f"DHCP for {self._wanted.subnet} on {self._wanted.bridge}"
            differs = Difference("gateway.dhcp", served, "no such server that runs")
            yield Step("gateway.serve_dhcp", lambda: self._dhcp.serve(self._wanted), differs)
        if foreign := self._dhcp.foreign_files():
            differs = Difference("gateway.dhcp", "reservations of slots alone", "; ".join(foreign))
            yield Step("gateway.serve_dhcp", self._dhcp.remove_foreign_files, differs)


def switching_words(found: Switching) -> str:
    """What of the bridge's own port and of fragments differs from the defaults; empty for nothing."""
    fragments = () if found.fragments == "normal" else (f"fragments {found.fragments}",)
    own = (f"its own port {word}" for word in sorted(found.ports.get(LOCAL_NUMBER, ())))
    return ", ".join((*fragments, *own))


def _found(name: str, what: str, look: Callable[[], bool]) -> Prerequisite:
    try:
        return Prerequisite(name, ok=look(), detail=what)
    except HostUnreadable as error:
        return Prerequisite(name, ok=False, detail=f"{what}: {error}")


def plan_filter(chains: tuple[Chain, ...], wanted: tuple[Rule, ...], found: Ruleset) -> Change | None:
    """The transaction that sets the node's rules, or None. Rules of slots stay, nobody else's do."""
    if found.chains != frozenset(chains) or found.others:
        # A chain's hook cannot be changed in place, and what is foreign in a table may be used by anything there.
        known = {(chain.family, chain.name) for chain in chains}
        kept = tuple(
            each
            for each in found.rules
            if each.rule.place in SLOTS and (each.rule.family, each.rule.chain) in known
        )
        return Change(
            afresh=True,
            chains=chains,
            delete=kept,
            insert=tuple(each.rule for each in kept),
            append=wanted,
        )
    others = tuple(each for each in found.rules if each.rule.place not in SLOTS)
    if _by_chain(tuple(each.rule for each in others)) == _by_chain(wanted):
        return None
    return Change(delete=others, append=wanted)


def filter_difference(chains: tuple[Chain, ...], wanted: tuple[Rule, ...], found: Ruleset) -> Difference:
    """How the node's own tables differ from their declaration."""
    own = [each.rule for each in found.rules if each.rule.place not in SLOTS]
    missing = [each for each in wanted if each not in own]
    strange = [each for each in own if each not in wanted]
    kinds = {
        "chains missing": map(str, frozenset(chains) - found.chains),
        "chains not declared": map(str, found.chains - frozenset(chains)),
        "also there": found.others,
    }
    declared = "".join(f"; {kind}: {', '.join(names)}" for kind, of in kinds.items() if (names := sorted(of)))
    return Difference(
        "gateway.rules", f"{len(wanted)} rules", in_words(len(own), missing, strange) + declared
    )


def _bridge_words(bridge: Bridge | None) -> str:
    if bridge is None:
        return "no bridge"
    mode, protocols = "secure" if bridge.secure else "standalone", ", ".join(sorted(bridge.protocols))
    datapath = "" if bridge.has_datapath else " without a datapath"
    control = ", in band" if bridge.in_band else ""
    strangers = f", with {', '.join(sorted(bridge.strangers))}" if bridge.strangers else ""
    unmanaged = f", {', '.join(sorted(bridge.unmanaged))}" if bridge.unmanaged else ""
    return (
        f"bridge {bridge.name}, {mode}, {bridge.datapath_type}{datapath}, {bridge.mac}, {protocols or 'no protocols'}"
        f"{control}{strangers}{unmanaged}"
    )


def _link_words(name: str, link: GatewayLink | None) -> str:
    if link is None:
        return f"no link {name}"
    addresses, state = ", ".join(sorted(link.addresses)) or "no address", "up" if link.up else "down"
    arp = "" if link.arp else ", without ARP"
    added = f", with {link.alterations}" if link.alterations else ""
    return f"{addresses} on {name}, {state}, MAC {link.mac}, {link.mtu} bytes{arp}{added}"


def _uplink_words(name: str, uplink: Uplink) -> str:
    return f"{name} with MAC {uplink.mac}, {uplink.mtu} bytes{'' if uplink.arp else ', without ARP'}"


def _has_addresses_of(wanted: GatewayLink, found: GatewayLink | None) -> bool:
    return found is not None and (found.addresses, found.up) == (wanted.addresses, wanted.up)


def _by_chain(rules: tuple[Rule, ...]) -> dict[str, list[Rule]]:
    """Order matters within a chain alone. A foreign rule is in here too, and makes the difference."""
    return {chain: [each for each in rules if each.chain == chain] for chain in {r.chain for r in rules}}
