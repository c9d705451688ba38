"""The virtual switch of the simulated host: refuses a port without a device, and flows without a bridge."""

from dataclasses import replace

from node_agent.flows import Flow
from node_agent.gateway import Bridge, GatewayLink
from node_agent.lab.simulated.host import HeldFlow, SimulatedHost, State, links_of
from node_agent.looks import look
from node_agent.ports import Port
from node_agent.slices import HostRefused


class SimulatedSwitch:
    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def missing(self) -> tuple[str, ...]:
        return ()

    def bridge(self, name: str) -> Bridge | None:
        with self._host.look() as state:
            return next((bridge for bridge in state.bridges if bridge.name == name), None)

    def set_bridge(self, bridge: Bridge) -> None:
        with self._host.change("gateway.bridge", bridge.name) as state:
            state.bridges = [*(each for each in state.bridges if each.name != bridge.name), bridge]
            state.links.setdefault(bridge.name, GatewayLink(frozenset(), up=False))

    def port(self, name: str) -> Port | None:
        with self._host.look() as state:
            found = next((port for port in state.ports if port.name == name), None)
            # A port stays in the database when its device goes, and has no number.
            return found if found is None or _has_device(state, name) else replace(found, number=None)

    def add_port(self, port: Port) -> None:
        with self._host.change("port.add", port.name) as state:
            refusal = _refusal(state, port)
            if refusal is not None:
                raise HostRefused(f"add port {port.name} to {port.bridge}: {refusal}")
            state.ports.append(port)

    def delete_port(self, name: str) -> None:
        with self._host.change("port.delete", name) as state:
            state.ports = [each for each in state.ports if each.name != name]

    def flows(self, bridge: str) -> dict[int, frozenset[Flow]]:
        return look((self, "flows", bridge), lambda: self._flows(bridge))

    def _flows(self, bridge: str) -> dict[int, frozenset[Flow]]:
        found: dict[int, set[Flow]] = {}
        with self._host.look() as state:
            for held in state.flows:
                if held.bridge == bridge:
                    found.setdefault(held.cookie, set()).add(held.flow)
        return {cookie: frozenset(flows) for cookie, flows in found.items()}

    def set_flows(self, bridge: str, cookie: int, flows: frozenset[Flow]) -> None:
        with self._host.change("port.flows", str(cookie)) as state:
            if bridge not in [each.name for each in state.bridges]:
                raise HostRefused(f"set flows of {bridge}: no bridge {bridge}")
            others = [each for each in state.flows if (each.bridge, each.cookie) != (bridge, cookie)]
            ordered = sorted(flows, key=lambda flow: (flow.priority, sorted(flow.match)))
            state.flows = [*others, *(HeldFlow(bridge, cookie, flow) for flow in ordered)]


def _has_device(state: State, name: str) -> bool:
    return any(link.name == name for link in links_of(state))


def _refusal(state: State, port: Port) -> str | None:
    if port.bridge not in [each.name for each in state.bridges]:
        return f"no bridge {port.bridge}"
    if port.name in [each.name for each in state.ports]:
        return "a port of that name exists"
    if not _has_device(state, port.name):
        return f"could not open network device {port.name}"
    if (port.bridge, port.number) in [(each.bridge, each.number) for each in state.ports]:
        return f"its OpenFlow port is not {port.number}"
    return None
