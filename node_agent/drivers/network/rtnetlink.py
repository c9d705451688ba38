"""Links and addresses as the kernel lists them (rtnetlink(7)), decoded by pyroute2.

Consecutive surveys receive mostly equal messages, apart from counters, which are not read. A message that is unchanged
is not decoded again.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from socket import AF_INET
from typing import Any, Final, NamedTuple

from pyroute2.netlink import NETLINK_ROUTE
from pyroute2.netlink.rtnl import RTM_GETADDR, RTM_GETLINK
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import IFF_NOARP, IFF_UP, ifinfmsg

from node_agent.drivers.network.netlink import Refused, framed, listed, unframed, without
from node_agent.host.slices import HostUnreadable

_DEADLINE: Final = 5.0
_SKIP_STATS: Final = 8
"""RTEXT_FILTER_SKIP_STATS (linux/rtnetlink.h): omits the counters of each protocol."""
_COUNTERS: Final = frozenset({7, 23})
"""Attribute types IFLA_STATS and IFLA_STATS64 (linux/if_link.h), which the kernel sends even if RTEXT_FILTER_SKIP_STATS
is set."""
_ATTRIBUTES: Final = 16
"""Offset of the attributes in a link message (after struct ifinfomsg)."""
_CACHE_SIZE: Final = 4096
_TAP: Final = 2
"""Value of the netlink attribute IFLA_TUN_TYPE for a tap (linux/if_tun.h, IFF_TAP)."""
_STACKED: Final = frozenset({"macvlan", "macvtap", "ipvlan", "ipvtap", "vlan", "macsec"})
"""Kinds of links that use the frames of another link (IFLA_LINK). For other kinds, IFLA_LINK is a peer or an
underlay."""


class ListedTap(NamedTuple):
    """Settings of a persistent tap device: its owner, and whether it has several queues."""

    owner: int | None
    many: bool


class ListedLink(NamedTuple):
    """A link as the kernel lists it. `number`, `master` and `lower` are interface indexes.

    `mute` is true for a link without ARP and IPv6. `lower` is the link of this host from which a stacked link (macvlan,
    VLAN) takes its frames. `arp_ignore` and `route_localnet` are settings of the link (ip-sysctl).
    """

    number: int
    name: str
    kind: str | None
    mtu: int
    up: bool
    mute: bool
    has_carrier: bool
    master: int | None
    tap: ListedTap | None
    mac: str | None
    arp: bool
    lower: int | None
    has_xdp: bool
    arp_ignore: int
    route_localnet: int


class Links(NamedTuple):
    """All links of the host, from one listing of the kernel."""

    by_name: Mapping[str, ListedLink]
    by_number: Mapping[int, ListedLink]
    upper: Mapping[int, tuple[ListedLink, ...]]
    """Links that are stacked on a link, by the interface index of that link."""


# pyroute2 has no type annotations, so its messages are Any; they are used only in this module.
Decoded = Any


def links() -> Links:
    """Return the links of this network namespace. Raises `HostUnreadable`."""
    request = ifinfmsg()
    request["attrs"] = [["IFLA_EXT_MASK", _SKIP_STATS]]
    bodies = _bodies("links", RTM_GETLINK, request)
    found = [_link(without(_COUNTERS, body, _ATTRIBUTES)) for body in bodies]
    upper: dict[int, tuple[ListedLink, ...]] = {}
    for each in found:
        if each.lower is not None:
            upper[each.lower] = (*upper.get(each.lower, ()), each)
    return Links({each.name: each for each in found}, {each.number: each for each in found}, upper)


def addresses() -> Mapping[int, frozenset[str]]:
    """Return the IPv4 addresses of all links by interface index, as `10.0.0.1/24`. Raises `HostUnreadable`."""
    request = ifaddrmsg()
    request["family"] = AF_INET
    found: dict[int, set[str]] = {}
    for number, address in map(_address, _bodies("addresses", RTM_GETADDR, request)):
        found.setdefault(number, set()).add(address)
    return {number: frozenset(addresses) for number, addresses in found.items()}


def _bodies(objects: str, kind: int, request: Decoded) -> Iterator[bytes]:
    request.encode()
    try:
        found = listed(NETLINK_ROUTE, kind, unframed(bytes(request.data)), _DEADLINE)
    except (Refused, OSError) as error:
        raise HostUnreadable(f"cannot list {objects}: {error}") from error
    return (body for _, body in found)


@lru_cache(maxsize=_CACHE_SIZE)
def _link(body: bytes) -> ListedLink:
    message = _decoded(ifinfmsg, body)
    flags, info = message["flags"], message.get_attr("IFLA_LINKINFO")
    kind = info.get_attr("IFLA_INFO_KIND") if info else None
    ipv4 = _settings(message)
    return ListedLink(
        number=message["index"],
        name=message.get_attr("IFLA_IFNAME"),
        kind=kind,
        mtu=message.get_attr("IFLA_MTU"),
        up=bool(flags & IFF_UP),
        mute=bool(flags & IFF_NOARP) and _is_without_ipv6(message),
        has_carrier=bool(message.get_attr("IFLA_CARRIER")),
        master=message.get_attr("IFLA_MASTER"),
        tap=_tap(info.get_attr("IFLA_INFO_DATA")) if kind == "tun" else None,
        mac=message.get_attr("IFLA_ADDRESS"),
        arp=not flags & IFF_NOARP,
        lower=_lower(message) if kind in _STACKED else None,
        has_xdp=_has_xdp(message),
        arp_ignore=ipv4.get("arp_ignore", 0),
        route_localnet=ipv4.get("route_localnet", 0),
    )


def _lower(message: Decoded) -> int | None:
    # The index of a link in another network namespace may belong to a different link in this one.
    if message.get_attr("IFLA_LINK_NETNSID") is not None:
        return None
    lower: int | None = message.get_attr("IFLA_LINK")
    return lower


def _has_xdp(message: Decoded) -> bool:
    xdp = message.get_attr("IFLA_XDP")
    return xdp is not None and bool(xdp.get_attr("IFLA_XDP_ATTACHED"))


def _settings(message: Decoded) -> Mapping[str, int]:
    specifics = message.get_attr("IFLA_AF_SPEC")
    ipv4 = specifics.get_attr("AF_INET") if specifics else None
    return ipv4 or {}


def _tap(data: Decoded) -> ListedTap | None:
    if data is None or data.get_attr("IFLA_TUN_TYPE") != _TAP or not data.get_attr("IFLA_TUN_PERSIST"):
        return None
    return ListedTap(data.get_attr("IFLA_TUN_OWNER"), bool(data.get_attr("IFLA_TUN_MULTI_QUEUE")))


def _is_without_ipv6(message: Decoded) -> bool:
    specifics = message.get_attr("IFLA_AF_SPEC")
    ipv6 = specifics.get_attr("AF_INET6") if specifics else None
    return ipv6 is None or bool(ipv6.get_attr("IFLA_INET6_CONF")["disable_ipv6"])


@lru_cache(maxsize=_CACHE_SIZE)
def _address(body: bytes) -> tuple[int, str]:
    message = _decoded(ifaddrmsg, body)
    return message["index"], f"{message.get_attr('IFA_LOCAL')}/{message['prefixlen']}"


def _decoded(kind: Callable[[bytes], Decoded], body: bytes) -> Decoded:
    message = kind(framed(body))
    message.decode()
    return message
