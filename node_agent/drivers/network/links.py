"""Links, addresses and routes over netlink (pyroute2), and the kernel's forwarding setting.

Changes use one socket, which stays open and is used by one thread at a time. They have no deadline, because the kernel
answers each message at once. A socket that fails is closed, and the next change opens another one in the network
namespace of its calling thread.
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
from node_agent.aspects.gateway import GatewayLink, Uplink
from node_agent.aspects.links import Alterations, OtherLink, Representor, Tap, own_mac
from node_agent.drivers.network import queueing, routing, rtnetlink
from node_agent.drivers.network.alterations import Declared, alterations, describe_queueing, remove
from node_agent.drivers.network.routing import ListedRoute
from node_agent.drivers.network.rtnetlink import Links, ListedLink, ListedTap
from node_agent.host.slices import HostRefused, HostUnreadable
from node_agent.host.snapshots import invalidate_reads, look
from node_agent.packets.routing import ANYWHERE

ALL: Final = "all"
"""Name in the kernel's configuration folders that stands for the whole host instead of one link: `conf/all/forwarding`
equals `net.ipv4.ip_forward` (ip-sysctl)."""
SWITCH: Final = "openvswitch"
"""Kind (IFLA_INFO_KIND) of the link of Open vSwitch's kernel datapath (net/openvswitch), which is the master of all its
ports.
"""


class NetlinkLinks:
    """Links, addresses and forwarding settings of the host.

    `offloads` returns whether Open vSwitch installs filters on links to offload its flows (`hw-offload`).
    """

    def __init__(self, offloads: Callable[[], bool] = lambda: False) -> None:
        self._offloads = offloads
        self._lock = threading.Lock()
        self._socket: IPRoute | None = None

    def close(self) -> None:
        with self._lock:
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

    def is_in_use(self, name: str) -> bool:
        found = self._links().by_name.get(name)
        return found is not None and found.has_carrier

    def add_tap(self, tap: Tap) -> None:
        def add(netlink: IPRoute) -> None:
            netlink.link("add", ifname=tap.name, kind="tuntap", mode="tap", uid=tap.owner, ifr=_flags(tap))
            self._set(netlink, _index(netlink, tap.name), tap, self._declared_tap(tap.name))

        if self.link(tap.name) is not None:
            raise HostRefused(f"cannot add tap {tap.name}: a link with that name exists")
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
                # Kernels before 6.2 do not rename a link that is up.
                netlink.link("set", index=number, state="down")
                netlink.link("set", index=number, ifname=to.name)
            self._set(netlink, number, to, self._declared_representor())

        self.change(f"rename link {number} to {to.name} and configure it", change)

    def index(self, name: str) -> int | None:
        """Return the interface index of a link.

        A different index means a different device, even under the same name.
        """
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
                netlink.addr("del", index=index, family=AF_INET, **_address_fields(address))
            for address in link.addresses - found:
                netlink.addr("add", index=index, family=AF_INET, **_address_fields(address))
            self._remove_alterations(netlink, index, self._declared_bridge(link.addresses))
            settings = {"mtu": link.mtu, "address": link.mac}
            netlink.link(
                "set",
                index=index,
                flags=(IFF_UP if link.up else 0) | (0 if link.arp else IFF_NOARP),
                change=IFF_UP | IFF_NOARP,
                **{key: value for key, value in settings.items() if value is not None},
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
            found.mac, found.mtu, found.arp, frozenset(describe_queueing(found, links, self._offloads))
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
        """Return the routes of the host, read once per snapshot. Raises `HostUnreadable`."""
        return look((routing, "routes"), routing.routes)

    def names(self) -> Mapping[int, str]:
        """Return the names of the host's links, by interface index. Raises `HostUnreadable`."""
        return {number: each.name for number, each in self._links().by_number.items()}

    def not_forwarding(self, *names: str) -> tuple[str, ...]:
        return tuple(name for name in (ALL, *names) if _forwards(name) is False)

    def set_forwarding(self, *names: str) -> None:
        # The setting for all must come first, because it overwrites the setting of each link.
        for name in (ALL, *names):
            try:
                if _forwards(name) is False:
                    _forwarding(name).write_text("1\n")
            except OSError as error:
                raise HostRefused(f"cannot write the kernel setting {_forwarding(name)}: {error}") from error

    def _links(self) -> Links:
        return look((self, "links"), rtnetlink.links)

    def _addresses(self, number: int) -> frozenset[str]:
        return look((self, "addresses"), rtnetlink.addresses).get(number, frozenset())

    def _declared_tap(self, name: str) -> Declared:
        return Declared(own_mac(name), offloads=self._offloads)

    def _declared_representor(self) -> Declared:
        # A representor has the MAC address of its card.
        return Declared(mac=None, offloads=self._offloads)

    def _declared_bridge(self, addresses: frozenset[str]) -> Declared:
        # Links stacked on the bridge belong to other programs. They receive no frames between a slice and its
        # gateway.
        return Declared(mac=None, addresses=addresses, stacked=True, offloads=self._offloads)

    def _alterations(self, link: ListedLink, declared: Declared) -> Alterations:
        return alterations(link, self._links(), self._addresses(link.number), declared)

    def _set(self, netlink: IPRoute, index: int, link: Tap | Representor, declared: Declared) -> None:
        _detach_from_master(netlink, index)
        self._remove_alterations(netlink, index, declared)
        for address in rtnetlink.addresses().get(index, frozenset()):
            netlink.addr("del", index=index, family=AF_INET, **_address_fields(address))
        # Must precede setting the link up, or the kernel would already send IPv6 packets.
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
        # The disciplines were read within the current snapshot and are outdated now.
        invalidate_reads(queueing)

    def change(self, operation: str, change: Callable[[IPRoute], None]) -> None:
        """Call `change` to change the host's links or routes, and invalidate the results about them in the current
        snapshot.

        Raises `HostRefused`, `HostUnreadable`.
        """
        # A change of a link may also change its routes and disciplines.
        for driver in (self, queueing, routing):
            invalidate_reads(driver)
        try:
            self.request(change)
        except NetlinkError as error:
            raise HostRefused(f"cannot {operation}: {error}") from error
        except OSError as error:
            raise HostUnreadable(f"cannot {operation}: {error}") from error

    def request(self, call: Callable[[IPRoute], object]) -> None:
        """Call `call` with the shared netlink socket. Raises `NetlinkError`, `OSError`."""
        with self._netlink() as netlink:
            call(netlink)

    @contextmanager
    def _netlink(self) -> Iterator[IPRoute]:
        with self._lock:
            if self._socket is None:
                self._socket = IPRoute()
            try:
                yield self._socket
            except NetlinkError:
                raise
            except OSError:
                # The socket itself failed, and its next message may belong to an earlier request.
                self._socket.close()
                self._socket = None
                raise


def _forwarding(name: str) -> Path:
    return Path("/proc/sys/net/ipv4/conf", name, "forwarding")


def _forwards(name: str) -> bool | None:
    """Return whether forwarding is enabled for a link, or None if the link does not exist."""
    try:
        return _forwarding(name).read_text().strip() == "1"
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HostUnreadable(f"cannot read the kernel setting {_forwarding(name)}: {error}") from error


def _index(netlink: IPRoute, name: str) -> int:
    found: list[int] = netlink.link_lookup(ifname=name)
    if not found:
        raise HostRefused(f"link {name} does not exist")
    return found[0]


def _existing(number: int, links: Links) -> ListedLink:
    found = links.by_number.get(number)
    if found is None:
        raise HostRefused(f"link with index {number} does not exist")
    return found


def _detach_from_master(netlink: IPRoute, index: int) -> None:
    """Detach a link from its master, because the master would receive the first frames of the link."""
    links = rtnetlink.links()
    if _master(_existing(index, links), links) is not None:
        netlink.link("set", index=index, master=0)


def _flags(tap: Tap) -> dict[str, int]:
    names = ("no_pi", "one_queue", "vnet_hdr", "tun_excl", "multi_queue", "persist", "nofilter")
    return {**dict.fromkeys(names, 0), "multi_queue": int(tap.many)}


def _set_ipv6(name: str, *, disabled: bool) -> None:
    switch = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
    try:
        # The file is missing if the kernel has no IPv6.
        with suppress(FileNotFoundError):
            switch.write_text(f"{disabled:d}\n")
    except OSError as error:
        raise HostRefused(f"cannot write the kernel setting {switch}: {error}") from error


def _tap(link: ListedLink, tap: ListedTap, links: Links, alterations: Alterations) -> Tap:
    master = _master(link, links)
    return Tap(link.name, link.mtu, link.up, tap.owner, link.mute, tap.many, master, alterations)


def _master(link: ListedLink, links: Links) -> str | None:
    if link.master is None:
        return None
    master = links.by_number.get(link.master)
    if master is None:
        # The master was created or deleted between two listings.
        return f"link {link.master}"
    return None if master.kind == SWITCH else master.name


def _address_fields(cidr: str) -> dict[str, Any]:
    interface = ipaddress.IPv4Interface(cidr)
    broadcast = str(interface.network.broadcast_address)
    return {"address": str(interface.ip), "prefixlen": interface.network.prefixlen, "broadcast": broadcast}
