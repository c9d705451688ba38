"""The node's own part: bridge, filter, gateway address and DHCP server, which stand before any slice does.

Prepared at the agent's start and looked at by every survey, since any of it can vanish: a restarted vswitchd makes the
bridge's device anew, without its address. Order: the bridge, which is `secure` and passes nothing; the filter, which
needs the bridge's device; only then the address, forwarding and DHCP. A crash in between leaves a node that carries
less, never one that is more open, and the same comparison goes on from there.
"""

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from events.values import MAX_SLOTS, Ipv4Address, Ipv4Subnet, MacAddress, SlotIndex, ipv4_address
from node_agent.flows import Flow, gateway_mac
from node_agent.foreign import Foreign, foreign_on
from node_agent.gateway_rules import CHAINS, node_rules
from node_agent.host import Prerequisite
from node_agent.links import DEFAULT_MTU
from node_agent.meters import Meter
from node_agent.rivals import Diversion, rivals
from node_agent.rules import Change, Rule, Ruleset, in_words
from node_agent.settings import Settings
from node_agent.slices import Difference, HostUnreadable, Step, tap_of
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

    `in_band`: a controller is reached through it, past all flows. `strangers` are others who hear its frames or set its
    flows, each by its kind and, where it has one, its name: `mirror spy`.
    """

    name: str
    datapath_type: str
    mac: MacAddress | None
    secure: bool
    protocols: frozenset[str]
    in_band: bool = False
    strangers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GatewayLink:
    """The bridge's own device, on which the gateway's address stands. `addresses` are in CIDR form."""

    addresses: frozenset[str]
    up: bool


class Bridges(Protocol):
    def missing(self) -> tuple[str, ...]:
        """What this driver lacks on the host, in words."""
        ...

    def bridge(self, name: str) -> Bridge | None: ...

    def set_bridge(self, bridge: Bridge) -> None:
        """Make it, or change it into this; strangers go in any case."""
        ...

    def flows(self, bridge: str) -> Mapping[int, frozenset[Flow]]: ...

    def set_flows(self, bridge: str, cookie: int, flows: frozenset[Flow]) -> None: ...

    def meters(self, bridge: str) -> Mapping[int, Meter | None]: ...

    def delete_meter(self, bridge: str, number: int) -> None: ...


class HostLinks(Protocol):
    def gateway_link(self, name: str) -> GatewayLink | None: ...

    def set_gateway_link(self, name: str, link: GatewayLink) -> None: ...

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


class NodeFilter(Protocol):
    def missing(self) -> tuple[str, ...]: ...

    def ruleset(self) -> Ruleset: ...

    def diversions(self) -> tuple[Diversion, ...]:
        """Rules of other tables that send IPv4 packets elsewhere."""
        ...

    def change(self, change: Change) -> None: ...


class DhcpServers(Protocol):
    def missing(self) -> tuple[str, ...]: ...

    def serves(self, network: NodeNetwork) -> bool:
        """Whether exactly the wanted server runs, whoever started it; its end is heard of from then on."""
        ...

    def serve(self, network: NodeNetwork) -> None:
        """Run the server, in place of one that runs otherwise, and keep it running. Leases are kept."""
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
    ) -> None:
        self._wanted, self._bridges, self._links = wanted, bridges, links
        self._filter, self._dhcp = filter_, dhcp
        self._forwarding = wanted.bridge, wanted.uplink

    def to_apply(self) -> tuple[Step, ...]:
        """Steps that make the node fit to carry slices; empty when it is."""
        return (
            *self._bridge_steps(),
            *self._filter_steps(),
            *self._link_steps(),
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
        own = [each.rule for each in self._filter.ruleset().rules if each.rule.place in SLOTS]
        rival = rivals(self._filter.diversions(), own, self._wanted.subnet)
        if rival is not None:
            yield rival

    def missing(self) -> tuple[str, ...]:
        """What must be installed on the host before anything can be done there, in words."""
        return tuple(words for _, words in self._lacking())

    def prerequisites(self) -> tuple[Prerequisite, ...]:
        """What the node needs, after all that could be done about it (NOD-6)."""
        lacking = tuple(Prerequisite(name, ok=False, detail=words) for name, words in self._lacking())
        # Without the means to look, the rest would only repeat the same in other words.
        return lacking or self._looked_at()

    def _lacking(self) -> Iterator[tuple[str, str]]:
        drivers = (("switch", self._bridges), ("translation", self._filter), ("dhcp", self._dhcp))
        return ((name, words) for name, driver in drivers for words in driver.missing())

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
        flows, meters = self._bridges.flows(wanted.name), self._bridges.meters(wanted.name)
        foreign = foreign_on(flows, meters, secure=found is None or found.secure)
        if (strange := foreign.difference()) is not None:
            yield Step("gateway.remove_foreign_flows", lambda: self._remove(foreign), strange)

    def _remove(self, foreign: Foreign) -> None:
        for cookie in foreign.cookies:
            self._bridges.set_flows(self._wanted.bridge, cookie, frozenset())
        for number in foreign.meters:
            self._bridges.delete_meter(self._wanted.bridge, number)

    def _rules(self) -> tuple[Rule, ...]:
        wanted = self._wanted
        return node_rules(wanted.bridge, wanted.uplink, wanted.subnet, self._links.addresses(wanted.uplink))

    def _filter_steps(self) -> Iterator[Step]:
        wanted, found = self._rules(), self._filter.ruleset()
        change = plan_filter(wanted, found, self._wanted.bridge)
        if change is not None:
            yield Step(
                "gateway.set_rules", lambda: self._filter.change(change), filter_difference(wanted, found)
            )

    def _link_steps(self) -> Iterator[Step]:
        name, length = self._wanted.bridge, self._wanted.subnet.partition("/")[2]
        wanted = GatewayLink(frozenset({f"{self._wanted.gateway}/{length}"}), up=True)
        found = self._links.gateway_link(name)
        if found != wanted:
            differs = Difference("gateway.address", _link_words(name, wanted), _link_words(name, found))
            yield Step("gateway.set_address", lambda: self._links.set_gateway_link(name, wanted), differs)
        if off := self._not_forwarding():
            found_off = f"IPv4 forwarding off for {', '.join(off)}"
            differs = Difference("gateway.forwarding", "IPv4 forwarding on", found_off)
            forwarding = self._forwarding
            yield Step("gateway.set_forwarding", lambda: self._links.set_forwarding(*forwarding), differs)

    def _dhcp_steps(self) -> Iterator[Step]:
        if not self._dhcp.serves(self._wanted):
            served = f"DHCP for {self._wanted.subnet} on {self._wanted.bridge}"
            differs = Difference("gateway.dhcp", served, "no such server")
            yield Step("gateway.serve_dhcp", lambda: self._dhcp.serve(self._wanted), differs)


def _found(name: str, what: str, look: Callable[[], bool]) -> Prerequisite:
    try:
        return Prerequisite(name, ok=look(), detail=what)
    except HostUnreadable as error:
        return Prerequisite(name, ok=False, detail=f"{what}: {error}")


def plan_filter(wanted: tuple[Rule, ...], found: Ruleset, bridge: str) -> Change | None:
    """The transaction that sets the node's rules, or None. Rules of slots stay, nobody else's do."""
    if found.chains != frozenset(CHAINS):
        # A chain's hook cannot be changed in place. Slots put their rules back themselves; cut off until then.
        return Change(afresh=True, chains=CHAINS, append=wanted, device=bridge)
    others = tuple(each for each in found.rules if each.rule.place not in SLOTS)
    if _by_chain(tuple(each.rule for each in others)) == _by_chain(wanted):
        return None
    return Change(delete=others, append=wanted)


def filter_difference(wanted: tuple[Rule, ...], found: Ruleset) -> Difference:
    """What is otherwise with the node's own rules."""
    own = [each.rule for each in found.rules if each.rule.place not in SLOTS]
    missing = [each for each in wanted if each not in own]
    strange = [each for each in own if each not in wanted]
    lacking = sorted(chain.name for chain in frozenset(CHAINS) - found.chains)
    chains = f"; no chain {', '.join(lacking)}" if lacking else ""
    return Difference("gateway.rules", f"{len(wanted)} rules", in_words(len(own), missing, strange) + chains)


def _bridge_words(bridge: Bridge | None) -> str:
    if bridge is None:
        return "no bridge"
    mode, protocols = "secure" if bridge.secure else "standalone", ", ".join(sorted(bridge.protocols))
    control = ", in band" if bridge.in_band else ""
    strangers = f", with {', '.join(sorted(bridge.strangers))}" if bridge.strangers else ""
    return (
        f"bridge {bridge.name}, {mode}, {bridge.datapath_type}, {bridge.mac}, {protocols or 'no protocols'}"
        f"{control}{strangers}"
    )


def _link_words(name: str, link: GatewayLink | None) -> str:
    if link is None:
        return f"no link {name}"
    return f"{', '.join(sorted(link.addresses)) or 'no address'} on {name}, {'up' if link.up else 'down'}"


def _by_chain(rules: tuple[Rule, ...]) -> dict[str, list[Rule]]:
    """Order matters within a chain alone. A foreign rule is in here too, and makes the difference."""
    return {chain: [each for each in rules if each.chain == chain] for chain in {r.chain for r in rules}}
