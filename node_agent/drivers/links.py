"""Links, addresses and routes over netlink (pyroute2), and the kernel's forwarding switch.

One socket for changes, kept open, used by one thread at a time. Every message is answered by the kernel at once; a
socket that fails is thrown away, and the next change opens another, in the network namespace of whoever asks.
"""

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import AF_INET
from typing import Any, Final

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.ifinfmsg import IFF_NOARP, IFF_UP

from events.values import Ipv4Address, MacAddress
from node_agent.drivers import queueing, routing, rtnetlink
from node_agent.drivers.alterations import Declared, alterations, queueing_words, remove
from node_agent.drivers.routing import ListedRoute
from node_agent.drivers.rtnetlink import Links, ListedLink, ListedTap
from node_agent.gateway import GatewayLink, Uplink
from node_agent.links import Alterations, OtherLink, Representor, Tap, own_mac
from node_agent.looks import look, look_again
from node_agent.routing import ANYWHERE
from node_agent.slices import HostRefused, HostUnreadable

ALL: Final = "all"
"""The host as a whole: `net.ipv4.ip_forward` by its other name (ip-sysctl)."""
SWITCH: Final = "openvswitch"
"""IFLA_INFO_KIND of the switch's own datapath in the kernel (net/openvswitch), the master of all its ports."""


class NetlinkLinks:
    """`offloads`: whether Open vSwitch keeps filters of its own on links, to offload its flows (`hw-offload`)."""

    def __init__(self, offloads: Callable[[], bool] = lambda: False) -> None:
        self._offloads = offloads
        self._turn = threading.Lock()
        self._socket: IPRoute | None = None

    def close(self) -> None:
        with self._turn:
            if self._socket is not None:
                self._socket.close()
            self._socket = None

    def link(self, name: str) -> Tap | OtherLink | None:
        links = self._links()
        found = links.by_name.get(name)
        if found is None:
            return None
        if found.tap is None:
            return OtherLink(found.name, found.kind or "unnamed")
        alterations = self._alterations(found, self._declared_tap(name))
        return _tap(found, found.tap, links, alterations)

    def is_carried(self, name: str) -> bool:
        found = self._links().by_name.get(name)
        return found is not None and found.has_carrier

    def add_tap(self, tap: Tap) -> None:
        def add(netlink: IPRoute) -> None:
            netlink.link("add", ifname=tap.name, kind="tuntap", mode="tap", uid=tap.owner, ifr=_flags(tap))
            self._set(netlink, _index(netlink, tap.name), tap, self._declared_tap(tap.name))

        if self.link(tap.name) is not None:
            raise HostRefused(f"add tap {tap.name}: a link of that name exists")
        self.change(f"add tap {tap.name}", add)

    def set_tap(self, tap: Tap) -> None:
        def change(netlink: IPRoute) -> None:
            self._set(netlink, _index(netlink, tap.name), tap, self._declared_tap(tap.name))

        self.change(f"set tap {tap.name}", change)

    def delete_link(self, name: str) -> None:
        def delete(netlink: IPRoute) -> None:
            for index in netlink.link_lookup(ifname=name):
                netlink.link("del", index=index)

        self.change(f"delete link {name}", delete)

    def representor(self, number: int) -> Representor | None:
        links = self._links()
        found = links.by_number.get(number)
        if found is None:
            return None
        alterations = self._alterations(found, self._declared_representor())
        return Representor(found.name, found.mtu, found.up, found.mute, _master(found, links), alterations)

    def set_representor(self, number: int, to: Representor) -> None:
        def change(netlink: IPRoute) -> None:
            if _existing(number, rtnetlink.links()).name != to.name:
                # Older kernels (before 6.2) name no link anew that is up.
                netlink.link("set", index=number, state="down")
                netlink.link("set", index=number, ifname=to.name)
            self._set(netlink, number, to, self._declared_representor())

        self.change(f"set link {number} as {to.name}", change)

    def index(self, name: str) -> int | None:
        """The kernel's number of a link; another one means another device, even under the same name."""
        try:
            return socket.if_nametoindex(name)
        except OSError:
            return None

    def gateway_link(self, name: str) -> GatewayLink | None:
        found = self._links().by_name.get(name)
        if found is None:
            return None
        addresses = self._addresses(found.number)
        alterations = self._alterations(found, self._declared_bridge(addresses))
        return GatewayLink(
            addresses,
            found.up,
            MacAddress(found.mac) if found.mac else None,
            found.mtu,
            found.arp,
            alterations,
        )

    def set_gateway_link(self, name: str, link: GatewayLink) -> None:
        def change(netlink: IPRoute) -> None:
            index = _index(netlink, name)
            found = rtnetlink.addresses().get(index, frozenset())
            for address in found - link.addresses:
                netlink.addr("del", index=index, family=AF_INET, **_words(address))
            for address in link.addresses - found:
                netlink.addr("add", index=index, family=AF_INET, **_words(address))
            self._remove_alterations(netlink, index, self._declared_bridge(link.addresses))
            its = {"mtu": link.mtu, "address": link.mac}
            netlink.link(
                "set",
                index=index,
                flags=(IFF_UP if link.up else 0) | (0 if link.arp else IFF_NOARP),
                change=IFF_UP | IFF_NOARP,
                **{key: value for key, value in its.items() if value is not None},
            )

        self.change(f"set link {name}", change)

    def addresses(self, name: str) -> tuple[Ipv4Address, ...]:
        link = self._links().by_name.get(name)
        found = self._addresses(link.number) if link is not None else ()
        return tuple(sorted(Ipv4Address(each.partition("/")[0]) for each in found))

    def default_route_links(self) -> frozenset[str]:
        links = self._links().by_number
        hops = {link for each in self.routes() if each.route.to == ANYWHERE for link in each.links}
        return frozenset(links[each].name for each in hops if each in links and links[each].has_carrier)

    def uplink(self, name: str) -> Uplink | None:
        links = self._links()
        found = links.by_name.get(name)
        if found is None:
            return None
        return Uplink(
            found.mac, found.mtu, found.arp, frozenset(queueing_words(found, links, self._offloads))
        )

    def upper_links(self, name: str) -> tuple[str, ...]:
        links = self._links()
        found = links.by_name.get(name)
        return (
            tuple(f"{each.kind} link {each.name}" for each in links.upper.get(found.number, ()))
            if found
            else ()
        )

    def routes(self) -> tuple[ListedRoute, ...]:
        """Return the routes of this look. Raises `HostUnreadable`."""
        return look((routing, "routes"), routing.routes)

    def names(self) -> Mapping[int, str]:
        """Return the names of links by the kernel's numbers. Raises `HostUnreadable`."""
        return {number: each.name for number, each in self._links().by_number.items()}

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

    def _links(self) -> Links:
        return look((self, "links"), rtnetlink.links)

    def _addresses(self, number: int) -> frozenset[str]:
        return look((self, "addresses"), rtnetlink.addresses).get(number, frozenset())

    def _declared_tap(self, name: str) -> Declared:
        return Declared(own_mac(name), offloads=self._offloads)

    def _declared_representor(self) -> Declared:
        # Its MAC is its card's.
        return Declared(mac=None, offloads=self._offloads)

    def _declared_bridge(self, addresses: frozenset[str]) -> Declared:
        # Links that are stacked on it belong to others, and get none of the frames between a slice and its gateway.
        return Declared(mac=None, addresses=addresses, stacked=True, offloads=self._offloads)

    def _alterations(self, link: ListedLink, declared: Declared) -> Alterations:
        return alterations(link, self._links(), self._addresses(link.number), declared)

    def _set(self, netlink: IPRoute, index: int, link: Tap | Representor, declared: Declared) -> None:
        _free(netlink, index)
        self._remove_alterations(netlink, index, declared)
        for address in rtnetlink.addresses().get(index, frozenset()):
            netlink.addr("del", index=index, family=AF_INET, **_words(address))
        # Before it is up, or the kernel would already have sent IPv6 packets.
        _set_ipv6(link.name, disabled=link.mute)
        netlink.link(
            "set",
            index=index,
            mtu=link.mtu,
            flags=(IFF_UP if link.up else 0) | (IFF_NOARP if link.mute else 0),
            change=IFF_UP | IFF_NOARP,
        )

    def _remove_alterations(self, netlink: IPRoute, index: int, declared: Declared) -> None:
        links = rtnetlink.links()
        remove(netlink, _existing(index, links), links, declared)
        # What is found among disciplines was read within this look.
        look_again(queueing)

    def change(self, what: str, change: Callable[[IPRoute], None]) -> None:
        """Change the host; what a look has read of it is read again. Raises `HostRefused`, `HostUnreadable`."""
        # A change of a link is one of its routes and disciplines too.
        for driver in (self, queueing, routing):
            look_again(driver)
        try:
            self.ask(change)
        except NetlinkError as error:
            raise HostRefused(f"{what}: {error}") from error
        except OSError as error:
            raise HostUnreadable(f"{what}: {error}") from error

    def ask(self, question: Callable[[IPRoute], object]) -> None:
        """Raises `NetlinkError`, `OSError`."""
        with self._netlink() as netlink:
            question(netlink)

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


def _existing(number: int, among: Links) -> ListedLink:
    found = among.by_number.get(number)
    if found is None:
        raise HostRefused(f"no link {number}")
    return found


def _free(netlink: IPRoute, index: int) -> None:
    """Take it from its master, or the master would have its first frames."""
    links = rtnetlink.links()
    if _master(_existing(index, links), links) is not None:
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


def _tap(link: ListedLink, tap: ListedTap, others: Links, alterations: Alterations) -> Tap:
    master = _master(link, others)
    return Tap(link.name, link.mtu, link.up, tap.owner, link.mute, tap.many, master, alterations)


def _master(link: ListedLink, others: Links) -> str | None:
    if link.master is None:
        return None
    master = others.by_number.get(link.master)
    if master is None:
        # One of another listing: it came, or went, in between.
        return f"link {link.master}"
    return None if master.kind == SWITCH else master.name


def _words(cidr: str) -> dict[str, Any]:
    interface = ipaddress.IPv4Interface(cidr)
    broadcast = str(interface.network.broadcast_address)
    return {"address": str(interface.ip), "prefixlen": interface.network.prefixlen, "broadcast": broadcast}
