"""IPv4 routes, policy rules and neighbours as the kernel lists them (rtnetlink(7)).

Few of them change between two looks, so a listing that is the same as the last one is not decoded again
(decision 0031).
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
from node_agent.drivers.netlink import Refused, attributes, listed
from node_agent.routing import PolicyRule, Route, RouteKind
from node_agent.slices import HostUnreadable

_DEADLINE: Final = 5.0
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
"""struct rtmsg: family, lengths of destination and source, TOS, table, protocol, scope, type, flags."""
_RULE: Final = struct.Struct("=BBBBBxxBI")
"""struct fib_rule_hdr: family, lengths of destination and source, TOS, table, action, flags."""
_NEIGHBOUR: Final = struct.Struct("=BxxxiHBB")
"""struct ndmsg: family, link, state, flags, type."""
_HOP: Final = struct.Struct("=HBBi")
"""struct rtnexthop: length, flags, hops, link."""
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
"""RTN_* (linux/rtnetlink.h)"""
_FRA_DST, _FRA_SRC, _FRA_IIFNAME, _FRA_PRIORITY, _FRA_FWMARK, _FRA_TABLE = 1, 2, 3, 6, 10, 15
_FRA_SUPPRESS: Final = (13, 14)
"""FRA_SUPPRESS_IFGROUP, FRA_SUPPRESS_PREFIXLEN; all ones: none."""
_OF_HOST: Final = frozenset({17, 20})
"""FRA_OIFNAME and FRA_UID_RANGE: only what the host sends by itself has a link or a user beforehand."""
_L3MDEV: Final = 19
"""FRA_L3MDEV: only packets of a VRF."""
_IN_PART: Final = frozenset({12, 22, 23, 24})
"""FRA_TUN_ID, FRA_IP_PROTO, FRA_SPORT_RANGE, FRA_DPORT_RANGE"""
_NONE: Final = b"\xff\xff\xff\xff"
_INVERTED: Final = 2
"""FIB_RULE_INVERT"""
_ACTIONS: Final[Mapping[int, str]] = {
    1: "lookup", 2: "goto", 3: "nop", 6: "blackhole", 7: "unreachable", 8: "prohibit",
}  # fmt: skip
"""FR_ACT_* (linux/fib_rules.h)"""
_NDA_DST, _NDA_LLADDR = 1, 2
_UNICAST: Final = 1
REACHABLE, STALE, FAILED, NOARP, PERMANENT = 0x02, 0x04, 0x20, 0x40, 0x80
INCOMPLETE: Final = 0x01
"""NUD_* (linux/neighbour.h)"""


class ListedRoute(NamedTuple):
    """A route with the kernel's numbers of its links."""

    route: Route
    links: tuple[int, ...]


class ListedNeighbour(NamedTuple):
    """An entry of a link by the kernel's number of it. `static`: a program set it, and the kernel asks for no MAC."""

    link: int
    address: Ipv4Address
    mac: str | None
    state: int
    static: bool


def routes() -> tuple[ListedRoute, ...]:
    """All of this network namespace, in all tables. Raises `HostUnreadable`."""
    asked = _ROUTE.pack(socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)
    return _routes(_bodies("routes", RTM_GETROUTE, asked))


def rules() -> tuple[PolicyRule, ...]:
    """In the order in which the kernel applies them. Raises `HostUnreadable`."""
    return _rules(_bodies("policy rules", RTM_GETRULE, _RULE.pack(socket.AF_INET, 0, 0, 0, 0, 0, 0)))


def neighbours() -> tuple[ListedNeighbour, ...]:
    """All of this network namespace. Raises `HostUnreadable`."""
    bodies = _bodies("neighbours", RTM_GETNEIGH, _NEIGHBOUR.pack(socket.AF_INET, 0, 0, 0, 0))
    return tuple(map(_neighbour, bodies))


def _bodies(question: str, kind: int, asked: bytes) -> tuple[bytes, ...]:
    try:
        return tuple(body for _, body in listed(NETLINK_ROUTE, kind, asked, _DEADLINE))
    except (Refused, OSError) as error:
        raise HostUnreadable(f"{question}: {error}") from error


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
    # A route that leads nowhere leads over no link.
    return ListedRoute(route, tuple(link for link, _ in hops if link))


def _hops(held: Mapping[int, bytes]) -> Iterable[tuple[int, Ipv4Address | None]]:
    """The links and gateways of a route: those of all its hops, where it has several (RTA_MULTIPATH)."""
    several = held.get(_RTA_MULTIPATH)
    if several is None:
        yield _number(held.get(_RTA_OIF), 0), _address(held.get(_RTA_GATEWAY))
        return
    at = 0
    while at < len(several):
        length, _, _, link = _HOP.unpack_from(several, at)
        its = attributes(several[at + _HOP.size : at + length])
        yield link, _address(its.get(_RTA_GATEWAY))
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
        of_host=link == "lo" or not held.keys().isdisjoint(_OF_HOST),
        inverted=bool(flags & _INVERTED),
        partial=bool(tos) or suppresses or not held.keys().isdisjoint(_IN_PART),
    )


def _neighbour(body: bytes) -> ListedNeighbour:
    _, link, state, _, kind = _NEIGHBOUR.unpack_from(body)
    held = attributes(body, _NEIGHBOUR.size)
    mac = held.get(_NDA_LLADDR)
    # The kernel makes entries without ARP itself, for multicast and broadcast addresses.
    static = bool(state & PERMANENT) or (state == NOARP and kind == _UNICAST)
    address = Ipv4Address(socket.inet_ntoa(held[_NDA_DST]))
    return ListedNeighbour(link, address, mac.hex(":") if mac else None, state, static)


def _network(address: bytes | None, length: int) -> Ipv4Subnet:
    return Ipv4Subnet(f"{socket.inet_ntoa(address or bytes(4))}/{length}")


def _address(value: bytes | None) -> Ipv4Address | None:
    return Ipv4Address(socket.inet_ntoa(value)) if value is not None else None


def _number(value: bytes | None, otherwise: int) -> int:
    return int.from_bytes(value, sys.byteorder) if value is not None else otherwise
