"""Network of the node itself: bridge, packet filter, gateway address and DHCP server, which every slice depends on.

The agent sets the network up at its start and compares it in every survey, since any part can vanish: a restarted
vswitchd creates the bridge's device again, without its address. The order of the steps is: the bridge, which is
`secure` and passes nothing; the filter, which needs the bridge's device; then the address, forwarding and DHCP. A crash
in between leaves a node that passes less traffic, never more, and the next comparison continues from there.
"""

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol, assert_never, get_args

from events.values import (
    MAX_SLOTS,
    Ipv4Address,
    Ipv4Subnet,
    MacAddress,
    NetworkMode,
    SlotIndex,
    ipv4_address,
)
from node_agent.aspects.flows import LOCAL_NUMBER, Flow, gateway_mac
from node_agent.aspects.foreign import Foreign, foreign_on
from node_agent.aspects.gateway_rules import chains_on, node_rules
from node_agent.aspects.links import DEFAULT_MTU, UNALTERED, Alterations
from node_agent.aspects.meters import Meter
from node_agent.aspects.ports import Switching
from node_agent.host.host import Prerequisite
from node_agent.host.slices import Difference, HostRefused, HostUnreadable, Step, tap_of
from node_agent.packets.foreign_rules import (
    Finding,
    ForeignTables,
    findings,
    mirrored,
    public_endpoints,
    reported,
)
from node_agent.packets.routing import (
    Neighbour,
    PolicyRule,
    Route,
    diverting_rules,
    foreign_routes,
    gateways_of,
    own_routes,
)
from node_agent.packets.rules import (
    MAPPING,
    AddressTranslation,
    Chain,
    Change,
    Rule,
    Ruleset,
    describe_rule_difference,
)
from node_agent.packets.traffic import NodeView
from node_agent.packets.xfrm import XfrmPolicy, policies_drift
from node_agent.settings import Settings
from tasks.drift import DriftKind

PROTOCOLS: Final = frozenset({"OpenFlow13", "OpenFlow14", "OpenFlow15"})
SLOTS: Final = frozenset(tap_of(SlotIndex(index)) for index in range(MAX_SLOTS))
"""Names of the network links of all slots that a node can have."""


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """Desired network of a node, from its settings and its enrolment.

    `lease_seconds` is the duration of a DHCP lease; `mtu` is in bytes.
    """

    bridge: str
    subnet: Ipv4Subnet
    gateway: Ipv4Address
    uplink: str
    datapath_type: str
    lease_seconds: int = 3600
    resolvers: tuple[Ipv4Address, ...] = ()
    mtu: int = DEFAULT_MTU


def node_network(settings: Settings, subnet: Ipv4Subnet) -> NodeNetwork:
    """Return the network of a node that enrolled with `subnet`; its gateway is the first host address of the subnet."""
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

    `in_band` is True if the switch may connect to a controller through the bridge; that traffic bypasses all flows.
    `foreign_objects` lists objects of other programs that receive the bridge's frames or set its flows, each by its
    kind and name (`mirror spy`). `unmanaged` lists the settings of the bridge and its own port that this program does
    not make (`stp_enable=true`).
    """

    name: str
    datapath_type: str
    mac: MacAddress | None
    secure: bool
    protocols: frozenset[str]
    in_band: bool = False
    foreign_objects: frozenset[str] = frozenset()
    unmanaged: frozenset[str] = frozenset()
    has_datapath: bool = True
    """False if the switch did not create the datapath, because the switch or the kernel does not support the datapath's
    type."""


@dataclass(frozen=True, slots=True)
class GatewayLink:
    """The bridge's own device, which has the gateway's address. `addresses` are in CIDR form, `mtu` is in bytes.

    In a desired state, None for `mac` or `mtu` keeps the link's value. `arp` is False if the host answers no ARP
    requests on the link.
    """

    addresses: frozenset[str]
    up: bool
    mac: MacAddress | None = None
    mtu: int | None = None
    arp: bool = True
    alterations: Alterations = UNALTERED


@dataclass(frozen=True, slots=True)
class Uplink:
    """The host's link to external networks. The agent does not configure it. `mtu` is in bytes.

    `queueing` describes the queueing disciplines, filters and programs that may delay, drop or redirect its frames.
    """

    mac: str | None
    mtu: int
    arp: bool
    queueing: frozenset[str] = frozenset()


class Bridges(Protocol):
    """Interface to the OVS bridges of a host, with their ports, flows and meters."""

    def missing(self, datapath_type: str) -> tuple[str, ...]:
        """Describe what must be installed on the host for OVS bridges of this datapath type; empty if complete."""
        ...

    def bridge(self, name: str) -> Bridge | None: ...

    def set_bridge(self, bridge: Bridge) -> None:
        """Create or change an OVS bridge, and remove its foreign objects and unmanaged settings."""
        ...

    def ports(self, bridge: str) -> frozenset[str]:
        """Return the names of an OVS bridge's ports except its local port; empty if the bridge does not exist."""
        ...

    def delete_port(self, name: str) -> None: ...

    def managers(self) -> tuple[str, ...]:
        """Return the OVSDB manager targets by which other programs may change the switch's database (ovs-vsctl(8)).

        The host's own OVSDB socket is not included.
        """
        ...

    def switching(self, bridge: str) -> Switching:
        """Return a bridge's handling of IP fragments and the flags of its ports; defaults for a missing bridge."""
        ...

    def reset_switching(self, bridge: str) -> None:
        """Make a bridge treat IP fragments like other packets, and its local port receive and forward frames."""
        ...

    def flows(self, bridge: str) -> Mapping[int, frozenset[Flow]]: ...

    def set_flows(self, bridge: str, cookie: int, flows: frozenset[Flow]) -> None: ...

    def meters(self, bridge: str) -> Mapping[int, Meter | None]: ...

    def delete_meter(self, bridge: str, number: int) -> None: ...


class HostLinks(Protocol):
    """Interface to the network links of a host and to its IP forwarding settings."""

    def gateway_link(self, name: str) -> GatewayLink | None: ...

    def set_gateway_link(self, name: str, link: GatewayLink) -> None:
        """Set a link's addresses, MAC, MTU and flags, and undo all other changes by foreign programs."""
        ...

    def addresses(self, name: str) -> tuple[Ipv4Address, ...]: ...

    def default_route_links(self) -> frozenset[str]:
        """Return the links that have a default route and a carrier. An unplugged link is omitted, although the kernel
        keeps its route.
        """
        ...

    def not_forwarding(self, *names: str) -> tuple[str, ...]:
        """Return the links that do not forward received IPv4 packets; `all` stands for the host as a whole."""
        ...

    def set_forwarding(self, *names: str) -> None:
        """Enable IPv4 forwarding for the host as a whole and for the given links; a missing link is ignored."""
        ...

    def uplink(self, name: str) -> Uplink | None: ...

    def upper_links(self, name: str) -> tuple[str, ...]:
        """Describe the links that are stacked on the link `name` (macvlan, VLAN)."""
        ...


class HostRouting(Protocol):
    """Interface to the IPv4 routing of a host. Reads raise `HostUnreadable`; changes raise `HostUnreadable` and
    `HostRefused`.
    """

    def routes(self) -> tuple[Route, ...]:
        """Return the IPv4 routes of all routing tables of the host."""
        ...

    def set_routes(self, routes: Iterable[Route]) -> None:
        """Add the given routes; a route that exists is not changed. The kernel itself creates such routes when an
        address is added to a link.
        """
        ...

    def policy_rules(self) -> tuple[PolicyRule, ...]: ...

    def static_neighbours(self, link: str) -> tuple[Neighbour, ...]:
        """Return the ARP entries of a link with statically set MACs, which were not learned."""
        ...

    def delete_neighbours(self, link: str, neighbours: Iterable[Neighbour]) -> None: ...

    def silent(self, link: str, gateways: frozenset[Ipv4Address]) -> frozenset[Ipv4Address]:
        """Return the gateways (next hops of routes) on a link that do not answer ARP requests.

        If the state of a gateway is unknown, the kernel sends it an ARP request, and a later call returns the result.
        """
        ...


class NodeFilter(Protocol):
    """Interface to the packet filter of a host: the node's own nftables tables, and the tables of other programs."""

    def missing(self) -> tuple[str, ...]: ...

    def unsupported(self) -> Mapping[AddressTranslation, str]:
        """Return the kinds of address translation that the host refuses, each with its error.

        Raises `HostUnreadable`.
        """
        ...

    def ruleset(self) -> Ruleset: ...

    def foreign(self) -> ForeignTables:
        """Return the packet filter tables of other programs; the result is the same object until one of the tables
        changes.
        """
        ...

    def policies(self) -> tuple[XfrmPolicy, ...]:
        """Return the host's IPsec policies for IPv4."""
        ...

    def change(self, change: Change) -> None: ...


class DhcpServers(Protocol):
    """Interface to the DHCP servers of a host: the node's own server, and the servers of other programs."""

    def missing(self) -> tuple[str, ...]: ...

    def serves(self, network: NodeNetwork) -> bool:
        """Return whether the node's DHCP server runs with exactly this network and is not stopped by a signal.

        After this call, a survey starts at once when the server's process ends.
        """
        ...

    def serve(self, network: NodeNetwork) -> None:
        """Start the node's DHCP server; a server with other options is replaced. The DHCP leases are kept."""
        ...

    def foreign_files(self) -> tuple[str, ...]:
        """Describe the files in the folder of DHCP reservations that another program wrote or changed."""
        ...

    def remove_foreign_files(self) -> None:
        """Remove the foreign DHCP reservation files, and make the DHCP server drop their reservations."""
        ...

    def foreign_servers(self, network: NodeNetwork) -> tuple[str, ...]:
        """Describe the other programs that receive DHCP requests on the bridge of the given network."""
        ...


class Gateway:
    """Comparison and repair of the node's own network. Reads raise `HostUnreadable`, repairs also `HostRefused`."""

    def __init__(
        self,
        desired: NodeNetwork,
        bridges: Bridges,
        links: HostLinks,
        filter_: NodeFilter,
        dhcp: DhcpServers,
        *,
        routing: HostRouting,
    ) -> None:
        self._desired, self._bridges, self._links = desired, bridges, links
        self._routing, self._filter, self._dhcp = routing, filter_, dhcp
        self._uplink: Uplink | None = None
        """State of the uplink at the first survey after the agent's start. Each later state is compared with it."""
        self._forwarding = desired.bridge, desired.uplink

    def to_apply(self) -> tuple[Step, ...]:
        """Return the steps that set up the node's network for slices; empty if it is set up."""
        return (
            *self._bridge_steps(),
            *self._filter_steps(),
            *self._link_steps(),
            *self._routing_steps(),
            *self._dhcp_steps(),
        )

    def lost(self) -> tuple[Difference, ...]:
        """Return the drift of the node's network that the agent cannot repair, including interference by other
        programs.
        """
        return tuple(self._lost())

    def _lost(self) -> Iterator[Difference]:
        found, desired = self._links.default_route_links(), self._desired.uplink
        if desired not in found:
            by_others = f"default routes by {', '.join(sorted(found))}" if found else ""
            observed = by_others or "no default route by any link with a carrier"
            yield Difference("uplink.lost", f"a default route by {desired}", observed)
        foreign = (
            reported(self._foreign_rules()),
            policies_drift(self._filter.policies(), self._desired.subnet),
        )
        yield from (each for each in foreign if each is not None)
        if managers := self._bridges.managers():
            yield Difference(
                "foreign.switch_manager",
                "no remote manager of the Open vSwitch database",
                f"managers {', '.join(managers)}",
            )
        if servers := self._dhcp.foreign_servers(self._desired):
            only_own = f"one DHCP server on {self._desired.bridge}"
            yield Difference("foreign.dhcp_server", only_own, f"{only_own}, and {'; '.join(servers)}")
        yield from self._foreign_routing()
        yield from self._uplink_differs()

    def _foreign_routing(self) -> Iterator[Difference]:
        """Yield drift about foreign routes, policy rules and links that may divert slices' packets.

        The drift names the foreign object, which the agent does not change.
        """
        bridge, subnet = self._desired.bridge, self._desired.subnet
        routes = self._routing.routes()
        found = (
            foreign_routes(routes, bridge, subnet),
            diverting_rules(self._routing.policy_rules(), routes, subnet, bridge),
        )
        yield from (each for each in found if each is not None)
        if upper := self._links.upper_links(bridge):
            yield Difference("foreign.upper_link", f"no link stacked on {bridge}", ", ".join(sorted(upper)))

    def _uplink_differs(self) -> Iterator[Difference]:
        name = self._desired.uplink
        found = self._links.uplink(name)
        if found is None:
            return
        self._uplink = first = self._uplink or found
        if (first.mac, first.mtu, first.arp) != (found.mac, found.mtu, found.arp):
            yield Difference("uplink.changed", _uplink_words(name, first), _uplink_words(name, found))
        if found.queueing:
            queueing = ", ".join(sorted(found.queueing))
            yield Difference(
                "foreign.uplink_qdisc",
                f"no queueing limits, filters or XDP programs on link {name}",
                queueing,
            )
        if silent := self._routing.silent(name, gateways_of(self._routing.routes(), name)):
            no_answer = f"no ARP answer from {', '.join(sorted(silent))}"
            yield Difference(
                "uplink.unresponsive", f"a default gateway on {name} that answers ARP", no_answer
            )

    def mirrored(self) -> Mapping[SlotIndex, Difference]:
        """Return, by slot index, the drift about foreign packet filter rules that copy or redirect frames to or from
        the slot's link.
        """
        return mirrored(self._foreign_rules())

    def _foreign_rules(self) -> tuple[Finding, ...]:
        tables, desired = self._filter.foreign(), self._desired
        if tables.is_empty:
            return ()
        rules = (each.rule for each in self._filter.ruleset().rules if each.rule.chain == MAPPING)
        node = NodeView(
            desired.bridge,
            desired.uplink,
            desired.subnet,
            desired.gateway,
            self._links.addresses(desired.uplink),
            public_endpoints(tuple(each for each in rules if each.place in SLOTS)),
        )
        return findings(tables, node)

    def missing(self) -> tuple[str, ...]:
        """Describe the programs that must be installed before the agent can configure the node's network."""
        return tuple(text for _, text in self._missing())

    def unsupported_modes(self) -> Mapping[NetworkMode, str]:
        """Return the network modes that slices on the host cannot have, each with what the host lacks for it.

        Raises `HostUnreadable`.
        """
        unsupported = self._filter.unsupported()
        found = ((mode, unsupported.get(_translation_of(mode))) for mode in get_args(NetworkMode))
        return {mode: reason for mode, reason in found if reason is not None}

    def prerequisites(self) -> tuple[Prerequisite, ...]:
        """Return the state of each prerequisite of the node's network, after all possible repairs (NOD-6)."""
        missing = tuple(Prerequisite(name, ok=False, detail=text) for name, text in self._missing())
        # If a program is missing, nothing can be read with it: further checks would only repeat the same error.
        return missing or self._checked()

    def _missing(self) -> Iterator[tuple[str, str]]:
        missing = {
            "switch": self._bridges.missing(self._desired.datapath_type),
            "translation": self._filter.missing(),
            "dhcp": self._dhcp.missing(),
        }
        return ((name, text) for name, texts in missing.items() for text in texts)

    # The checks use the plans of the repair where they can: a node is ready if no repair is left to do.
    def _checked(self) -> tuple[Prerequisite, ...]:
        desired = self._desired
        return (
            _check("switch", f"bridge {desired.bridge}", lambda: not any(self._bridge_steps())),
            _check("forwarding", "IPv4 forwarding", lambda: not self._not_forwarding()),
            _check("uplink", f"default route by {desired.uplink}", self._has_uplink),
            _check(
                "translation",
                f"masquerade and filter rules for {desired.subnet}",
                lambda: not any(self._filter_steps()),
            ),
            self._check_modes(),
            _check("dhcp", "DHCP server", lambda: self._dhcp.serves(desired)),
        )

    def _check_modes(self) -> Prerequisite:
        try:
            unsupported = self.unsupported_modes()
        except HostUnreadable as error:
            return Prerequisite("network_modes", ok=False, detail=str(error))
        reasons = [f"network mode {mode}: {reason}" for mode, reason in unsupported.items()]
        modes = f"network modes {', '.join(get_args(NetworkMode))}"
        return Prerequisite("network_modes", ok=not reasons, detail="; ".join(reasons) or modes)

    def _has_uplink(self) -> bool:
        return self._desired.uplink in self._links.default_route_links()

    def _not_forwarding(self) -> tuple[str, ...]:
        return self._links.not_forwarding(*self._forwarding)

    def _bridge_steps(self) -> Iterator[Step]:
        desired = Bridge(
            self._desired.bridge,
            self._desired.datapath_type,
            gateway_mac(self._desired.gateway),
            secure=True,
            protocols=PROTOCOLS,
        )
        found = self._bridges.bridge(desired.name)
        if found != desired:
            kind: DriftKind = "bridge.changed" if found else "bridge.absent"
            differs = Difference(kind, _bridge_words(desired), _bridge_words(found))
            yield Step("gateway.set_bridge", lambda: self._bridges.set_bridge(desired), differs)
        if found is None or not found.has_datapath or found.datapath_type != desired.datapath_type:
            # The bridge has no flows yet, or loses them when its datapath is replaced.
            return
        yield from self._port_steps()
        flows, meters = self._bridges.flows(desired.name), self._bridges.meters(desired.name)
        foreign = foreign_on(flows, meters, secure=found.secure)
        if (drift := foreign.difference()) is not None:
            yield Step("gateway.remove_foreign_flows", lambda: self._remove(foreign), drift)

    def _port_steps(self) -> Iterator[Step]:
        """Yield the steps that remove foreign ports and reset changed settings of the node's OVS bridge.

        A port that belongs to no slot bypasses the rules that isolate the slots' ports.
        """
        name = self._desired.bridge
        if foreign := sorted(self._bridges.ports(name) - SLOTS):
            differs = Difference(
                "bridge.foreign_port",
                f"no ports on bridge {name} except those of slots",
                f"ports {', '.join(foreign)}",
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
            self._bridges.set_flows(self._desired.bridge, cookie, frozenset())
        for number in foreign.meters:
            self._bridges.delete_meter(self._desired.bridge, number)

    def _rules(self) -> tuple[Rule, ...]:
        desired = self._desired
        return node_rules(
            desired.bridge,
            desired.uplink,
            desired.subnet,
            self._links.addresses(desired.uplink),
            masquerades="masquerade" not in self._filter.unsupported(),
        )

    def _filter_steps(self) -> Iterator[Step]:
        chains, desired, found = chains_on(self._desired.bridge), self._rules(), self._filter.ruleset()
        change = plan_filter(chains, desired, found)
        if change is not None:
            yield Step(
                "gateway.set_rules",
                lambda: self._set_rules(change),
                filter_difference(chains, desired, found),
            )

    def _set_rules(self, change: Change) -> None:
        try:
            self._filter.change(change)
        except HostRefused:
            if not change.afresh or not change.delete:
                raise
            # A slot's rule was deleted since the listing, or cannot be added again (it matches a foreign set, for
            # example). Set the node's rules alone: the slots have no traffic until their own repair adds their rules.
            self._filter.change(replace(change, delete=(), insert=()))

    def _link_steps(self) -> Iterator[Step]:
        name, length = self._desired.bridge, self._desired.subnet.partition("/")[2]
        desired = GatewayLink(
            frozenset({f"{self._desired.gateway}/{length}"}),
            up=True,
            mac=gateway_mac(self._desired.gateway),
            mtu=self._desired.mtu,
        )
        found = self._links.gateway_link(name)
        if found != desired:
            kind: DriftKind = "gateway.link" if _has_addresses_of(desired, found) else "gateway.address"
            differs = Difference(kind, _link_words(name, desired), _link_words(name, found))
            yield Step("gateway.set_address", lambda: self._links.set_gateway_link(name, desired), differs)
        if off := self._not_forwarding():
            found_off = f"IPv4 forwarding off for {', '.join(off)}"
            differs = Difference("gateway.forwarding", "IPv4 forwarding on", found_off)
            forwarding = self._forwarding
            yield Step("gateway.set_forwarding", lambda: self._links.set_forwarding(*forwarding), differs)

    def _routing_steps(self) -> Iterator[Step]:
        desired, bridge = (
            own_routes(self._desired.bridge, self._desired.subnet, self._desired.gateway),
            self._desired.bridge,
        )
        found = self._links.gateway_link(bridge)
        length = self._desired.subnet.partition("/")[2]
        # The kernel adds the routes with the address and when the link comes up, so before that none is missing.
        if found is not None and found.up and f"{self._desired.gateway}/{length}" in found.addresses:
            routes = self._routing.routes()
            missing = tuple(each for each in desired if each not in routes)
            if missing:
                text = "; ".join(map(str, missing))
                differs = Difference("gateway.route", "; ".join(map(str, desired)), f"missing: {text}")
                yield Step("gateway.set_routes", lambda: self._routing.set_routes(missing), differs)
        neighbours = self._routing.static_neighbours(bridge)
        if neighbours:
            text = "; ".join(sorted(map(str, neighbours)))
            differs = Difference("gateway.neighbour", f"no static neighbour entries on {bridge}", text)
            yield Step(
                "gateway.delete_neighbours",
                lambda: self._routing.delete_neighbours(bridge, neighbours),
                differs,
            )

    def _dhcp_steps(self) -> Iterator[Step]:
        if not self._dhcp.serves(self._desired):
            served = f"DHCP for {self._desired.subnet} on {self._desired.bridge}"
            differs = Difference("gateway.dhcp", served, "no DHCP server with the desired settings runs")
            yield Step("gateway.serve_dhcp", lambda: self._dhcp.serve(self._desired), differs)
        if foreign := self._dhcp.foreign_files():
            differs = Difference(
                "gateway.dhcp", "no DHCP reservations except those of slots", "; ".join(foreign)
            )
            yield Step("gateway.serve_dhcp", self._dhcp.remove_foreign_files, differs)


def switching_words(found: Switching) -> str:
    """Describe how a bridge's handling of IP fragments and its local port differ from the defaults; "" if equal."""
    fragments = () if found.fragments == "normal" else (f"fragments {found.fragments}",)
    own = (f"its local port {word}" for word in sorted(found.ports.get(LOCAL_NUMBER, ())))
    return ", ".join((*fragments, *own))


def _translation_of(mode: NetworkMode) -> AddressTranslation:
    """Return the kind of address translation without which slices cannot have a network mode.

    Both modes masquerade what slices send. In `public-nat` that is not required: clients reach a slice at its public
    address without it.
    """
    match mode:
        case "private-nat":
            return "masquerade"
        case "public-nat":
            return "dnat"
        case _:
            assert_never(mode)


def _check(name: str, detail: str, is_ok: Callable[[], bool]) -> Prerequisite:
    try:
        return Prerequisite(name, ok=is_ok(), detail=detail)
    except HostUnreadable as error:
        return Prerequisite(name, ok=False, detail=f"{detail}: {error}")


def plan_filter(chains: tuple[Chain, ...], desired: tuple[Rule, ...], found: Ruleset) -> Change | None:
    """Return the nftables transaction that sets the node's own rules, or None if they are set.

    Rules of slots are kept; all other rules in the node's tables are removed.
    """
    if found.chains != frozenset(chains) or found.others:
        # Create the tables again: a chain's hook cannot be changed in place, and any rule in a table may use the
        # foreign objects there.
        declared = {(chain.family, chain.name) for chain in chains}
        kept = tuple(
            each
            for each in found.rules
            if each.rule.place in SLOTS and (each.rule.family, each.rule.chain) in declared
        )
        return Change(
            afresh=True,
            chains=chains,
            delete=kept,
            insert=tuple(each.rule for each in kept),
            append=desired,
        )
    others = tuple(each for each in found.rules if each.rule.place not in SLOTS)
    if _by_chain(tuple(each.rule for each in others)) == _by_chain(desired):
        return None
    return Change(delete=others, append=desired)


def filter_difference(chains: tuple[Chain, ...], desired: tuple[Rule, ...], found: Ruleset) -> Difference:
    """Return the drift between the node's own nftables tables and their desired state."""
    own = [each.rule for each in found.rules if each.rule.place not in SLOTS]
    missing = [each for each in desired if each not in own]
    foreign = [each for each in own if each not in desired]
    kinds = {
        "chains missing": map(str, frozenset(chains) - found.chains),
        "chains not declared": map(str, found.chains - frozenset(chains)),
        "other objects": found.others,
    }
    chains_differ = "".join(
        f"; {kind}: {', '.join(names)}"
        for kind, found_names in kinds.items()
        if (names := sorted(found_names))
    )
    return Difference(
        "gateway.rules",
        f"{len(desired)} rules",
        describe_rule_difference(len(own), missing, foreign) + chains_differ,
    )


def _bridge_words(bridge: Bridge | None) -> str:
    if bridge is None:
        return "no bridge"
    mode, protocols = "secure" if bridge.secure else "standalone", ", ".join(sorted(bridge.protocols))
    datapath = "" if bridge.has_datapath else " without a datapath"
    control = ", with an in-band controller" if bridge.in_band else ""
    foreign = f", with {', '.join(sorted(bridge.foreign_objects))}" if bridge.foreign_objects else ""
    unmanaged = f", {', '.join(sorted(bridge.unmanaged))}" if bridge.unmanaged else ""
    return (
        f"bridge {bridge.name}, {mode}, {bridge.datapath_type}{datapath}, {bridge.mac}, {protocols or 'no protocols'}"
        f"{control}{foreign}{unmanaged}"
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


def _has_addresses_of(desired: GatewayLink, found: GatewayLink | None) -> bool:
    return found is not None and (found.addresses, found.up) == (desired.addresses, desired.up)


def _by_chain(rules: tuple[Rule, ...]) -> dict[str, list[Rule]]:
    """Group nftables rules by their chain, since their order matters only within a chain."""
    return {chain: [each for each in rules if each.chain == chain] for chain in {r.chain for r in rules}}
