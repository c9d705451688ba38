"""Alterations of the agent's links by other programs: find, describe and remove them.

The kernel's own settings are not alterations: a discipline with the handle 0, filters that Open vSwitch keeps where it
offloads its flows. Flags that change nothing for a slice's frames (promiscuous, all-multicast) are not compared; Open
vSwitch sets some of them itself. The settings that are compared are the two that cut or leak a slice's traffic:
`arp_ignore` 8, with which the gateway answers no ARP request, and `route_localnet`, with which the host's own loopback
addresses can be reached by the link.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from node_agent.drivers import queueing
from node_agent.drivers.queueing import HOOKS, ROOT, Filter, Qdisc
from node_agent.drivers.rtnetlink import Links, ListedLink
from node_agent.links import Alterations
from node_agent.looks import look
from node_agent.slices import HostRefused

_NO_REPLIES: Final = 8
"""`arp_ignore`: do not reply for all local addresses (ip-sysctl)."""
_DISCIPLINES: Final = "queueing disciplines"
_FAIR: Final = frozenset({"fifo", "pfifo", "pfifo_fast", "fq", "fq_codel", "mq", "mqprio", "noqueue"})
"""Disciplines that limit no rate and that distributions and drivers choose."""
_NO_XDP: Final = {"IFLA_XDP": {"attrs": [["IFLA_XDP_FD", -1]]}}
# pyroute2 has no types.
Netlink = Any


@dataclass(frozen=True, slots=True)
class Declared:
    """The declared settings of a link. `mac` None: any. `stacked`: other links may be stacked on it."""

    mac: str | None
    addresses: frozenset[str] = frozenset()
    stacked: bool = False
    offloads: Callable[[], bool] = lambda: False
    """Whether Open vSwitch keeps filters of its own at the link's hooks; asked only where some are."""


def alterations(link: ListedLink, links: Links, addresses: frozenset[str], declared: Declared) -> Alterations:
    """Raises `HostUnreadable`."""
    qdiscs = foreign_qdiscs(link, declared.offloads)
    return Alterations(
        frozenset(_diversions(link, links, qdiscs, stacked=declared.stacked)),
        frozenset(_others(link, addresses, qdiscs, declared)),
    )


def foreign_qdiscs(link: ListedLink, offloads: Callable[[], bool]) -> tuple[Qdisc, ...]:
    """Return the disciplines of a link that were set by other programs. Raises `HostUnreadable`."""
    found = look((queueing, _DISCIPLINES), queueing.qdiscs).get(link.number, ())
    return tuple(each for each in found if not (each.parent == HOOKS and offloads()))


def queueing_words(link: ListedLink, links: Links, offloads: Callable[[], bool]) -> Iterator[str]:
    """Yield descriptions of what may delay, drop or redirect frames of a foreign link. Raises `HostUnreadable`."""
    for qdisc in foreign_qdiscs(link, offloads):
        if qdisc.parent != HOOKS and qdisc.kind not in _FAIR:
            yield f"qdisc {qdisc.kind} at its {qdisc.place}"
        for each in filters(link, qdisc):
            yield filter_words(each, links)
    if link.has_xdp:
        yield "an XDP program"


def filters(link: ListedLink, qdisc: Qdisc) -> tuple[Filter, ...]:
    """Raises `HostUnreadable`."""
    return look((queueing, link.number, qdisc), lambda: queueing.filters(link.number, qdisc))


def filter_words(each: Filter, links: Links) -> str:
    if each.to is None:
        return (
            f"{each.kind} filter that {each.does}"
            if each.does == "is there"
            else f"{each.kind} filter: {each.does}"
        )
    to = links.by_number.get(each.to)
    return f"{each.kind} filter that {each.does} to {to.name if to else f'link {each.to}'}"


def remove(netlink: Netlink, link: ListedLink, links: Links, declared: Declared) -> None:
    """Remove all alterations of a link but its addresses. Diversions go first.

    Raises `HostRefused`, `HostUnreadable`, `NetlinkError`, `OSError`.
    """
    if not declared.stacked:
        for upper in links.upper.get(link.number, ()):
            netlink.link("del", index=upper.number)
    for qdisc in foreign_qdiscs(link, declared.offloads):
        # The filters on a discipline go with it. One that stands on another discipline does too.
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
            yield f"{upper.kind} link {upper.name} on it"
    for qdisc in qdiscs:
        if qdisc.is_shared:
            yield "filters that it shares with other links"
        for each in filters(link, qdisc):
            # A program decides by itself where a frame goes.
            if each.to is not None or each.kind == "bpf":
                yield filter_words(each, links)


def _others(
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
        raise HostRefused(f"write {file}: {error}") from error
