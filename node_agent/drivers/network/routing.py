"""IPv4 routes, policy rules and neighbours as the kernel lists them (rtnetlink(7)).

Few of these objects change between two snapshots, so a listing that equals the previous listing is not decoded again
(docs/decisions, 0031).
"""

import socket
import struct
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from pyroute2.netlink import NETLINK_ROUTE
from pyroute2.netlink.rtnl import RTM_GETNEIGH, RTM_GETROUTE, RTM_GETRULE

from events.values import Ipv4Address, Ipv4Subnet
from node_agent.drivers.network.netlink import Refused, attributes, listed
from node_agent.host.slices import HostUnreadable
from node_agent.packets.routing import PolicyRule, Route, RouteKind

_DEADLINE: Final = 5.0
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
"""Layout of struct rtmsg: family, lengths of destination and source, TOS, table, protocol, scope, type, flags."""
_RULE: Final = struct.Struct("=BBBBBxxBI")
"""Layout of struct fib_rule_hdr: family, lengths of destination and source, TOS, table, action, flags."""
_NEIGHBOUR: Final = struct.Struct("=BxxxiHBB")
"""Layout of struct ndmsg: family, link, state, flags, type."""
_HOP: Final = struct.Struct("=HBBi")
"""Layout of struct rtnexthop (linux/rtnetlink.h), a next hop of a route: length, flags, hops, interface index."""
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_PREFSRC, _RTA_MULTIPATH, _RTA_TABLE = (
    1,
    4,
    5,
    6,
    7,
    9,
    15,
)
_PLAIN: Final = frozenset({_RTA_DST, _RTA_OIF, _RTA_PRIORITY, _RTA_PREFSRC, _RTA_TABLE})
_KINDS: Final[Mapping[int, RouteKind]] = {
    1: "unicast", 2: "local", 3: "broadcast", 6: "blackhole", 7: "unreachable", 8: "prohibit", 9: "throw",
}  # fmt: skip
"""Names of the route types RTN_* (linux/rtnetlink.h), by their numbers."""
_FRA_DST, _FRA_SRC, _FRA_IIFNAME, _FRA_PRIORITY, _FRA_FWMARK, _FRA_TABLE = 1, 2, 3, 6, 10, 15
_FRA_SUPPRESS: Final = (13, 14)
"""FRA_SUPPRESS_IFGROUP and FRA_SUPPRESS_PREFIXLEN. A value with all bits set means that nothing is suppressed."""
_HOST_ONLY: Final = frozenset({17, 20})
"""FRA_OIFNAME and FRA_UID_RANGE, which match only packets that the host itself sends."""
_L3MDEV: Final = 19
"""FRA_L3MDEV, which matches only packets of a VRF."""
_PARTIAL: Final = frozenset({12, 22, 23, 24})
"""FRA_TUN_ID, FRA_IP_PROTO, FRA_SPORT_RANGE and FRA_DPORT_RANGE, which match only some packets of an address."""
_NONE: Final = b"\xff\xff\xff\xff"
_INVERTED: Final = 2
"""Flag FIB_RULE_INVERT of a policy rule that matches all packets except those of its selectors."""
_ACTIONS: Final[Mapping[int, str]] = {
    1: "lookup", 2: "goto", 3: "nop", 6: "blackhole", 7: "unreachable", 8: "prohibit",
}  # fmt: skip
"""Names of the actions FR_ACT_* of policy rules (linux/fib_rules.h), by their numbers."""
_NDA_DST, _NDA_LLADDR = 1, 2
_UNICAST: Final = 1
REACHABLE, STALE, FAILED, NOARP, PERMANENT = 0x02, 0x04, 0x20, 0x40, 0x80
INCOMPLETE: Final = 0x01
"""Neighbour state NUD_INCOMPLETE. REACHABLE, STALE, FAILED, NOARP and PERMANENT are the other states NUD_* that are
used (linux/neighbour.h)."""


class ListedRoute(NamedTuple):
    """A route as the kernel lists it. `links` are the interface indexes of the links over which the route leads."""

    route: Route
    links: tuple[int, ...]


class ListedNeighbour(NamedTuple):
    """A neighbour (ARP) entry of the link with the interface index `link`.

    A `static` entry was set by a program, and the kernel does not resolve its MAC address.
    """

    link: int
    address: Ipv4Address
    mac: str | None
    state: int
    static: bool


def routes() -> tuple[ListedRoute, ...]:
    """Return the routes of this network namespace from all tables. Raises `HostUnreadable`."""
    request = _ROUTE.pack(socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)
    return _routes(_bodies("routes", RTM_GETROUTE, request))


def rules() -> tuple[PolicyRule, ...]:
    """Return the policy rules in the order in which the kernel applies them. Raises `HostUnreadable`."""
    return _rules(_bodies("policy rules", RTM_GETRULE, _RULE.pack(socket.AF_INET, 0, 0, 0, 0, 0, 0)))


def neighbours() -> tuple[ListedNeighbour, ...]:
    """Return the neighbour entries of this network namespace. Raises `HostUnreadable`."""
    bodies = _bodies("neighbours", RTM_GETNEIGH, _NEIGHBOUR.pack(socket.AF_INET, 0, 0, 0, 0))
    return tuple(map(_neighbour, bodies))


def _bodies(objects: str, kind: int, request: bytes) -> tuple[bytes, ...]:
    try:
        return tuple(body for _, body in listed(NETLINK_ROUTE, kind, request, _DEADLINE))
    except (Refused, OSError) as error:
        raise HostUnreadable(f"cannot list {objects}: {error}") from error


@lru_cache(maxsize=2)
def _routes(bodies: tuple[bytes, ...]) -> tuple[ListedRoute, ...]:
    return tuple(map(_route, bodies))


@lru_cache(maxsize=2)
def _rules(bodies: tuple[bytes, ...]) -> tuple[PolicyRule, ...]:
    return tuple(map(_rule, bodies))


def _route(body: bytes) -> ListedRoute:
    _, length, _, _, table, _, _, kind, _ = _ROUTE.unpack_from(body)
    held = attributes(body, _ROUTE.size)
    hops = tuple(_hops(held))
    route = Route(
        _KINDS.get(kind, "other"),
        _network(held.get(_RTA_DST), length),
        _number(held.get(_RTA_TABLE), table),
        gateways=tuple(gateway for _, gateway in hops if gateway is not None),
        source=_address(held.get(_RTA_PREFSRC)),
        metric=_number(held.get(_RTA_PRIORITY), 0),
        is_plain=held.keys() <= _PLAIN,
    )
    # A route that discards packets has no link.
    return ListedRoute(route, tuple(link for link, _ in hops if link))


def _hops(held: Mapping[int, bytes]) -> Iterable[tuple[int, Ipv4Address | None]]:
    """Yield the link and the gateway of each next hop of a route. A multipath route (RTA_MULTIPATH) has several."""
    next_hops = held.get(_RTA_MULTIPATH)
    if next_hops is None:
        yield _number(held.get(_RTA_OIF), 0), _address(held.get(_RTA_GATEWAY))
        return
    at = 0
    while at < len(next_hops):
        length, _, _, link = _HOP.unpack_from(next_hops, at)
        hop = attributes(next_hops[at + _HOP.size : at + length])
        yield link, _address(hop.get(_RTA_GATEWAY))
        at += (length + 3) & ~3


def _rule(body: bytes) -> PolicyRule:
    _, to, source, tos, table, action, flags = _RULE.unpack_from(body)
    held = attributes(body, _RULE.size)
    link = held.get(_FRA_IIFNAME, b"").rstrip(b"\0").decode()
    suppresses = any(held.get(each, _NONE) != _NONE for each in _FRA_SUPPRESS)
    return PolicyRule(
        _number(held.get(_FRA_PRIORITY), 0),
        _ACTIONS.get(action, f"action {action}"),
        _number(held.get(_FRA_TABLE), table),
        _network(held.get(_FRA_SRC), source) if source else None,
        _network(held.get(_FRA_DST), to) if to else None,
        link or None,
        marked=_FRA_FWMARK in held or _L3MDEV in held,
        of_host=link == "lo" or not held.keys().isdisjoint(_HOST_ONLY),
        inverted=bool(flags & _INVERTED),
        partial=bool(tos) or suppresses or not held.keys().isdisjoint(_PARTIAL),
    )


def _neighbour(body: bytes) -> ListedNeighbour:
    _, link, state, _, kind = _NEIGHBOUR.unpack_from(body)
    held = attributes(body, _NEIGHBOUR.size)
    mac = held.get(_NDA_LLADDR)
    # Entries without ARP for multicast and broadcast addresses are created by the kernel itself.
    static = bool(state & PERMANENT) or (state == NOARP and kind == _UNICAST)
    address = Ipv4Address(socket.inet_ntoa(held[_NDA_DST]))
    return ListedNeighbour(link, address, mac.hex(":") if mac else None, state, static)


def _network(address: bytes | None, length: int) -> Ipv4Subnet:
    return Ipv4Subnet(f"{socket.inet_ntoa(address or bytes(4))}/{length}")


def _address(value: bytes | None) -> Ipv4Address | None:
    return Ipv4Address(socket.inet_ntoa(value)) if value is not None else None


def _number(value: bytes | None, default: int) -> int:
    return int.from_bytes(value, sys.byteorder) if value is not None else default
