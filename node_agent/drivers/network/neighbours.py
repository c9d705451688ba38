"""The kernel's route and ARP entry for an address (rtnetlink(7))."""

import socket
import struct
import sys
from errno import ENOENT
from typing import Final

from events.values import Ipv4Address, MacAddress
from node_agent.drivers.network.netlink import Netlink, Refused, attribute, attributes, connected
from node_agent.host.reachability import HostView, Neighbour

_DEADLINE: Final = 1.0
_NETLINK_ROUTE: Final = 0
_NEW_NEIGHBOUR, _GET_NEIGHBOUR = 28, 30
_NEW_ROUTE, _GET_ROUTE = 24, 26
_NEIGHBOUR: Final = struct.Struct("=BBHiHBB")
"""Layout of struct ndmsg: family, padding, link, state, flags, type."""
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
"""Layout of struct rtmsg: family, lengths of destination and source, TOS, table, protocol, scope, type, flags."""
_TO, _MAC = 1, 2
_DESTINATION, _SOURCE, _LINK = 1, 2, 4
_REPLACE: Final = 0x100
_STALE, _DELAY, _PROBE, _REACHABLE = 0x04, 0x08, 0x10, 0x02
_CACHED: Final = _REACHABLE | _STALE | _DELAY
"""States of a neighbour (ARP) entry that the kernel learned and may not have verified recently."""
_VALID: Final = _CACHED | _PROBE | 0x40 | 0x80
"""States in which the kernel uses the entry's MAC address, including NUD_NOARP and NUD_PERMANENT
(linux/neighbour.h)."""


def view_of(ip: Ipv4Address, source: Ipv4Address, bridge: str) -> HostView:
    """Return the route and the neighbour entry that the host uses to send from `source` to `ip`. Raises `OSError`."""
    with connected(_NETLINK_ROUTE, _DEADLINE) as netlink:
        try:
            link = _route(netlink, ip, source)
        except Refused as refused:
            return HostView(None, str(refused))
        return HostView(link, neighbour=_neighbour(netlink, ip, socket.if_nametoindex(bridge)))


def check_neighbour(ip: Ipv4Address, mac: MacAddress, bridge: str) -> None:
    """Make the kernel verify `ip` by ARP if its neighbour entry has this MAC address and may be stale.

    Raises `OSError`.
    """
    number, own = socket.if_nametoindex(bridge), bytes.fromhex(mac.replace(":", ""))
    with connected(_NETLINK_ROUTE, _DEADLINE) as netlink:
        if _found(netlink, ip, number) not in {(state, own) for state in (_REACHABLE, _STALE, _DELAY)}:
            return
        entry = _NEIGHBOUR.pack(socket.AF_INET, 0, 0, number, _PROBE, 0, 0)
        body = entry + attribute(_TO, socket.inet_aton(ip)) + attribute(_MAC, own)
        try:
            netlink.execute(_NEW_NEIGHBOUR, body, ignored_error=ENOENT, flags=_REPLACE)
        except Refused as refused:
            raise OSError(str(refused)) from refused


def _route(netlink: Netlink, ip: Ipv4Address, source: Ipv4Address) -> str | None:
    """Return the name of the link over which packets to `ip` leave; None if the route has no link. Raises `Refused`."""
    header = _ROUTE.pack(socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, 0)
    ends = attribute(_DESTINATION, socket.inet_aton(ip)) + attribute(_SOURCE, socket.inet_aton(source))
    for kind, body in netlink.get(_GET_ROUTE, header + ends):
        link = attributes(body[_ROUTE.size :]).get(_LINK)
        if kind == _NEW_ROUTE and link is not None:
            return socket.if_indextoname(int.from_bytes(link, sys.byteorder))
    return None


def _neighbour(netlink: Netlink, ip: Ipv4Address, number: int) -> Neighbour:
    state, mac = _found(netlink, ip, number)
    return Neighbour(MacAddress(mac.hex(":")) if state & _VALID and mac else None)


def _found(netlink: Netlink, ip: Ipv4Address, number: int) -> tuple[int, bytes]:
    """Return the state and the MAC address of the neighbour entry for `ip` on the link with the interface index
    `number`; 0 and empty bytes if there is no entry.
    """
    request = _NEIGHBOUR.pack(socket.AF_INET, 0, 0, number, 0, 0, 0)
    for kind, body in netlink.listed(_GET_NEIGHBOUR, request):
        if (entry := _entry(kind, body, number)) is not None and entry[0] == ip:
            return entry[1:]
    return 0, b""


def _entry(kind: int, body: bytes, number: int) -> tuple[Ipv4Address, int, bytes] | None:
    _, _, _, link, state, _, _ = _NEIGHBOUR.unpack_from(body)
    found = attributes(body[_NEIGHBOUR.size :])
    if kind != _NEW_NEIGHBOUR or link != number or _TO not in found:
        return None
    return Ipv4Address(socket.inet_ntoa(found[_TO])), state, found.get(_MAC, b"")
