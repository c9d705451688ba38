"""Links, addresses and routes over netlink (pyroute2), and the kernel's forwarding switch.

One socket, kept open, used by one thread at a time. Every message is answered by the kernel at once; a socket that
fails is thrown away, and the next question opens another, in the network namespace of whoever asks.
"""

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import AF_INET
from typing import Any, Final, NamedTuple, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.ifinfmsg import IFF_NOARP, IFF_UP

from events.values import Ipv4Address
from node_agent.gateway import GatewayLink
from node_agent.links import OtherLink, Representor, Tap
from node_agent.looks import look, look_again
from node_agent.slices import HostRefused, HostUnreadable

ALL: Final = "all"
"""The host as a whole: `net.ipv4.ip_forward` by its other name (ip-sysctl)."""
TAP: Final = 2
"""IFLA_TUN_TYPE of a tap (linux/if_tun.h, IFF_TAP)."""
SWITCH: Final = "openvswitch"
"""IFLA_INFO_KIND of the switch's own datapath in the kernel (net/openvswitch), the master of all its ports."""

T = TypeVar("T")


class _Found(NamedTuple):
    """A link, by the kernel's number of it; `bare` is it as a representor is seen."""

    link: Tap | OtherLink
    bare: Representor
    number: int
    has_carrier: bool


class NetlinkLinks:
    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._socket: IPRoute | None = None

    def close(self) -> None:
        with self._turn:
            if self._socket is not None:
                self._socket.close()
            self._socket = None

    def look_ahead(self) -> None:
        """Decode the links now: it takes as long as the programs that were begun before need to start."""
        with suppress(HostUnreadable):
            self._links()

    def link(self, name: str) -> Tap | OtherLink | None:
        found = self._links().get(name)
        return found.link if found else None

    def is_carried(self, name: str) -> bool:
        found = self._links().get(name)
        return found is not None and found.has_carrier

    def add_tap(self, tap: Tap) -> None:
        def add(netlink: IPRoute) -> None:
            netlink.link("add", ifname=tap.name, kind="tuntap", mode="tap", uid=tap.owner, ifr=_flags(tap))
            _set(netlink, _index(netlink, tap.name), tap)

        if self.link(tap.name) is not None:
            raise HostRefused(f"add tap {tap.name}: a link of that name exists")
        self._change(f"add tap {tap.name}", add)

    def set_tap(self, tap: Tap) -> None:
        self._change(f"set tap {tap.name}", lambda netlink: _set(netlink, _index(netlink, tap.name), tap))

    def delete_link(self, name: str) -> None:
        def delete(netlink: IPRoute) -> None:
            for index in netlink.link_lookup(ifname=name):
                netlink.link("del", index=index)

        self._change(f"delete link {name}", delete)

    def representor(self, number: int) -> Representor | None:
        return next((each.bare for each in self._links().values() if each.number == number), None)

    def set_representor(self, number: int, to: Representor) -> None:
        def change(netlink: IPRoute) -> None:
            (found,) = netlink.get_links(number)
            if found.get_attr("IFLA_IFNAME") != to.name:
                # Older kernels (before 6.2) name no link anew that is up.
                netlink.link("set", index=number, state="down")
                netlink.link("set", index=number, ifname=to.name)
            _set(netlink, number, to)

        self._change(f"set link {number} as {to.name}", change)

    def index(self, name: str) -> int | None:
        """The kernel's number of a link; another one means another device, even under the same name."""
        try:
            return socket.if_nametoindex(name)
        except OSError:
            return None

    def gateway_link(self, name: str) -> GatewayLink | None:
        found = self._links().get(name)
        if found is None:
            return None
        return GatewayLink(self._addresses().get(found.number, frozenset()), up=found.bare.up)

    def set_gateway_link(self, name: str, link: GatewayLink) -> None:
        def change(netlink: IPRoute) -> None:
            index = _index(netlink, name)
            found = {_cidr(message) for message in netlink.get_addr(family=AF_INET, index=index)}
            for address in found - link.addresses:
                netlink.addr("del", index=index, family=AF_INET, **_words(address))
            for address in link.addresses - found:
                netlink.addr("add", index=index, family=AF_INET, **_words(address))
            netlink.link("set", index=index, state="up" if link.up else "down")

        self._change(f"set addresses of {name}", change)

    def addresses(self, name: str) -> tuple[Ipv4Address, ...]:
        link = self.gateway_link(name)
        return tuple(sorted(Ipv4Address(a.partition("/")[0]) for a in link.addresses)) if link else ()

    def default_route_links(self) -> frozenset[str]:
        def read(netlink: IPRoute) -> frozenset[int]:
            return frozenset(
                hop for each in netlink.get_default_routes(family=AF_INET) for hop in _hops(each)
            )

        routes = self._look("default routes", read)
        links = self._links().items()
        return frozenset(name for name, found in links if found.number in routes and found.has_carrier)

    def not_forwarding(self, *names: str) -> tuple[str, ...]:
        return tuple(name for name in (ALL, *names) if _forwards(name) is False)

    def set_forwarding(self, *names: str) -> None:
        # In this order: a change for all is one for each.
        for name in (ALL, *names):
            try:
                if _forwards(name) is False:
                    _forwarding(name).write_text("1\n")
            except OSError as error:
                raise HostRefused(f"write {_forwarding(name)}: {error}") from error

    def _links(self) -> dict[str, _Found]:
        # Decoding a link costs more than all that is done with it, so it is decoded once.
        def read(netlink: IPRoute) -> dict[str, _Found]:
            messages = tuple(netlink.get_links())
            others = {each["index"]: each for each in messages}
            return {found.link.name: found for found in (_found(each, others) for each in messages)}

        return self._look("links", read)

    def _addresses(self) -> dict[int, frozenset[str]]:
        def read(netlink: IPRoute) -> dict[int, frozenset[str]]:
            found: dict[int, set[str]] = {}
            for message in netlink.get_addr(family=AF_INET):
                found.setdefault(message["index"], set()).add(_cidr(message))
            return {index: frozenset(addresses) for index, addresses in found.items()}

        return self._look("addresses", read)

    def _look(self, question: str, read: Callable[[IPRoute], T]) -> T:
        return look((self, question), lambda: self._read(question, read))

    def _read(self, question: str, read: Callable[[IPRoute], T]) -> T:
        try:
            with self._netlink() as netlink:
                return read(netlink)
        except (NetlinkError, OSError) as error:
            raise HostUnreadable(f"{question}: {error}") from error

    def _change(self, what: str, change: Callable[[IPRoute], None]) -> None:
        look_again(self)
        try:
            with self._netlink() as netlink:
                change(netlink)
        except NetlinkError as error:
            raise HostRefused(f"{what}: {error}") from error
        except OSError as error:
            raise HostUnreadable(f"{what}: {error}") from error

    @contextmanager
    def _netlink(self) -> Iterator[IPRoute]:
        with self._turn:
            if self._socket is None:
                self._socket = IPRoute()
            try:
                yield self._socket
            except NetlinkError:
                raise
            except OSError:
                # The socket itself failed: what it would say next belongs to another question.
                self._socket.close()
                self._socket = None
                raise


def _forwarding(name: str) -> Path:
    return Path("/proc/sys/net/ipv4/conf", name, "forwarding")


def _forwards(name: str) -> bool | None:
    """None: there is no such link."""
    try:
        return _forwarding(name).read_text().strip() == "1"
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HostUnreadable(f"read {_forwarding(name)}: {error}") from error


def _index(netlink: IPRoute, name: str) -> int:
    found: list[int] = netlink.link_lookup(ifname=name)
    if not found:
        raise HostRefused(f"no link {name}")
    return found[0]


def _set(netlink: IPRoute, index: int, link: Tap | Representor) -> None:
    _free(netlink, index)
    # Before it is up, or IPv6 would already have spoken.
    _set_ipv6(link.name, disabled=link.mute)
    netlink.link(
        "set",
        index=index,
        mtu=link.mtu,
        flags=(IFF_UP if link.up else 0) | (IFF_NOARP if link.mute else 0),
        change=IFF_UP | IFF_NOARP,
    )


def _free(netlink: IPRoute, index: int) -> None:
    """Take it from its master, or the master would have its first frames."""
    (own,) = netlink.get_links(index)
    if (master := own.get_attr("IFLA_MASTER")) and _kind(*netlink.get_links(master)) != SWITCH:
        netlink.link("set", index=index, master=0)


def _flags(tap: Tap) -> dict[str, int]:
    names = ("no_pi", "one_queue", "vnet_hdr", "tun_excl", "multi_queue", "persist", "nofilter")
    return {**dict.fromkeys(names, 0), "multi_queue": int(tap.many)}


def _set_ipv6(name: str, *, disabled: bool) -> None:
    switch = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
    try:
        # Without the file the kernel has no IPv6 at all.
        with suppress(FileNotFoundError):
            switch.write_text(f"{disabled:d}\n")
    except OSError as error:
        raise HostRefused(f"write {switch}: {error}") from error


# pyroute2 has no types: what its messages hold is looked at here and nowhere else.
def _found(message: Any, others: Mapping[int, Any]) -> _Found:
    flags = message["flags"]
    mute = bool(flags & IFF_NOARP) and _is_without_ipv6(message)
    name, mtu = message.get_attr("IFLA_IFNAME"), message.get_attr("IFLA_MTU")
    bare = Representor(name, mtu, bool(flags & IFF_UP), mute, _master(message, others))
    return _Found(_link(message, bare), bare, message["index"], bool(message.get_attr("IFLA_CARRIER")))


def _master(message: Any, others: Mapping[int, Any]) -> str | None:
    number = message.get_attr("IFLA_MASTER")
    master = others.get(number)
    if number is None or (master and _kind(master) == SWITCH):
        return None
    # One of another listing: it came, or went, in between.
    return str(master.get_attr("IFLA_IFNAME")) if master else f"link {number}"


def _kind(message: Any) -> str | None:
    info = message.get_attr("IFLA_LINKINFO")
    return info.get_attr("IFLA_INFO_KIND") if info else None


def _link(message: Any, bare: Representor) -> Tap | OtherLink:
    info, kind = message.get_attr("IFLA_LINKINFO"), _kind(message)
    data = info.get_attr("IFLA_INFO_DATA") if kind == "tun" else None
    if data is None or data.get_attr("IFLA_TUN_TYPE") != TAP or not data.get_attr("IFLA_TUN_PERSIST"):
        return OtherLink(bare.name, kind or "unnamed")
    owner = data.get_attr("IFLA_TUN_OWNER")
    many = bool(data.get_attr("IFLA_TUN_MULTI_QUEUE"))
    return Tap(bare.name, bare.mtu, bare.up, owner, bare.mute, many, bare.master)


def _is_without_ipv6(message: Any) -> bool:
    specifics = message.get_attr("IFLA_AF_SPEC")
    ipv6 = specifics.get_attr("AF_INET6") if specifics else None
    return ipv6 is None or bool(ipv6.get_attr("IFLA_INET6_CONF")["disable_ipv6"])


def _hops(route: Any) -> list[int]:
    """The links of a route: those of all its hops, where it has several (rtnetlink(7), RTA_MULTIPATH)."""
    several = route.get_attr("RTA_MULTIPATH")
    return [hop["oif"] for hop in several] if several else [route.get("oif")]


def _cidr(message: Any) -> str:
    return f"{message.get_attr('IFA_LOCAL')}/{message['prefixlen']}"


def _words(cidr: str) -> dict[str, Any]:
    interface = ipaddress.IPv4Interface(cidr)
    broadcast = str(interface.network.broadcast_address)
    return {"address": str(interface.ip), "prefixlen": interface.network.prefixlen, "broadcast": broadcast}
