"""The port aspect: a slice's port on the bridge and the flows that guard it.

The bridge is `secure`, so a port without flows carries nothing: a crash between adding a port and setting its flows
leaves a mute slice, never an open one. Flows go in and out as one bundle per slot, known by its cookie; nobody
else's are touched. A port that differs is deleted before it is added again, because its name and its number are
reused, and its flows go before it does. Flows without their port go too before one is added: they are an earlier
slice's, and would let it speak as that one.
"""

from dataclasses import dataclass
from typing import Protocol

from node_agent.flows import Flow, cookie_of, flows_of, port_number
from node_agent.slices import Difference, Slice, SliceNetwork, Step


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a bridge. `number` is its OpenFlow port, None when it does not lead to the device of its name."""

    name: str
    bridge: str
    number: int | None


class Switch(Protocol):
    """The host's virtual switch. Reads raise `HostUnreadable`, changes raise `HostRefused`."""

    def port(self, name: str) -> Port | None: ...

    def flows(self, bridge: str) -> dict[int, frozenset[Flow]]:
        """The flows of a bridge by cookie; empty when there is no such bridge."""
        ...

    def add_port(self, port: Port) -> None:
        """Refused when the name is taken, or when the device or the number cannot be had."""
        ...

    def delete_port(self, name: str) -> None: ...

    def set_flows(self, bridge: str, cookie: int, flows: frozenset[Flow]) -> None:
        """Replace all flows with `cookie` by `flows`, in one bundle: no packet sees half of it."""
        ...


class PortAspect:
    name = "port"

    def __init__(self, switch: Switch) -> None:
        self._switch = switch

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        network = wanted.network
        flows = self._switch.flows(network.bridge).get(cookie_of(network.index), frozenset())
        return plan(network, self._switch.port(network.tap), flows, self._switch)

    def to_remove(self, gone: SliceNetwork) -> tuple[Step, ...]:
        steps: tuple[Step, ...] = ()
        if cookie_of(gone.index) in self._switch.flows(gone.bridge):
            steps += (_delete_flows(gone, self._switch),)
        if self._switch.port(gone.tap):
            steps += (Step("port.delete", lambda: self._switch.delete_port(gone.tap)),)
        return steps

    def remains(self, gone: SliceNetwork) -> tuple[str, ...]:
        port = self._switch.port(gone.tap)
        flows = self._switch.flows(gone.bridge).get(cookie_of(gone.index), frozenset())
        return (
            *((f"ovs port {port.name} on {port.bridge}",) if port else ()),
            *((f"{len(flows)} flows of {gone.tap} on {gone.bridge}",) if flows else ()),
        )

    to_stop, still_on = to_remove, remains


def plan(
    wanted: SliceNetwork, found: Port | None, flows: frozenset[Flow], switch: Switch
) -> tuple[Step, ...]:
    port, guards = Port(wanted.tap, wanted.bridge, port_number(wanted.index)), flows_of(wanted)
    if found == port:
        return () if flows == guards else (_set_flows(wanted, switch, _of_flows(guards, flows)),)
    differs = Difference("port.changed" if found else "port.absent", _words(port), _words(found))
    steps: tuple[Step, ...] = ()
    if flows:
        steps += (_delete_flows(wanted, switch, differs),)
    if found is not None:
        steps += (Step("port.delete", lambda: switch.delete_port(port.name), differs),)
    return (
        *steps,
        Step("port.add", lambda: switch.add_port(port), differs),
        _set_flows(wanted, switch, differs),
    )


def _set_flows(wanted: SliceNetwork, switch: Switch, differs: Difference) -> Step:
    cookie, flows = cookie_of(wanted.index), flows_of(wanted)
    return Step("port.set_flows", lambda: switch.set_flows(wanted.bridge, cookie, flows), differs)


def _delete_flows(gone: SliceNetwork, switch: Switch, differs: Difference | None = None) -> Step:
    cookie = cookie_of(gone.index)
    return Step("port.delete_flows", lambda: switch.set_flows(gone.bridge, cookie, frozenset()), differs)


def _words(port: Port | None) -> str:
    return "no port" if port is None else f"port {port.number} of {port.bridge} on {port.name}"


def _of_flows(wanted: frozenset[Flow], found: frozenset[Flow]) -> Difference:
    missing, strange = len(wanted - found), len(found - wanted)
    found_words = f"{len(found)} flows, missing: {missing}, strange: {strange}"
    return Difference("port.flows", f"{len(wanted)} flows", found_words)
