"""Alterations of the agent's links by other programs: find, describe and remove them.

The kernel's default queueing discipline (handle 0) and the filters that Open vSwitch installs to offload its flows are
not alterations. Flags that do not affect a slice's frames (promiscuous, all-multicast) are not compared; Open vSwitch
sets some of these flags itself. Two settings are compared, because they interrupt or expose a slice's traffic:
`arp_ignore` 8 makes the gateway ignore ARP requests, and `route_localnet` makes the host's loopback addresses reachable
over the link.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from node_agent.aspects.links import Alterations
from node_agent.drivers.network import queueing
from node_agent.drivers.network.queueing import HOOKS, ROOT, Filter, Qdisc
from node_agent.drivers.network.rtnetlink import Links, ListedLink
from node_agent.host.slices import HostRefused
from node_agent.host.snapshots import look

_NO_REPLIES: Final = 8
"""Value of `arp_ignore` with which the kernel answers no ARP request (ip-sysctl)."""
_DISCIPLINES: Final = "queueing disciplines"
_FAIR: Final = frozenset({"fifo", "pfifo", "pfifo_fast", "fq", "fq_codel", "mq", "mqprio", "noqueue"})
"""Queueing disciplines that do not limit a rate and that distributions and drivers set by default."""
_NO_XDP: Final = {"IFLA_XDP": {"attrs": [["IFLA_XDP_FD", -1]]}}
# pyroute2 has no type annotations.
Netlink = Any


@dataclass(frozen=True, slots=True)
class Declared:
    """Settings that a link of the agent should have.

    Any MAC address is accepted if `mac` is None. Other links may be stacked on the link if `stacked` is true.
    """

    mac: str | None
    addresses: frozenset[str] = frozenset()
    stacked: bool = False
    offloads: Callable[[], bool] = lambda: False
    """Return whether Open vSwitch installs filters at the link's hooks. Called only if the link has such filters."""


def alterations(link: ListedLink, links: Links, addresses: frozenset[str], declared: Declared) -> Alterations:
    """Return the differences between a link and its declared settings. Raises `HostUnreadable`."""
    qdiscs = foreign_qdiscs(link, declared.offloads)
    return Alterations(
        frozenset(_diversions(link, links, qdiscs, stacked=declared.stacked)),
        frozenset(_changes(link, addresses, qdiscs, declared)),
    )


def foreign_qdiscs(link: ListedLink, offloads: Callable[[], bool]) -> tuple[Qdisc, ...]:
    """Return the queueing disciplines of a link that other programs set. Raises `HostUnreadable`."""
    found = look((queueing, _DISCIPLINES), queueing.qdiscs).get(link.number, ())
    return tuple(each for each in found if not (each.parent == HOOKS and offloads()))


def describe_queueing(link: ListedLink, links: Links, offloads: Callable[[], bool]) -> Iterator[str]:
    """Yield descriptions of disciplines, filters and programs that may delay, drop or redirect a foreign link's frames.

    Raises `HostUnreadable`.
    """
    for qdisc in foreign_qdiscs(link, offloads):
        if qdisc.parent != HOOKS and qdisc.kind not in _FAIR:
            yield f"qdisc {qdisc.kind} at its {qdisc.place}"
        for each in filters(link, qdisc):
            yield describe_filter(each, links)
    if link.has_xdp:
        yield "an XDP program"


def filters(link: ListedLink, qdisc: Qdisc) -> tuple[Filter, ...]:
    """Return the traffic filters (tc) that are attached to a queueing discipline of a link. Raises `HostUnreadable`."""
    return look((queueing, link.number, qdisc), lambda: queueing.filters(link.number, qdisc))


def describe_filter(each: Filter, links: Links) -> str:
    if each.to is None:
        return (
            f"{each.kind} filter that {each.does}"
            if each.does == "is there"
            else f"{each.kind} filter: {each.does}"
        )
    to = links.by_number.get(each.to)
    return f"{each.kind} filter that {each.does} to {to.name if to else f'link {each.to}'}"


def remove(netlink: Netlink, link: ListedLink, links: Links, declared: Declared) -> None:
    """Revert the changes that other programs made to a link, except its addresses: remove stacked links, traffic
    filters and other added objects, and restore the MAC address and the kernel's settings of the link.

    The objects that divert packets are removed before the MAC address and the settings are restored.

    Raises `HostRefused`, `HostUnreadable`, `NetlinkError`, `OSError`.
    """
    if not declared.stacked:
        for upper in links.upper.get(link.number, ()):
            netlink.link("del", index=upper.number)
    for qdisc in foreign_qdiscs(link, declared.offloads):
        # Deleting a root or hook discipline also deletes its filters and its child disciplines.
        if qdisc.parent in {ROOT, HOOKS}:
            queueing.delete(link.number, qdisc)
    if link.has_xdp:
        netlink.link("set", index=link.number, **_NO_XDP)
    if declared.mac not in {None, link.mac}:
        netlink.link("set", index=link.number, address=declared.mac)
    for name in _wrong_settings(link):
        _reset(link.name, name)


def _diversions(link: ListedLink, links: Links, qdiscs: tuple[Qdisc, ...], *, stacked: bool) -> Iterator[str]:
    if link.has_xdp:
        yield "an XDP program"
    if not stacked:
        for upper in links.upper.get(link.number, ()):
            yield f"{upper.kind} link {upper.name} stacked on this link"
    for qdisc in qdiscs:
        if qdisc.is_shared:
            yield "filters shared with other links"
        for each in filters(link, qdisc):
            # The destination of a frame is decided inside a BPF program and is not visible in the listing.
            if each.to is not None or each.kind == "bpf":
                yield describe_filter(each, links)


def _changes(
    link: ListedLink, addresses: frozenset[str], qdiscs: tuple[Qdisc, ...], declared: Declared
) -> Iterator[str]:
    for address in addresses - declared.addresses:
        yield f"address {address}"
    for qdisc in qdiscs:
        yield f"qdisc {qdisc.kind} at its {qdisc.place}"
    if declared.mac not in {None, link.mac}:
        yield f"MAC {link.mac}"
    for name in _wrong_settings(link):
        yield f"setting {name}"


def _wrong_settings(link: ListedLink) -> Iterator[str]:
    if link.arp_ignore == _NO_REPLIES:
        yield "arp_ignore"
    if link.route_localnet:
        yield "route_localnet"


def _reset(link: str, name: str) -> None:
    file = Path("/proc/sys/net/ipv4/conf", link, name)
    try:
        file.write_text("0\n")
    except OSError as error:
        raise HostRefused(f"cannot write the kernel setting {file}: {error}") from error
