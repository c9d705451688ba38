"""The host's routes, policy rules and neighbours over netlink, and whether a gateway answers.

A gateway counts as silent if the kernel sent three ARP requests on behalf of this driver (NTF_USE) and received no
reply (the neighbour entry is FAILED, arp(7)). An entry that was FAILED before these requests proves nothing: the kernel
may have sent its requests long ago, or only to the MAC address that it had cached. A stale entry is checked again, with
one ARP request every 30 seconds, so that a lost gateway is detected on an idle host.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from events.values import Ipv4Address
from node_agent.drivers.network import routing
from node_agent.drivers.network.links import NetlinkLinks
from node_agent.drivers.network.routing import FAILED, INCOMPLETE, STALE, ListedNeighbour
from node_agent.host.snapshots import look
from node_agent.packets.routing import LOCAL, Neighbour, PolicyRule, Route

_KERNEL: Final = 2
"""Route protocol RTPROT_KERNEL, which marks routes that the kernel itself created."""
_HOST, _LINK = 254, 253
"""Route scopes RT_SCOPE_HOST (addresses of the host itself) and RT_SCOPE_LINK (networks on a link)."""
_USE: Final = 1
"""NTF_USE: makes the kernel send an ARP request, as if a packet were to be sent."""


class NetlinkRouting:
    """Routes, policy rules and neighbours over netlink. Changes use the socket of `links`."""

    def __init__(self, links: NetlinkLinks) -> None:
        self._links = links
        self._requested: set[tuple[int, Ipv4Address]] = set()
        self._silent: set[tuple[int, Ipv4Address]] = set()

    def routes(self) -> tuple[Route, ...]:
        names = self._links.names()
        return tuple(
            replace(each.route, links=tuple(names.get(link, f"link {link}") for link in each.links))
            for each in self._links.routes()
        )

    def set_routes(self, routes: Iterable[Route]) -> None:
        def change(netlink: IPRoute) -> None:
            for each in routes:
                netlink.route(
                    "replace",
                    dst=each.to,
                    type=each.kind,
                    table=each.table,
                    scope=_HOST if each.table == LOCAL else _LINK,
                    proto=_KERNEL,
                    oif=self._links.index(each.links[0]) or 0,
                    prefsrc=each.source,
                )

        self._links.change(f"set routes {', '.join(map(str, routes))}", change)

    def policy_rules(self) -> tuple[PolicyRule, ...]:
        return look((routing, "rules"), routing.rules)

    def static_neighbours(self, link: str) -> tuple[Neighbour, ...]:
        number = self._links.index(link)
        return tuple(
            Neighbour(each.address, each.mac)
            for each in self._neighbours()
            if each.static and each.link == number
        )

    def delete_neighbours(self, link: str, neighbours: Iterable[Neighbour]) -> None:
        def change(netlink: IPRoute) -> None:
            for each in neighbours:
                netlink.neigh("del", dst=each.address, ifindex=self._links.index(link) or 0)

        self._links.change(f"delete neighbours of {link}", change)

    def silent(self, link: str, gateways: frozenset[Ipv4Address]) -> frozenset[Ipv4Address]:
        number = self._links.index(link)
        if number is None:
            return frozenset()
        found = {each.address: each.state for each in self._neighbours() if each.link == number}
        for each in gateways:
            self._evaluate((number, each), found.get(each))
        return frozenset(each for each in gateways if (number, each) in self._silent)

    def _evaluate(self, gateway: tuple[int, Ipv4Address], state: int | None) -> None:
        if state == FAILED and gateway in self._requested:
            self._silent.add(gateway)
        elif state not in {None, FAILED, INCOMPLETE}:
            self._silent.discard(gateway)
            self._requested.discard(gateway)
        if state in {None, FAILED, STALE}:
            if state != STALE:
                self._requested.add(gateway)
            self._request_arp(*gateway)

    def _request_arp(self, number: int, address: Ipv4Address) -> None:
        # The kernel refuses this for a link that is down; the next survey tries again.
        with suppress(NetlinkError):
            self._links.request(
                lambda netlink: netlink.neigh("replace", dst=address, ifindex=number, flags=_USE, state=0)
            )

    def _neighbours(self) -> tuple[ListedNeighbour, ...]:
        return look((routing, "neighbours"), routing.neighbours)
