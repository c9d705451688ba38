"""Routes, policy rules and neighbours of the simulated host.

A route over a missing link or a link that is down is refused.
"""

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Interface

from events.values import Ipv4Address, Ipv4Subnet
from node_agent.aspects.gateway import GatewayLink
from node_agent.host.slices import HostRefused
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.packets.routing import Neighbour, PolicyRule, Route, own_routes


class SimulatedRouting:
    """Routes, policy rules and neighbour entries of the simulated host."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def routes(self) -> tuple[Route, ...]:
        with self._host.look() as state:
            return tuple(state.routes)

    def set_routes(self, routes: Iterable[Route]) -> None:
        with self._host.change("gateway.routes") as state:
            for each in routes:
                if not all(link in state.links and state.links[link].up for link in each.links):
                    raise HostRefused(f"cannot set routes {each}: Network is down")
                state.routes = [*(other for other in state.routes if other != each), each]

    def policy_rules(self) -> tuple[PolicyRule, ...]:
        with self._host.look() as state:
            return tuple(state.policy_rules)

    def static_neighbours(self, link: str) -> tuple[Neighbour, ...]:
        with self._host.look() as state:
            return tuple(each.neighbour for each in state.neighbours if each.link == link)

    def delete_neighbours(self, link: str, neighbours: Iterable[Neighbour]) -> None:
        removed = {*neighbours}
        with self._host.change("gateway.neighbours", link) as state:
            state.neighbours = [
                each for each in state.neighbours if each.link != link or each.neighbour not in removed
            ]

    def silent(self, link: str, gateways: frozenset[Ipv4Address]) -> frozenset[Ipv4Address]:
        with self._host.look() as state:
            return frozenset(each for each in gateways if each in state.silent)


def routes_after(
    name: str, before: GatewayLink, link: GatewayLink, routes: Iterable[Route]
) -> Iterator[Route]:
    """Yield a simulated host's routes after a change of a link: without removed addresses, and with added ones."""
    old, new = (each.addresses if each.up else frozenset() for each in (before, link))
    removed = {route for address in old - new for route in _routes_of(name, address)}
    yield from (each for each in routes if each not in removed)
    yield from (route for address in sorted(new - old) for route in _routes_of(name, address))


def _routes_of(name: str, address: str) -> tuple[Route, ...]:
    interface = IPv4Interface(address)
    return own_routes(name, Ipv4Subnet(str(interface.network)), Ipv4Address(str(interface.ip)))
