"""The virtual switch of the simulated host.

The switch refuses a port without a device, flows and meters without a bridge, flows without their meter, and a
duplicate meter number.
"""

import re
from dataclasses import replace
from typing import Final

from node_agent.aspects.flows import LOCAL_NUMBER, Flow
from node_agent.aspects.gateway import Bridge, GatewayLink
from node_agent.aspects.links import DEFAULT_MTU
from node_agent.aspects.meters import Meter
from node_agent.aspects.ports import Port, Switching
from node_agent.host.slices import HostRefused, HostUnreadable
from node_agent.host.snapshots import look
from node_agent.lab.simulated.host import HeldFlow, HeldMeter, SimulatedHost, State, links_of

_METER: Final = re.compile(r"meter:(\d+),")


class SimulatedSwitch:
    """Bridges, ports, flows and meters of the simulated host."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def missing(self, datapath_type: str) -> tuple[str, ...]:
        missing = self._missing_for_datapath(datapath_type)
        return () if missing is None else (missing,)

    def _missing_for_datapath(self, datapath_type: str) -> str | None:
        with self._host.look() as state:
            is_there = datapath_type not in state.datapaths_missing
        return None if is_there else f"datapath type {datapath_type}"

    def bridge(self, name: str) -> Bridge | None:
        with self._host.look() as state:
            return next((bridge for bridge in state.bridges if bridge.name == name), None)

    def set_bridge(self, bridge: Bridge) -> None:
        if (missing := self._missing_for_datapath(bridge.datapath_type)) is not None:
            raise HostRefused(f"cannot set bridge {bridge.name}: the host lacks {missing}")
        with self._host.change("gateway.bridge", bridge.name) as state:
            state.bridges = [*(each for each in state.bridges if each.name != bridge.name), bridge]
            link = GatewayLink(frozenset(), up=False, mac=bridge.mac, mtu=DEFAULT_MTU)
            state.links.setdefault(bridge.name, link)

    def ports(self, bridge: str) -> frozenset[str]:
        with self._host.look() as state:
            return frozenset(port.name for port in state.ports if port.bridge == bridge)

    def managers(self) -> tuple[str, ...]:
        with self._host.look() as state:
            return tuple(state.managers)

    def switching(self, bridge: str) -> Switching:
        with self._host.look() as state:
            return state.switching.get(bridge, Switching())

    def reset_switching(self, bridge: str) -> None:
        with self._host.change("gateway.bridge", bridge) as state:
            if bridge not in [each.name for each in state.bridges]:
                raise HostRefused(f"cannot set fragment handling of {bridge}: bridge {bridge} does not exist")
            ports = dict(state.switching.pop(bridge, Switching()).ports)
            ports.pop(LOCAL_NUMBER, None)
            if ports:
                state.switching[bridge] = Switching(ports=ports)

    def port(self, name: str) -> Port | None:
        with self._host.look() as state:
            found = next((port for port in state.ports if port.name == name), None)
            # When the device of a port is deleted, the port stays in the database and has no number.
            return found if found is None or _has_device(state, name) else replace(found, number=None)

    def add_port(self, port: Port) -> None:
        with self._host.change("port.add", port.name) as state:
            refusal = _refusal(state, port)
            if refusal is not None:
                raise HostRefused(f"cannot add port {port.name} to {port.bridge}: {refusal}")
            state.ports.append(port)

    def delete_port(self, name: str) -> None:
        with self._host.change("port.delete", name) as state:
            deleted = [each for each in state.ports if each.name == name]
            state.ports = [each for each in state.ports if each not in deleted]
            # The OpenFlow settings of a port are deleted with the port.
            for port in deleted:
                _forget_settings(state, port)

    def flows(self, bridge: str) -> dict[int, frozenset[Flow]]:
        return look((self, "flows", bridge), lambda: self._flows(bridge))

    def _flows(self, bridge: str) -> dict[int, frozenset[Flow]]:
        found: dict[int, set[Flow]] = {}
        with self._host.look() as state:
            _check_datapath(state, bridge)
            for held in state.flows:
                if held.bridge == bridge:
                    found.setdefault(held.cookie, set()).add(held.flow)
        return {cookie: frozenset(flows) for cookie, flows in found.items()}

    def set_flows(self, bridge: str, cookie: int, flows: frozenset[Flow]) -> None:
        with self._host.change("port.flows", str(cookie)) as state:
            if bridge not in [each.name for each in state.bridges]:
                raise HostRefused(f"cannot set flows of {bridge}: bridge {bridge} does not exist")
            if missing := {*map(_meter_of, flows)} - {None, *_numbers(state, bridge)}:
                raise HostRefused(f"cannot set flows of {bridge}: meters {missing} do not exist")
            others = [each for each in state.flows if (each.bridge, each.cookie) != (bridge, cookie)]
            ordered = sorted(flows, key=lambda flow: (flow.priority, sorted(flow.match)))
            state.flows = [*others, *(HeldFlow(bridge, cookie, flow) for flow in ordered)]

    def meters(self, bridge: str) -> dict[int, Meter | None]:
        return look((self, "meters", bridge), lambda: self._meters(bridge))

    def _meters(self, bridge: str) -> dict[int, Meter | None]:
        with self._host.look() as state:
            _check_datapath(state, bridge)
            return {held.number: held.meter for held in state.meters if held.bridge == bridge}

    def add_meter(self, bridge: str, number: int, meter: Meter) -> None:
        with self._host.change("port.meter", str(number)) as state:
            if bridge not in [each.name for each in state.bridges]:
                raise HostRefused(f"cannot add meter {number} to {bridge}: bridge {bridge} does not exist")
            if number in _numbers(state, bridge):
                raise HostRefused(f"cannot add meter {number} to {bridge}: the meter already exists")
            state.meters.append(HeldMeter(bridge, number, meter))

    def change_meter(self, bridge: str, number: int, meter: Meter) -> None:
        with self._host.change("port.meter", str(number)) as state:
            if number not in _numbers(state, bridge):
                raise HostRefused(f"cannot change meter {number} of {bridge}: the meter does not exist")
            state.meters = [
                HeldMeter(bridge, number, meter) if (each.bridge, each.number) == (bridge, number) else each
                for each in state.meters
            ]

    def delete_meter(self, bridge: str, number: int) -> None:
        with self._host.change("port.meter", str(number)) as state:
            if bridge not in [each.name for each in state.bridges]:
                raise HostRefused(f"cannot delete meter {number} of {bridge}: bridge {bridge} does not exist")
            state.meters = [each for each in state.meters if (each.bridge, each.number) != (bridge, number)]
            state.flows = [
                each for each in state.flows if (each.bridge, _meter_of(each.flow)) != (bridge, number)
            ]


def _forget_settings(state: State, port: Port) -> None:
    switching = state.switching.get(port.bridge)
    if switching is not None:
        kept = {number: flags for number, flags in switching.ports.items() if number != port.number}
        state.switching[port.bridge] = replace(switching, ports=kept)


def _check_datapath(state: State, bridge: str) -> None:
    if any(each.name == bridge and not each.has_datapath for each in state.bridges):
        raise HostUnreadable(f"bridge {bridge} has no datapath")


def _numbers(state: State, bridge: str) -> list[int]:
    return [each.number for each in state.meters if each.bridge == bridge]


def _meter_of(flow: Flow) -> int | None:
    named = _METER.match(flow.actions)
    return int(named[1]) if named else None


def _has_device(state: State, name: str) -> bool:
    return any(link.name == name for link in links_of(state))


def _refusal(state: State, port: Port) -> str | None:
    if port.bridge not in [each.name for each in state.bridges]:
        return f"bridge {port.bridge} does not exist"
    if port.name in [each.name for each in state.ports]:
        return f"a port with the name {port.name} exists"
    if not _has_device(state, port.name):
        return f"could not open network device {port.name}"
    if (port.bridge, port.number) in [(each.bridge, each.number) for each in state.ports]:
        return f"OpenFlow port number {port.number} is in use"
    return None
