"""A simulated host in memory: the state that the simulated drivers change, optionally stored in a file.

A single lock protects the whole state. If the host has a state file, every change is written to the file before the
driver returns (to a temporary file that is then renamed). An agent that is killed at any moment therefore leaves the
state as a real host would keep it, and the next agent or a leak checker reads it. The state contains only observed
objects, never desired state.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from events.values import Ipv4Address, PciAddress
from node_agent.aspects.flows import Flow
from node_agent.aspects.gateway import Bridge, GatewayLink, NodeNetwork, Uplink
from node_agent.aspects.gpu_partitions import GpuPartition
from node_agent.aspects.ingress_rules import Connection
from node_agent.aspects.leases import ObservedLease, Reservation
from node_agent.aspects.links import DEFAULT_MTU, OtherLink, Representor, Tap
from node_agent.aspects.machine_plans import FoundDomain, FoundProcess
from node_agent.aspects.meters import Meter
from node_agent.aspects.ports import Port, Switching
from node_agent.host.pci import PciDevice
from node_agent.host.snapshots import invalidate_reads
from node_agent.packets.foreign_rules import ForeignTable
from node_agent.packets.routing import ANYWHERE, DEFAULT, LOCAL, MAIN, Neighbour, PolicyRule, Route
from node_agent.packets.rules import AddressTranslation, Chain, FoundRule
from node_agent.packets.xfrm import XfrmPolicy

GATEWAY_OF_UPLINK: Final = Ipv4Address("198.51.100.1")
USUAL_RULES: Final = (
    PolicyRule(0, table=LOCAL),
    PolicyRule(32766, table=MAIN),
    PolicyRule(32767, table=DEFAULT),
)


class HeldFlow(msgspec.Struct, frozen=True):
    """An OpenFlow flow of a simulated bridge, with its cookie."""

    bridge: str
    cookie: int
    flow: Flow


class HeldMeter(msgspec.Struct, frozen=True):
    """An OpenFlow meter of a simulated bridge, with its number."""

    bridge: str
    number: int
    meter: Meter


class HeldRepresentor(msgspec.Struct, frozen=True):
    """A simulated representor (switch port of a PCI virtual function), with its interface index."""

    number: int
    link: Representor


class HeldNeighbour(msgspec.Struct, frozen=True):
    """A static neighbour (ARP) entry of a simulated link."""

    link: str
    neighbour: Neighbour


class KeptLog(msgspec.Struct, frozen=True):
    """Serial log of a removed slice: the end of the guest's log, the size of the complete log, and the time at which it
    was kept, in seconds since 1970.
    """

    guest: UUID
    text: str
    size: int
    kept_at: float


class State(msgspec.Struct):
    """The complete state of a simulated host, in the form in which the state file stores it.

    `disks` are the names of the files in all slots, `logs` the content of the serial logs among them, and
    `root_disks` the names of the files of root disks. `kept_logs` are the logs of removed slices by slot, which leak
    checks ignore, because they belong to the node. `carried` are the taps that a machine has open; a tap that is
    deleted and created again is not open. `strays` are QEMU processes without a domain. `frozen` are the domains
    with a process that is stopped by a signal. `foreign` lists devices of a domain's process that are not in the
    domain's XML.

    `starts` counts all machine starts per name, so that tests can detect a double start; leak checks ignore it.
    `refuses_starts` is an injected fault: the reason with which the hypervisor refuses every start, or None.
    `refused_translations` are the kinds of address translation that its packet filter refuses, each with the reason.
    `absent_images` and `broken_devices` are injected faults too: the digests of the images that the image store does
    not have, and the PCI functions that do not respond.
    """

    taps: list[Tap] = []
    carried: list[str] = []
    others: list[OtherLink] = []
    representors: list[HeldRepresentor] = []
    ports: list[Port] = []
    flows: list[HeldFlow] = []
    meters: list[HeldMeter] = []
    reservations: list[Reservation] = []
    leases: list[ObservedLease] = []
    nat: list[FoundRule] = []
    nat_others: list[str] = []
    domains: list[FoundDomain] = []
    strays: list[FoundProcess] = []
    frozen: list[str] = []
    foreign: dict[str, list[str]] = {}
    disks: list[str] = []
    logs: dict[str, str] = {}
    kept_logs: dict[str, KeptLog] = {}
    root_disks: list[str] = []
    absent_images: list[str] = []
    pci: list[PciDevice] = []
    partitions: list[GpuPartition] = []
    broken_devices: list[PciAddress] = []
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
    refused_translations: dict[AddressTranslation, str] = {}


def links_of(state: State) -> list[Tap | OtherLink]:
    representors = (OtherLink(each.link.name, "unnamed") for each in state.representors)
    return [*state.taps, *state.others, *representors]


EffectListener = Callable[[str, str], None]
"""Function that is called after each change by a simulated driver, while the host's lock is held, with the name of the
change (`machine.start`) and of the changed object."""


def ignore_effect(_effect: str, _of: str) -> None:
    """Do nothing. This is the default for the listener that is called after each change of a simulated host."""


class SimulatedHost:
    """A simulated host: `with host.look() as state` reads it, `with host.change(effect, of) as state` changes it.

    A change that raises is not rolled back, so a driver must refuse before it changes anything. The link `uplink` has a
    default route. After each change by a driver, `on_effect` is called with the name of the change (`effect`) and of
    the changed object (`of`). A test that changes the host passes no `effect`; `on_effect` is then not called.
    """

    def __init__(
        self, path: Path | None = None, uplink: str = "uplink0", on_effect: EffectListener = ignore_effect
    ) -> None:
        self._path, self._lock, self._noted = path, threading.RLock(), on_effect
        default_route = Route("unicast", ANYWHERE, links=(uplink,), gateways=(GATEWAY_OF_UPLINK,))
        self._state = State(uplinks=[uplink], routes=[default_route])
        if path is not None and path.exists():
            self._state = msgspec.json.decode(path.read_bytes(), type=State)

    @contextmanager
    def look(self) -> Iterator[State]:
        with self._lock:
            yield self._state

    @contextmanager
    def change(self, effect: str | None = None, of: str = "") -> Iterator[State]:
        invalidate_reads()
        with self._lock:
            yield self._state
            self._write()
            if effect is not None:
                self._noted(effect, of)

    def _write(self) -> None:
        if self._path is None:
            return
        draft = self._path.with_suffix(".draft")
        # Deterministic order of sets, or two agents would write the same state differently, which looks like a leak.
        draft.write_bytes(msgspec.json.encode(self._state, order="deterministic"))
        draft.rename(self._path)
