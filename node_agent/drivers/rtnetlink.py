"""Links, addresses and routes as the kernel lists them (rtnetlink(7)), decoded by pyroute2.

A survey sees the same messages again and again, but for their counters, which nobody reads: what is as before is not
decoded anew.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from socket import AF_INET
from typing import Any, Final, NamedTuple

from pyroute2.netlink import NETLINK_ROUTE
from pyroute2.netlink.rtnl import RTM_GETADDR, RTM_GETLINK, RTM_GETROUTE
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import IFF_NOARP, IFF_UP, ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from node_agent.drivers.netlink import Refused, framed, listed, unframed, without
from node_agent.slices import HostUnreadable

_DEADLINE: Final = 5.0
_SKIP_STATS: Final = 8
"""RTEXT_FILTER_SKIP_STATS (linux/rtnetlink.h): no counters of each protocol."""
_COUNTERS: Final = frozenset({7, 23})
"""IFLA_STATS and IFLA_STATS64 (linux/if_link.h), which come all the same."""
_ATTRIBUTES: Final = 16
"""Where those of a link begin (struct ifinfomsg)."""
_MOST_KEPT: Final = 4096
_TAP: Final = 2
"""IFLA_TUN_TYPE of a tap (linux/if_tun.h, IFF_TAP)."""
_LENGTH_OF_DESTINATION: Final = itemgetter(1)
"""Of a body (rtnetlink(7), struct rtmsg); 0: anywhere."""


class ListedTap(NamedTuple):
    """What only a tap that outlives its user has."""

    owner: int | None
    many: bool


class ListedLink(NamedTuple):
    """`number` and `master` are the kernel's numbers of links; `mute`: without ARP and IPv6."""

    number: int
    name: str
    kind: str | None
    mtu: int
    up: bool
    mute: bool
    has_carrier: bool
    master: int | None
    tap: ListedTap | None


class Links(NamedTuple):
    """Those of one listing."""

    by_name: Mapping[str, ListedLink]
    by_number: Mapping[int, ListedLink]


# pyroute2 has no types: what its messages hold is looked at here and nowhere else.
Decoded = Any


def links() -> Links:
    """All of this network namespace. Raises `HostUnreadable`."""
    asked = ifinfmsg()
    asked["attrs"] = [["IFLA_EXT_MASK", _SKIP_STATS]]
    bodies = _bodies("links", RTM_GETLINK, asked)
    found = [_link(without(_COUNTERS, body, _ATTRIBUTES)) for body in bodies]
    return Links({each.name: each for each in found}, {each.number: each for each in found})


def addresses() -> Mapping[int, frozenset[str]]:
    """IPv4's of each link that has any, by its number, as `10.0.0.1/24`. Raises `HostUnreadable`."""
    asked = ifaddrmsg()
    asked["family"] = AF_INET
    found: dict[int, set[str]] = {}
    for number, address in map(_address, _bodies("addresses", RTM_GETADDR, asked)):
        found.setdefault(number, set()).add(address)
    return {number: frozenset(addresses) for number, addresses in found.items()}


def default_routes() -> frozenset[int]:
    """The links that IPv4's lead over, of any table. Raises `HostUnreadable`."""
    asked = rtmsg()
    asked["family"] = AF_INET
    bodies = _bodies("default routes", RTM_GETROUTE, asked)
    return frozenset(hop for each in bodies if _LENGTH_OF_DESTINATION(each) == 0 for hop in _hops(each))


def _bodies(question: str, kind: int, asked: Decoded) -> Iterator[bytes]:
    asked.encode()
    try:
        found = listed(NETLINK_ROUTE, kind, unframed(bytes(asked.data)), _DEADLINE)
    except (Refused, OSError) as error:
        raise HostUnreadable(f"{question}: {error}") from error
    return (body for _, body in found)


@lru_cache(maxsize=_MOST_KEPT)
def _link(body: bytes) -> ListedLink:
    message = _decoded(ifinfmsg, body)
    flags, info = message["flags"], message.get_attr("IFLA_LINKINFO")
    kind = info.get_attr("IFLA_INFO_KIND") if info else None
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
    )


def _tap(data: Decoded) -> ListedTap | None:
    if data is None or data.get_attr("IFLA_TUN_TYPE") != _TAP or not data.get_attr("IFLA_TUN_PERSIST"):
        return None
    return ListedTap(data.get_attr("IFLA_TUN_OWNER"), bool(data.get_attr("IFLA_TUN_MULTI_QUEUE")))


def _is_without_ipv6(message: Decoded) -> bool:
    specifics = message.get_attr("IFLA_AF_SPEC")
    ipv6 = specifics.get_attr("AF_INET6") if specifics else None
    return ipv6 is None or bool(ipv6.get_attr("IFLA_INET6_CONF")["disable_ipv6"])


@lru_cache(maxsize=_MOST_KEPT)
def _address(body: bytes) -> tuple[int, str]:
    message = _decoded(ifaddrmsg, body)
    return message["index"], f"{message.get_attr('IFA_LOCAL')}/{message['prefixlen']}"


@lru_cache(maxsize=_MOST_KEPT)
def _hops(body: bytes) -> tuple[int, ...]:
    """The links of a route: those of all its hops, where it has several (rtnetlink(7), RTA_MULTIPATH)."""
    message = _decoded(rtmsg, body)
    several = message.get_attr("RTA_MULTIPATH")
    if several:
        return tuple(hop["oif"] for hop in several)
    # One that says that there is no way leads over none.
    link = message.get_attr("RTA_OIF")
    return (link,) if link else ()


def _decoded(kind: Callable[[bytes], Decoded], body: bytes) -> Decoded:
    message = kind(framed(body))
    message.decode()
    return message
