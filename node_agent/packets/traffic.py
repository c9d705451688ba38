"""Model of the slices' traffic at each packet filter hook: computes whether a rule matches all, some or none of it.

A kind of traffic is described by ranges (of addresses, ports, links, connection states), so a condition matches all,
some or none of its packets. A condition that is not modelled, such as a rate, a length or an unlisted match of
iptables, counts as matching some packets. The outside world, with which slices communicate, consists of the public
addresses only.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal

from events.values import Ipv4Address, Ipv4Subnet

Share = Literal["all", "some", "none"]
Ranges = tuple[tuple[int, int], ...]
Sets = Mapping[str, Any]
"""Elements of the named sets of an nftables table, by the name of the set, in the form in which nftables lists them."""

TAP_PREFIX: Final = "slice"
_ANYWHERE: Final = ("0.0.0.0/0",)
_NOT_PUBLIC: Final = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
    "224.0.0.0/3",
)  # fmt: skip
_UNPRIVILEGED: Final[Ranges] = ((1024, 65535),)
_DST_NAT: Final = -100
_SRC_NAT: Final = 100
_OPPOSITE: Final[Mapping[Share, Share]] = {"all": "none", "some": "some", "none": "all"}
_PROTOCOLS: Final = {1: "icmp", 6: "tcp", 17: "udp", 33: "dccp", 58: "ipv6-icmp", 132: "sctp"}
_TRANSPORTS: Final = {"tcp", "udp", "sctp", "dccp", "icmp", "udplite", "esp", "ah", "comp"}
_ONGOING: Final = frozenset({"new", "established"})
_ANSWERS: Final = frozenset({"established"})
_UNTRACKED: Final = frozenset({"untracked"})


def _outside(of: Iterable[str]) -> Iterator[str]:
    """Yield the IPv4 networks that together cover all addresses outside the networks `of`, which must be sorted."""
    first = 0
    for each in of:
        network = ipaddress.IPv4Network(each)
        begins = int(network.network_address)
        if begins > first:
            ends = ipaddress.IPv4Address(first), ipaddress.IPv4Address(begins - 1)
            yield from map(str, ipaddress.summarize_address_range(*ends))
        first = int(network.broadcast_address) + 1


WORLD: Final = tuple(_outside(_NOT_PUBLIC))


@dataclass(frozen=True, slots=True)
class PublicEndpoint:
    """A public address that leads to slices, with the ports of one protocol; None means all protocols and ports."""

    address: str
    protocol: str | None
    ports: Ranges | None


@dataclass(frozen=True, slots=True)
class NodeView:
    """Properties of a node that determine the traffic of its slices."""

    bridge: str
    uplink: str
    subnet: Ipv4Subnet
    gateway: Ipv4Address
    uplink_addresses: tuple[Ipv4Address, ...] = ()
    ways: tuple[PublicEndpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Traffic:
    """Packets of one kind at one hook. `iif` and `oif` are None if packets have no such link at the hook.

    Ports and protocol are None if they may have any value. `is_local`: the destination is the host itself; None: the
    host is the destination of some of the packets.
    """

    iif: str | None
    oif: str | None
    sources: tuple[str, ...] = WORLD
    destinations: tuple[str, ...] = WORLD
    protocol: str | None = None
    sports: Ranges | None = None
    dports: Ranges | None = None
    states: frozenset[str] = _ONGOING
    is_arp: bool = False
    is_translated: bool = False
    is_broadcast: bool = False
    is_local: bool | None = False
    leaves: bool = False
    """Whether a slice sends the packets to the outside world."""


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Descriptions of the slices' traffic: methods for single kinds, `up` for all traffic from a slice and `down` for
    all traffic to a slice. The input and output links are not set.
    """

    node: NodeView

    def dhcp_requests(self) -> Traffic:
        return Traffic(
            None,
            None,
            sources=("0.0.0.0/32", self.node.subnet),
            destinations=("255.255.255.255/32", f"{self.node.gateway}/32"),
            protocol="udp",
            sports=((68, 68),),
            dports=((67, 67),),
            states=_UNTRACKED,
            is_broadcast=True,
            is_local=None,
        )

    def dhcp_replies(self) -> Traffic:
        return Traffic(
            None,
            None,
            sources=(f"{self.node.gateway}/32",),
            destinations=(self.node.subnet, "255.255.255.255/32"),
            protocol="udp",
            sports=((67, 67),),
            dports=((68, 68),),
            states=_UNTRACKED,
            is_broadcast=True,
        )

    def probe(self) -> Traffic:
        """Return the traffic of readiness probes from the gateway to a slice."""
        gateway = (f"{self.node.gateway}/32",)
        return Traffic(
            None, None, gateway, (self.node.subnet,), "tcp", sports=_UNPRIVILEGED, is_translated=False
        )

    def probe_replies(self) -> Traffic:
        """Return the traffic of replies from a slice to readiness probes of the gateway."""
        gateway = (f"{self.node.gateway}/32",)
        return Traffic(
            None,
            None,
            (self.node.subnet,),
            gateway,
            "tcp",
            dports=_UNPRIVILEGED,
            states=_ANSWERS,
            is_local=True,
        )

    def out(self, *, translated: bool) -> Traffic:
        """Return the traffic from a slice to the outside world; `translated`: after masquerading by the node."""
        sources = self.own if translated else (self.node.subnet,)
        return Traffic(None, None, sources=sources, leaves=True)

    def back(self, *, translated: bool) -> Traffic:
        """Return the traffic of replies from the outside world to a slice; `translated`: after the node translated the
        destination address to that of the slice.
        """
        destinations = (self.node.subnet,) if translated else self.own
        return Traffic(
            None,
            None,
            destinations=destinations,
            dports=_UNPRIVILEGED,
            states=_ANSWERS,
            is_local=not translated,
        )

    def ways(self, *, translated: bool) -> Iterator[Traffic]:
        """Yield the traffic of outside clients to each public address; `translated`: after translation to the slice."""
        for way in self.node.ways:
            yield Traffic(
                None,
                None,
                destinations=(self.node.subnet,) if translated else (f"{way.address}/32",),
                protocol=way.protocol,
                # The slice's own port is not compared: foreign rules name the public one.
                dports=None if translated else way.ports,
                is_translated=translated,
                is_local=not translated,
            )

    def arp(self) -> Traffic:
        return Traffic(None, None, is_arp=True)

    @property
    def own(self) -> tuple[str, ...]:
        """The node's IPv4 addresses on the uplink; all IPv4 addresses if the node's addresses are unknown."""
        return tuple(f"{each}/32" for each in self.node.uplink_addresses) or _ANYWHERE

    def up(self) -> tuple[Traffic, ...]:
        """Return all traffic from a slice."""
        return (self.dhcp_requests(), self.probe_replies(), self.out(translated=False))

    def down(self) -> tuple[Traffic, ...]:
        """Return all traffic to a slice."""
        ways = self.ways(translated=True)
        return (self.dhcp_replies(), self.probe(), self.back(translated=True), *ways)

    def outside(self, *, translated: bool) -> tuple[Traffic, ...]:
        """Return all traffic from the outside world; `translated`: after the node's rules translated it."""
        return (self.back(translated=translated), *self.ways(translated=translated))


def traffic_at(
    family: str, hook: str, priority: int, device: str | None, node: NodeView
) -> tuple[Traffic, ...]:
    """Return the slices' traffic that a base chain with this family, hook, priority and device receives."""
    kinds = _Kinds(node)
    if hook in {"ingress", "egress"}:
        devices = (device or "").split(", ")
        return tuple(each for name in devices for each in _at_device(hook, name, kinds))
    if family == "arp":
        return _linked((kinds.arp(),), hook, node.bridge)
    if family not in {"ip", "inet"}:
        # Frames pass through Open vSwitch, not through a bridge of the kernel, and slices have no IPv6.
        return ()
    return _at_hook(hook, priority, kinds)


def _at_device(hook: str, device: str, kinds: _Kinds) -> tuple[Traffic, ...]:
    node, arrives = kinds.node, hook == "ingress"
    if device == node.bridge or device.startswith(TAP_PREFIX):
        # The host receives packets of slices from the bridge's own link.
        found = (*(kinds.up() if arrives else kinds.down()), kinds.arp())
    elif device == node.uplink:
        found = kinds.outside(translated=False) if arrives else (kinds.out(translated=True),)
    else:
        return ()
    return _linked(found, "input" if arrives else "output", device)


def _at_hook(hook: str, priority: int, kinds: _Kinds) -> tuple[Traffic, ...]:
    node = kinds.node
    forwarded = (
        *_linked((kinds.out(translated=False),), "both", node.bridge, node.uplink),
        *_linked(kinds.outside(translated=True), "both", node.uplink, node.bridge),
    )
    match hook:
        case "prerouting":
            from_world = kinds.outside(translated=priority > _DST_NAT)
            return (*_linked(kinds.up(), "input", node.bridge), *_linked(from_world, "input", node.uplink))
        case "input":
            return _linked((kinds.dhcp_requests(), kinds.probe_replies()), "input", node.bridge)
        case "forward":
            return forwarded
        case "output":
            return _linked((kinds.dhcp_replies(), kinds.probe()), "output", node.bridge)
        case "postrouting":
            own = _linked((kinds.dhcp_replies(), kinds.probe()), "output", node.bridge)
            if priority > _SRC_NAT:
                translated = (kinds.out(translated=True),)
                forwarded = (
                    *_linked(translated, "both", node.bridge, node.uplink),
                    *_linked(kinds.outside(translated=True), "both", node.uplink, node.bridge),
                )
            return (*own, *forwarded)
        case _:
            return ()


def _linked(
    traffic: Iterable[Traffic], direction: str, link: str, other: str | None = None
) -> tuple[Traffic, ...]:
    """Return the traffic with its links set. `direction` is `input` (`link` is the input link), `output` (`link` is the
    output link) or `both` (`link` is the input link, `other` the output link).
    """
    match direction:
        case "both":
            return tuple(replace(each, iif=link, oif=other) for each in traffic)
        case "output":
            return tuple(replace(each, oif=link) for each in traffic)
        case _:
            return tuple(replace(each, iif=link) for each in traffic)


def both(one: Share, other: Share) -> Share:
    """Return how many packets (all, some or none) satisfy two conditions, given how many satisfy each condition."""
    if "none" in (one, other):
        return "none"
    return "all" if (one, other) == ("all", "all") else "some"


def share(match: Mapping[str, Any], traffic: Traffic, sets: Sets) -> Share:
    """Return whether the match statement of a rule (libnftables-json(5)) matches all, some or none of the traffic's
    packets.
    """
    right = _resolved(match["right"], sets)
    found = _share(match["left"], right, traffic)
    match match["op"]:
        case "==" | "in":
            return found
        case "!=" | "!":
            return _OPPOSITE[found]
        case _:
            return (
                "none"
                if found == "none" and isinstance(match["left"], dict) and _excludes(match, traffic)
                else "some"
            )


def _excludes(match: Mapping[str, Any], traffic: Traffic) -> bool:
    """Whether a condition compares a header field of a protocol that no packet of the traffic uses."""
    protocol = match["left"].get("payload", {}).get("protocol")
    return protocol is not None and _of_protocol(protocol, traffic) == "none"


def _resolved(right: Any, sets: Sets) -> Any:
    if isinstance(right, str) and right.startswith("@"):
        return {"set": sets[right[1:]]} if right[1:] in sets else None
    return right


def _share(left: Any, right: Any, traffic: Traffic) -> Share:
    match left:
        case {"meta": {"key": str() as key}}:
            return _meta(key, right, traffic)
        case {"payload": {"protocol": str() as protocol, "field": str() as name}}:
            return both(_of_protocol(protocol, traffic), _field(protocol, name, right, traffic))
        case {"ct": {"key": "state"}}:
            return _among(traffic.states, _members(right))
        case {"ct": {"key": "status"}} if right == "dnat":
            return "all" if traffic.is_translated else "none"
        case {"ct": {"key": "mark"}} | {"&": [{"meta": {"key": "mark"}} | {"ct": {"key": "mark"}}, int()]}:
            return _unmarked(right)
        case {"fib": {"result": "type", "flags": ["daddr", *_]}}:
            return _destination_type(right, traffic)
        case {"fib": {"result": "oif"}} if right is False:
            # A route back exists for each of these packets, so a reverse path check matches none.
            return "none"
        case {"concat": list() as parts}:
            # A combination is only checked for a part that excludes all packets.
            excluded = any(_of_part(each, traffic) == "none" for each in parts)
            return "none" if excluded else "some"
        case _:
            return "some"


def _of_part(part: Any, traffic: Traffic) -> Share:
    match part:
        case {"payload": {"protocol": str() as protocol}}:
            return _of_protocol(protocol, traffic)
        case _:
            return "some"


def _meta(key: str, right: Any, traffic: Traffic) -> Share:
    match key:
        case "iifname" | "iif":
            return _link(traffic.iif, right)
        case "oifname" | "oif":
            return _link(traffic.oif, right)
        case "l4proto":
            return _protocol(right, traffic)
        case "nfproto" | "protocol":
            wanted = {"arp"} if traffic.is_arp else {"ip", "ipv4"}
            return "all" if wanted & {*map(str, _members(right))} else "none"
        case "mark":
            return _unmarked(right)
        case "pkttype":
            is_group = all(each in ("broadcast", "multicast") for each in _members(right))
            return "none" if is_group and not traffic.is_broadcast and not traffic.is_arp else "some"
        case _:
            return "some"


def _of_protocol(protocol: str, traffic: Traffic) -> Share:
    """Return whether all, some or none of the traffic's packets have a header of this protocol."""
    match protocol:
        case "ether":
            return "all"
        case "arp":
            return "all" if traffic.is_arp else "none"
        case "ip" | "th":
            return "none" if traffic.is_arp else "all"
        case "ip6" | "icmpv6" | "vlan":
            return "none"
        case _ if protocol in _TRANSPORTS:
            return _protocol(protocol, traffic)
        case _:
            return "some"


def _field(protocol: str, name: str, right: Any, traffic: Traffic) -> Share:
    match protocol, name:
        case "ip", "saddr":
            return _addresses(traffic.sources, right)
        case "ip", "daddr":
            return _addresses(traffic.destinations, right)
        case "ip", "protocol":
            return _protocol(right, traffic)
        case "ether", "type":
            return "all" if ("arp" if traffic.is_arp else "ip") in _members(right) else "none"
        case _, "sport":
            return _ports(traffic.sports, right)
        case _, "dport":
            return _ports(traffic.dports, right)
        case _:
            return "some"


def _protocol(right: Any, traffic: Traffic) -> Share:
    if traffic.is_arp:
        return "none"
    if traffic.protocol is None:
        return "some"
    return "all" if any(_is_protocol(each, traffic.protocol) for each in _members(right)) else "none"


def _is_protocol(member: Any, protocol: str) -> bool:
    """Whether a member of an nftables set selects this protocol: by name, by number, or by a range of numbers."""
    match member:
        case int():
            return _PROTOCOLS.get(member) == protocol
        case {"range": [int() as first, int() as last]}:
            return any(first <= number <= last and name == protocol for number, name in _PROTOCOLS.items())
        case _:
            return bool(member == protocol)


def _link(link: str | None, right: Any) -> Share:
    return "all" if link is not None and any(_is_called(link, each) for each in _members(right)) else "none"


def _is_called(link: str, pattern: Any) -> bool:
    name = str(pattern)
    return link.startswith(name[:-1]) if name.endswith("*") else link == name


def _unmarked(right: Any) -> Share:
    """Return whether all, some or none of the packets of slices match a comparison of their mark with `right`, the
    right side of the rule's expression. The packets have no mark, which counts as mark 0.
    """
    return "all" if right == 0 else "none" if isinstance(right, int) else "some"


def _destination_type(right: Any, traffic: Traffic) -> Share:
    members = _members(right)
    types = {*_single(members)}
    if _has_ranges(members):
        return "some"
    if traffic.is_local is None:
        return "some" if types & {"local", "broadcast"} else "none"
    if traffic.is_broadcast:
        return "some"
    return "all" if ("local" if traffic.is_local else "unicast") in types else "none"


def _addresses(own: tuple[str, ...], right: Any) -> Share:
    if right is None:
        return "some"
    others = [*map(_bounds, _networks(right))]
    shares: set[Share] = {_address(_bounds(each), others) for each in own}
    return shares.pop() if len(shares) == 1 else "some"


def _address(own: tuple[int, int], others: Iterable[tuple[int, int]]) -> Share:
    first, last = own
    meeting = [(first_, last_) for first_, last_ in others if first <= last_ and first_ <= last]
    if not meeting:
        return "none"
    return "all" if any(first_ <= first and last <= last_ for first_, last_ in meeting) else "some"


@lru_cache(maxsize=8192)
def _bounds(text: str) -> tuple[int, int]:
    network = ipaddress.IPv4Network(text)
    return int(network.network_address), int(network.broadcast_address)


def _ports(own: Ranges | None, right: Any) -> Share:
    if own is None or right is None:
        return "some"
    others = port_ranges(right)
    if not any(first <= last_ and first_ <= last for first, last in own for first_, last_ in others):
        return "none"
    is_within = all(any(first_ <= first and last <= last_ for first_, last_ in others) for first, last in own)
    return "all" if is_within else "some"


def _among(own: frozenset[str], others: Iterable[Any]) -> Share:
    members = [*others]
    names = {*_single(members)}
    if _has_ranges(members):
        return "all" if own <= names else "some"
    if not own & names:
        return "none"
    return "all" if own <= names else "some"


def _members(right: Any) -> list[Any]:
    """Return the elements of an nftables set or list; a single value is returned as a list with one element."""
    match right:
        case {"set": list() as members} | (list() as members):
            return [_element(each) for each in members]
        case None:
            return []
        case _:
            return [right]


def _single(members: Iterable[Any]) -> Iterator[Any]:
    """Yield the elements of an nftables set that are single values; skip ranges and prefixes."""
    return (each for each in members if not isinstance(each, dict | list))


def _has_ranges(members: Iterable[Any]) -> bool:
    return any(isinstance(each, dict | list) for each in members)


def _element(member: Any) -> Any:
    """Return the value of an element of an nftables set, without the timeout and comment of the element."""
    return member["elem"]["val"] if isinstance(member, dict) and "elem" in member else member


def overlap(networks: Iterable[str], subnet: str) -> bool:
    """Whether any of the given IPv4 networks has addresses in common with the subnet."""
    return _addresses((subnet,), [*networks]) != "none"


def networks_in(value: Any) -> tuple[str, ...]:
    """Return all IPv4 networks in a value of nftables: an address, prefix, range, or a set of them."""
    return tuple(_networks(value))


def _networks(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield from _if_network(value)
        case {"prefix": {"addr": str() as address, "len": int() as length}}:
            yield from _if_network(f"{address}/{length}")
        case {"range": [str() as first, str() as last]}:
            yield from _range(first, last)
        case dict():
            for each in value.values():
                yield from _networks(each)
        case list():
            for each in value:
                yield from _networks(each)
        case _:
            pass


def _if_network(text: str) -> Iterator[str]:
    try:
        yield str(ipaddress.IPv4Network(text, strict=False))
    except ValueError:
        return


def _range(first: str, last: str) -> Iterator[str]:
    try:
        ends = ipaddress.IPv4Address(first), ipaddress.IPv4Address(last)
    except ValueError:
        return
    yield from map(str, ipaddress.summarize_address_range(*ends))


def port_ranges(value: Any) -> list[tuple[int, int]]:
    """Return the port ranges in a value of nftables: a port, a range, or a set of them."""
    found = list[tuple[int, int]]()
    for each in _members(value):
        match each:
            case int():
                found.append((each, each))
            case {"range": [int() as first, int() as last]}:
                found.append((first, last))
            case _:
                pass
    return found
