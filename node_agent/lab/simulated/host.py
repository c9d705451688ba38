"""A host that exists in memory: what the simulated drivers change, and what outlives the agent when given a file.

One lock for all of it, as a kernel has for its tables. With a path, every change is written out before the driver
returns (a draft that is then renamed), so that an agent killed at any moment leaves a host as real ones do, and
the next agent, or a leak checker, finds it. It holds what is there, never what is wanted.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from events.values import Ipv4Address
from node_agent.flows import Flow
from node_agent.foreign_rules import ForeignTable
from node_agent.gateway import Bridge, GatewayLink, NodeNetwork, Uplink
from node_agent.leases import LeaseSeen, Reservation
from node_agent.links import DEFAULT_MTU, OtherLink, Representor, Tap
from node_agent.looks import look_again
from node_agent.machine_plans import FoundDomain, FoundProcess
from node_agent.mappings import Connection
from node_agent.meters import Meter
from node_agent.pci import PciDevice
from node_agent.ports import Port, Switching
from node_agent.routing import ANYWHERE, DEFAULT, LOCAL, MAIN, Neighbour, PolicyRule, Route
from node_agent.rules import Chain, FoundRule
from node_agent.xfrm import XfrmPolicy

GATEWAY_OF_UPLINK: Final = Ipv4Address("198.51.100.1")
USUAL_RULES: Final = (
    PolicyRule(0, table=LOCAL),
    PolicyRule(32766, table=MAIN),
    PolicyRule(32767, table=DEFAULT),
)


class HeldFlow(msgspec.Struct, frozen=True):
    """A flow on a bridge under a cookie."""

    bridge: str
    cookie: int
    flow: Flow


class HeldMeter(msgspec.Struct, frozen=True):
    """A meter of a bridge."""

    bridge: str
    number: int
    meter: Meter


class HeldRepresentor(msgspec.Struct, frozen=True):
    """A representor under the kernel's number of it."""

    number: int
    link: Representor


class HeldNeighbour(msgspec.Struct, frozen=True):
    """A neighbour that a program set on a link."""

    link: str
    neighbour: Neighbour


class State(msgspec.Struct):
    """Everything on the host, in lists, as the file holds it. `disks` are files by their names below all slots.

    `carried` are taps that a machine holds; one that is deleted and made anew is held by nobody. `strays` are QEMU
    processes without a domain; `frozen` are domains whose process a signal stopped, and `foreign` is what a domain's
    process has that the domain does not show. `starts` counts the machines ever started in each place: no thing that a
    slice leaves behind, and what a double start shows in. `refuses_starts` is a fault of the host: the reason with
    which its hypervisor refuses to start any machine; None where it starts them.
    """

    taps: list[Tap] = []
    carried: list[str] = []
    others: list[OtherLink] = []
    representors: list[HeldRepresentor] = []
    ports: list[Port] = []
    flows: list[HeldFlow] = []
    meters: list[HeldMeter] = []
    reservations: list[Reservation] = []
    leases: list[LeaseSeen] = []
    nat: list[FoundRule] = []
    nat_others: list[str] = []
    domains: list[FoundDomain] = []
    strays: list[FoundProcess] = []
    frozen: list[str] = []
    foreign: dict[str, list[str]] = {}
    disks: list[str] = []
    pci: list[PciDevice] = []
    chains: list[Chain] = []
    bridges: list[Bridge] = []
    managers: list[str] = []
    switching: dict[str, Switching] = {}
    datapaths_missing: list[str] = []
    links: dict[str, GatewayLink] = {}
    uplinks: list[str] = []
    connections: list[Connection] = []
    foreign_tables: list[ForeignTable] = []
    policies: list[XfrmPolicy] = []
    forwards: bool = False
    not_forwarding: list[str] = []
    routes: list[Route] = []
    policy_rules: list[PolicyRule] = msgspec.field(default_factory=lambda: list(USUAL_RULES))
    neighbours: list[HeldNeighbour] = []
    silent: list[Ipv4Address] = []
    uplink: Uplink = Uplink("02:00:00:00:00:01", DEFAULT_MTU, arp=True)
    upper_links: list[str] = []
    dhcp: NodeNetwork | None = None
    foreign_files: list[str] = []
    foreign_servers: list[str] = []
    starts: dict[str, int] = {}
    refuses_starts: str | None = None


def links_of(state: State) -> list[Tap | OtherLink]:
    representors = (OtherLink(each.link.name, "unnamed") for each in state.representors)
    return [*state.taps, *state.others, *representors]


Noted = Callable[[str, str], None]
"""Hears each effect of a driver (`machine.start`) and whose it was; called under the host's lock."""


def unnoted(_effect: str, _of: str) -> None:
    """Nobody counts."""


class SimulatedHost:
    """`with host.look() as state` reads, `with host.change(effect, of) as state` changes and writes out.

    A change that raises is not undone: a driver refuses before it touches anything. `uplink` has a default route. What
    others than drivers do to the host is no effect.
    """

    def __init__(self, path: Path | None = None, uplink: str = "uplink0", noted: Noted = unnoted) -> None:
        self._path, self._turn, self._noted = path, threading.RLock(), noted
        world = Route("unicast", ANYWHERE, links=(uplink,), gateways=(GATEWAY_OF_UPLINK,))
        self._state = State(uplinks=[uplink], routes=[world])
        if path is not None and path.exists():
            self._state = msgspec.json.decode(path.read_bytes(), type=State)

    @contextmanager
    def look(self) -> Iterator[State]:
        with self._turn:
            yield self._state

    @contextmanager
    def change(self, effect: str | None = None, of: str = "") -> Iterator[State]:
        look_again()
        with self._turn:
            yield self._state
            self._write()
            if effect is not None:
                self._noted(effect, of)

    def _write(self) -> None:
        if self._path is None:
            return
        draft = self._path.with_suffix(".draft")
        # Sets in an order of their own, or two agents would write the same host differently, and that looks like a
        # leak.
        draft.write_bytes(msgspec.json.encode(self._state, order="deterministic"))
        draft.rename(self._path)
