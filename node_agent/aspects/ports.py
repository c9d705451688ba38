"""The port aspect: a slice's port on the bridge, the flows that guard it, and the meters that limit it.

The bridge is `secure`, so a port without flows carries nothing: a crash between adding a port and setting its flows
leaves a slice without network, never an unguarded one. All flows of a slot have its cookie and are replaced in one
bundle; foreign flows are not touched. A port that differs from the desired one is deleted before it is added again,
because its name and its number are reused; the flows of the port are deleted before the port itself. If a slot has
flows without a port, they are deleted before its port is added: they belong to an earlier slice, and would let the new
slice send with the earlier one's addresses. Meters are added before the flows that name them and deleted after them
(`meters`); another rate changes the meters in place, and the flows stay.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, assert_never

from node_agent.aspects.flows import Flow, cookie_of, flows_of, port_number
from node_agent.aspects.meters import Meter, describe_meters, in_slot, meters_of
from node_agent.host.slices import Difference, Slice, SliceNetwork, Step


@dataclass(frozen=True, slots=True)
class Port:
    """A port of an OVS bridge. `number` is its OpenFlow port number; None if the port is not connected to its device.

    `vlans` are its VLANs, by tag or trunk; a slice has none. `unmanaged` are foreign settings of the port and its
    interfaces, such as `ingress_policing_rate=1000`.
    """

    name: str
    bridge: str
    number: int | None
    vlans: frozenset[int] = frozenset()
    unmanaged: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Switching:
    """Settings of an OpenFlow switch other than its flows.

    `fragments` is the handling of IP fragments; `normal` treats them as other packets. `ports` are, by port number, the
    settings that block packets (`no-forward`).
    """

    fragments: str = "normal"
    ports: Mapping[int, frozenset[str]] = field(default_factory=dict)


class Switch(Protocol):
    """Interface to the virtual switch of a host.

    Reads raise `HostUnreadable`. Changes raise `HostRefused` if the switch refuses, and `HostUnreadable` if it does not
    answer: the change may then have been made.
    """

    def port(self, name: str) -> Port | None: ...

    def flows(self, bridge: str) -> Mapping[int, frozenset[Flow]]:
        """Return the OpenFlow flows of a bridge by cookie; empty if the bridge does not exist."""
        ...

    def meters(self, bridge: str) -> Mapping[int, Meter | None]:
        """Return the OpenFlow meters of a bridge by number; empty if the bridge does not exist.

        None stands for a meter of another kind than `Meter`.
        """
        ...

    def switching(self, bridge: str) -> Switching:
        """Return a bridge's OpenFlow settings other than flows; the defaults if the bridge does not exist."""
        ...

    def add_port(self, port: Port) -> None:
        """Add a port to an OVS bridge.

        Raises `HostRefused` if the name is taken, or if the device or the port number is not available.
        """
        ...

    def delete_port(self, name: str) -> None: ...

    def set_flows(self, bridge: str, cookie: int, flows: frozenset[Flow]) -> None:
        """Replace all flows with `cookie` by `flows` in one OpenFlow bundle: no packet meets both old and new flows.

        Raises `HostRefused` if a flow names a meter that does not exist.
        """
        ...

    def add_meter(self, bridge: str, number: int, meter: Meter) -> None:
        """Add an OpenFlow meter to a bridge. Raises `HostRefused` if the meter number is taken."""
        ...

    def change_meter(self, bridge: str, number: int, meter: Meter) -> None:
        """Change an OpenFlow meter while flows name it. Raises `HostRefused` if the meter does not exist."""
        ...

    def delete_meter(self, bridge: str, number: int) -> None:
        """Delete an OpenFlow meter and the flows that name it."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """Observed state of a slot in the virtual switch: its port, flows and meters."""

    port: Port | None
    flows: frozenset[Flow]
    meters: Mapping[int, Meter | None]


def observed(slot: SliceNetwork, switch: Switch) -> Found:
    """Read a slot's port, flows and meters from the virtual switch. Raises `HostUnreadable`."""
    return Found(
        _port_of(slot, switch),
        switch.flows(slot.bridge).get(cookie_of(slot.index), frozenset()),
        in_slot(slot.index, switch.meters(slot.bridge)),
    )


def _port_of(slot: SliceNetwork, switch: Switch) -> Port | None:
    """Return the slot's OVS port, with its foreign OpenFlow settings added to `unmanaged`.

    Deleting the port removes both kinds of foreign settings.
    """
    port = switch.port(slot.tap)
    if port is None or port.number is None or port.bridge != slot.bridge:
        return port
    settings = switch.switching(slot.bridge).ports.get(port.number, frozenset())
    return replace(port, unmanaged=port.unmanaged | settings) if settings else port


class PortAspect:
    """Aspect `port` of all slots: OVS ports with their flows and meters."""

    name = "port"

    def __init__(self, switch: Switch) -> None:
        self._switch = switch

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        match wanted.network_mode:
            case "private-nat" | "public-nat":
                return plan(wanted.network, observed(wanted.network, self._switch), self._switch)
            case mode:
                assert_never(mode)

    def to_remove(self, gone: SliceNetwork) -> tuple[Step, ...]:
        found = observed(gone, self._switch)
        steps: tuple[Step, ...] = ()
        if found.flows:
            steps += (_delete_flows(gone, self._switch),)
        if found.meters:
            steps += (_delete_meters(gone, found.meters, self._switch),)
        if found.port:
            steps += (Step("port.delete", lambda: self._switch.delete_port(gone.tap)),)
        return steps

    def remains(self, gone: SliceNetwork) -> tuple[str, ...]:
        found = observed(gone, self._switch)
        port, flows, meters = found.port, len(found.flows), len(found.meters)
        return (
            *((f"ovs port {port.name} on {port.bridge}",) if port else ()),
            *((f"{flows} flows of {gone.tap} on {gone.bridge}",) if flows else ()),
            *((f"{meters} meters of {gone.tap} on {gone.bridge}",) if meters else ()),
        )

    to_stop, still_on = to_remove, remains


def plan(wanted: SliceNetwork, found: Found, switch: Switch) -> tuple[Step, ...]:
    """Return the steps that set a slice's port, flows and meters in the virtual switch; empty if they are set."""
    port = Port(wanted.tap, wanted.bridge, port_number(wanted.index))
    guards, meters = flows_of(wanted), meters_of(wanted)
    steps: tuple[Step, ...] = ()
    differs = None if found.port == port else _port_difference(port, found.port)
    if differs:
        if found.flows:
            steps += (_delete_flows(wanted, switch, differs),)
        if found.port is not None:
            steps += (Step("port.delete", lambda: switch.delete_port(port.name), differs),)
        steps += (Step("port.add", lambda: switch.add_port(port), differs),)
    elif found.flows != guards:
        differs = _flow_difference(guards, found.flows)
    limits = None if found.meters == meters else _meter_difference(meters, found.meters)
    if limits and meters:
        steps += (_set_meters(wanted, found.meters, switch, limits),)
    if differs:
        steps += (_set_flows(wanted, switch, differs),)
    if limits and not meters:
        steps += (_delete_meters(wanted, found.meters, switch, limits),)
    return steps


def _set_flows(wanted: SliceNetwork, switch: Switch, differs: Difference) -> Step:
    cookie, flows = cookie_of(wanted.index), flows_of(wanted)
    return Step("port.set_flows", lambda: switch.set_flows(wanted.bridge, cookie, flows), differs)


def _delete_flows(gone: SliceNetwork, switch: Switch, differs: Difference | None = None) -> Step:
    cookie = cookie_of(gone.index)
    return Step("port.delete_flows", lambda: switch.set_flows(gone.bridge, cookie, frozenset()), differs)


def _set_meters(
    wanted: SliceNetwork, found: Mapping[int, Meter | None], switch: Switch, differs: Difference
) -> Step:
    def run() -> None:
        for number, meter in meters_of(wanted).items():
            if number not in found:
                switch.add_meter(wanted.bridge, number, meter)
            elif found[number] != meter:
                switch.change_meter(wanted.bridge, number, meter)

    return Step("port.set_meters", run, differs)


def _delete_meters(
    gone: SliceNetwork, found: Iterable[int], switch: Switch, differs: Difference | None = None
) -> Step:
    def run() -> None:
        for number in found:
            switch.delete_meter(gone.bridge, number)

    return Step("port.delete_meters", run, differs)


def _port_difference(wanted: Port, found: Port | None) -> Difference:
    return Difference("port.changed" if found else "port.absent", _describe(wanted), _describe(found))


def _describe(port: Port | None) -> str:
    if port is None:
        return "no port"
    vlans = f", in VLANs {', '.join(map(str, sorted(port.vlans)))}" if port.vlans else ""
    number = "without a number" if port.number is None else port.number
    unmanaged = f", with {', '.join(sorted(port.unmanaged))}" if port.unmanaged else ""
    return f"port {number} of {port.bridge} on {port.name}{vlans}{unmanaged}"


def _flow_difference(wanted: frozenset[Flow], found: frozenset[Flow]) -> Difference:
    missing, unexpected = len(wanted - found), len(found - wanted)
    description = f"{len(found)} flows, missing: {missing}, unexpected: {unexpected}"
    return Difference("port.flows", f"{len(wanted)} flows", description)


def _meter_difference(wanted: Mapping[int, Meter | None], found: Mapping[int, Meter | None]) -> Difference:
    return Difference("port.meter", describe_meters(wanted), describe_meters(found))
