"""The port aspect: a slice's port on the bridge, the flows that guard it, and the meters that limit it.

The bridge is `secure`, so a port without flows carries nothing: a crash between adding a port and setting its flows
leaves a mute slice, never an open one. Flows go in and out as one bundle per slot, known by its cookie; nobody
else's are touched. A port that differs is deleted before it is added again, because its name and its number are
reused, and its flows go before it does. Flows without their port go too before one is added: they are an earlier
slice's, and would let it speak as that one. Meters come before the flows that name them and go after them (`meters`);
another rate changes them in place, and the flows stay.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from node_agent.flows import Flow, cookie_of, flows_of, port_number
from node_agent.meters import Meter, in_slot, in_words, meters_of
from node_agent.slices import Difference, Slice, SliceNetwork, Step


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a bridge. `number` is its OpenFlow port, None when it does not lead to the device of its name.

    `vlans` are those that it was given, by its tag or as a trunk; a slice has none. `unmanaged` are settings of the
    port and its interfaces that this program does not make, each as `ingress_policing_rate=1000`.
    """

    name: str
    bridge: str
    number: int | None
    vlans: frozenset[int] = frozenset()
    unmanaged: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Switching:
    """What an OpenFlow switch does beside its flows: with fragments (`normal`: they pass as other packets do), and, for
    ports by their numbers, settings that keep packets out or in (`no-forward`).
    """

    fragments: str = "normal"
    ports: Mapping[int, frozenset[str]] = field(default_factory=dict)


class Switch(Protocol):
    """The host's virtual switch. Reads raise `HostUnreadable`. Changes raise `HostRefused` when the answer was no, and
    `HostUnreadable` when there was none: the change may then have been made.
    """

    def port(self, name: str) -> Port | None: ...

    def flows(self, bridge: str) -> Mapping[int, frozenset[Flow]]:
        """The flows of a bridge by cookie; empty when there is no such bridge."""
        ...

    def meters(self, bridge: str) -> Mapping[int, Meter | None]:
        """The meters of a bridge by number, None for one of another kind; empty when there is no such bridge."""
        ...

    def switching(self, bridge: str) -> Switching:
        """The defaults when there is no such bridge."""
        ...

    def add_port(self, port: Port) -> None:
        """Refused when the name is taken, or when the device or the number cannot be had."""
        ...

    def delete_port(self, name: str) -> None: ...

    def set_flows(self, bridge: str, cookie: int, flows: frozenset[Flow]) -> None:
        """Replace all flows with `cookie` by `flows`, in one bundle: no packet sees half of it. Refused when one names
        a meter that is not there."""
        ...

    def add_meter(self, bridge: str, number: int, meter: Meter) -> None:
        """Refused when the number is taken."""
        ...

    def change_meter(self, bridge: str, number: int, meter: Meter) -> None:
        """Under the flows that name it. Refused when it is not there."""
        ...

    def delete_meter(self, bridge: str, number: int) -> None:
        """And the flows that name it."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """What a switch has of a slot."""

    port: Port | None
    flows: frozenset[Flow]
    meters: Mapping[int, Meter | None]


def found_of(slot: SliceNetwork, switch: Switch) -> Found:
    return Found(
        _port_of(slot, switch),
        switch.flows(slot.bridge).get(cookie_of(slot.index), frozenset()),
        in_slot(slot.index, switch.meters(slot.bridge)),
    )


def _port_of(slot: SliceNetwork, switch: Switch) -> Port | None:
    """The slot's port, with its settings in the OpenFlow switch: both go when the port is deleted."""
    port = switch.port(slot.tap)
    if port is None or port.number is None or port.bridge != slot.bridge:
        return port
    settings = switch.switching(slot.bridge).ports.get(port.number, frozenset())
    return replace(port, unmanaged=port.unmanaged | settings) if settings else port


class PortAspect:
    name = "port"

    def __init__(self, switch: Switch) -> None:
        self._switch = switch

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        return plan(wanted.network, found_of(wanted.network, self._switch), self._switch)

    def to_remove(self, gone: SliceNetwork) -> tuple[Step, ...]:
        found = found_of(gone, self._switch)
        steps: tuple[Step, ...] = ()
        if found.flows:
            steps += (_delete_flows(gone, self._switch),)
        if found.meters:
            steps += (_delete_meters(gone, found.meters, self._switch),)
        if found.port:
            steps += (Step("port.delete", lambda: self._switch.delete_port(gone.tap)),)
        return steps

    def remains(self, gone: SliceNetwork) -> tuple[str, ...]:
        found = found_of(gone, self._switch)
        port, flows, meters = found.port, len(found.flows), len(found.meters)
        return (
            *((f"ovs port {port.name} on {port.bridge}",) if port else ()),
            *((f"{flows} flows of {gone.tap} on {gone.bridge}",) if flows else ()),
            *((f"{meters} meters of {gone.tap} on {gone.bridge}",) if meters else ()),
        )

    to_stop, still_on = to_remove, remains


def plan(wanted: SliceNetwork, found: Found, switch: Switch) -> tuple[Step, ...]:
    port = Port(wanted.tap, wanted.bridge, port_number(wanted.index))
    guards, meters = flows_of(wanted), meters_of(wanted)
    steps: tuple[Step, ...] = ()
    differs = None if found.port == port else _of_port(port, found.port)
    if differs:
        if found.flows:
            steps += (_delete_flows(wanted, switch, differs),)
        if found.port is not None:
            steps += (Step("port.delete", lambda: switch.delete_port(port.name), differs),)
        steps += (Step("port.add", lambda: switch.add_port(port), differs),)
    elif found.flows != guards:
        differs = _of_flows(guards, found.flows)
    limits = None if found.meters == meters else _of_meters(meters, found.meters)
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


def _of_port(wanted: Port, found: Port | None) -> Difference:
    return Difference("port.changed" if found else "port.absent", _words(wanted), _words(found))


def _words(port: Port | None) -> str:
    if port is None:
        return "no port"
    vlans = f", in VLANs {', '.join(map(str, sorted(port.vlans)))}" if port.vlans else ""
    number = "without a number" if port.number is None else port.number
    unmanaged = f", with {', '.join(sorted(port.unmanaged))}" if port.unmanaged else ""
    return f"port {number} of {port.bridge} on {port.name}{vlans}{unmanaged}"


def _of_flows(wanted: frozenset[Flow], found: frozenset[Flow]) -> Difference:
    missing, strange = len(wanted - found), len(found - wanted)
    found_words = f"{len(found)} flows, missing: {missing}, strange: {strange}"
    return Difference("port.flows", f"{len(wanted)} flows", found_words)


def _of_meters(wanted: Mapping[int, Meter | None], found: Mapping[int, Meter | None]) -> Difference:
    return Difference("port.meter", in_words(wanted), in_words(found))
