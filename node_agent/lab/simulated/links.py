"""Network links of the simulated host and their addresses."""

from dataclasses import replace

from events.values import Ipv4Address
from node_agent.aspects.gateway import GatewayLink, Uplink
from node_agent.aspects.links import OtherLink, Representor, Tap
from node_agent.host.slices import HostRefused
from node_agent.lab.simulated.host import HeldRepresentor, SimulatedHost, links_of
from node_agent.lab.simulated.routing import routes_after


class SimulatedLinks:
    """Links, addresses and forwarding of the simulated host."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def link(self, name: str) -> Tap | OtherLink | None:
        with self._host.look() as state:
            return next((link for link in links_of(state) if link.name == name), None)

    def is_in_use(self, name: str) -> bool:
        with self._host.look() as state:
            return name in state.carried and name in [tap.name for tap in state.taps]

    def add_tap(self, tap: Tap) -> None:
        with self._host.change("link.add", tap.name) as state:
            if self.link(tap.name) is not None:
                raise HostRefused(f"cannot add tap {tap.name}: a link with that name exists")
            state.taps.append(tap)

    def set_tap(self, tap: Tap) -> None:
        with self._host.change("link.set", tap.name) as state:
            if tap.name not in [each.name for each in state.taps]:
                raise HostRefused(f"cannot set tap {tap.name}: link {tap.name} does not exist")
            state.taps = [tap if each.name == tap.name else each for each in state.taps]

    def delete_link(self, name: str) -> None:
        with self._host.change("link.delete", name) as state:
            if name in [each.link.name for each in state.representors]:
                raise HostRefused(f"cannot delete link {name}: Operation not supported")
            state.taps = [each for each in state.taps if each.name != name]
            state.carried = [each for each in state.carried if each != name]
            state.others = [each for each in state.others if each.name != name]
            state.ports = [replace(each, number=None) if each.name == name else each for each in state.ports]

    def representor(self, number: int) -> Representor | None:
        with self._host.look() as state:
            return next((each.link for each in state.representors if each.number == number), None)

    def set_representor(self, number: int, to: Representor) -> None:
        with self._host.change("link.set", to.name) as state:
            found = self.representor(number)
            if found is None:
                raise HostRefused(
                    f"cannot rename link {number} to {to.name} and configure it: No such device"
                )
            if found.name != to.name and self.link(to.name) is not None:
                raise HostRefused(f"cannot rename link {number} to {to.name} and configure it: File exists")
            others = (each for each in state.representors if each.number != number)
            state.representors = [*others, HeldRepresentor(number, to)]
            state.ports = [
                replace(each, number=None) if each.name == found.name != to.name else each
                for each in state.ports
            ]

    def gateway_link(self, name: str) -> GatewayLink | None:
        with self._host.look() as state:
            return state.links.get(name)

    def set_gateway_link(self, name: str, link: GatewayLink) -> None:
        with self._host.change("gateway.link", name) as state:
            if name not in state.links:
                raise HostRefused(f"cannot set addresses of {name}: link {name} does not exist")
            found = state.links[name]
            set_ = replace(link, mac=link.mac or found.mac, mtu=link.mtu or found.mtu)
            state.links[name] = set_
            state.routes = [*routes_after(name, found, set_, state.routes)]

    def addresses(self, name: str) -> tuple[Ipv4Address, ...]:
        link = self.gateway_link(name)
        return tuple(sorted(Ipv4Address(a.partition("/")[0]) for a in link.addresses)) if link else ()

    def uplink(self, name: str) -> Uplink | None:
        with self._host.look() as state:
            return state.uplink if name in state.uplinks else None

    def upper_links(self, name: str) -> tuple[str, ...]:
        with self._host.look() as state:
            return tuple(state.upper_links) if name in state.links else ()

    def default_route_links(self) -> frozenset[str]:
        with self._host.look() as state:
            return frozenset(state.uplinks)

    def not_forwarding(self, *names: str) -> tuple[str, ...]:
        with self._host.look() as state:
            whole = () if state.forwards else ("all",)
            return (*whole, *(name for name in names if not state.forwards or name in state.not_forwarding))

    def set_forwarding(self, *names: str) -> None:
        with self._host.change("gateway.forward") as state:
            state.forwards = True
            state.not_forwarding = [each for each in state.not_forwarding if each not in names]
