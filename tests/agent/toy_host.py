"""In-memory host for tests of the order processing.

Each slot has five aspects: link, lease (DHCP), port (OVS), translation (of addresses) and machine. An aspect is one
object, present or absent. A test can make an aspect unreadable, refuse or delay a step, and make the guest
unresponsive. It counts the steps.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from events.values import AllocationId, IngressId, Ipv4Address, NetworkMode, SlotIndex
from node_agent.aspects.leases import LeaseState, ObservedAddress
from node_agent.host.device_facts import describe_device
from node_agent.host.host import (
    Answered,
    Console,
    ConsoleRefused,
    Host,
    NotYet,
    ObservedMachine,
    Prerequisite,
)
from node_agent.host.pci import PciDevice, PciDevices
from node_agent.host.reachability import Findings
from node_agent.host.slices import Difference, HostRefused, HostUnreadable, Slice, SliceNetwork, Step
from node_agent.host.snapshots import look
from tasks.orders import Mapping
from tasks.workflows import StepName

STEPS: dict[str, tuple[StepName, StepName]] = {
    "link": ("link.add_tap", "link.delete"),
    "lease": ("lease.reserve", "lease.withdraw"),
    "port": ("port.add", "port.delete"),
    "translation": ("translation.set_rules", "translation.delete_rules"),
    "machine": ("machine.start", "machine.destroy"),
}
REMOVAL_STEPS: Final = (
    "translation.delete_rules",
    "machine.destroy",
    "port.delete",
    "lease.withdraw",
    "link.delete",
)
"""The steps that remove a slice, in their order: the translation is deleted first."""
NO_PORT: Final = Difference("port.absent", "a port", "none")
"""Drift that a missing port causes; missing objects of the other aspects cause none."""


@dataclass
class Toy:
    objects: dict[tuple[str, int], str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    refused: dict[str, type[HostRefused]] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    undeletable: set[str] = field(default_factory=set)
    missing: tuple[str, ...] = ()
    unsupported_modes: dict[NetworkMode, str] = field(default_factory=dict)
    images: tuple[str, ...] = ("lab-guest",)
    pci: tuple[PciDevice, ...] = ()
    machine: ObservedMachine | None = None
    lease: LeaseState = "bound"
    address: Ipv4Address | None = None
    silent: bool = False
    reverted_ingress: set[IngressId] = field(default_factory=set)
    """Ingress rules that another program deletes as soon as they are created."""
    foreign_rule: str = ""
    """Description of a foreign rule that leads to the slice and that no step can delete; empty if there is none."""
    ignores_shutdown: bool = False
    """Whether the guest ignores a shutdown request."""
    paused: bool = False
    """Whether the guest is paused, so that it cannot receive a shutdown request."""
    watched: dict[SlotIndex, Slice] = field(default_factory=dict)
    """Slices with active reachability probes, by slot."""
    findings: Findings = field(default_factory=lambda: {None: None})
    slow: dict[str, threading.Event] = field(default_factory=dict)
    begun: threading.Event = field(default_factory=threading.Event)
    survey_blocks_until: threading.Event | None = None
    gateway_read_blocks_until: threading.Event | None = None
    hangs: threading.Event = field(default_factory=threading.Event)
    before_second_read: Callable[[], object] = lambda: None
    """Function that is called between the first and the second read of the host."""
    reads_per_snapshot: list[int] = field(default_factory=list)
    """Number of real reads of each caller that reads one value twice: 1 within a host snapshot."""

    def counts(self) -> Counter[str]:
        return Counter(self.done)

    def kinds(self, index: int = 0) -> set[str]:
        return {kind for kind, slot in self.objects if slot == index}

    def host(self) -> Host:
        return Host(
            aspects=tuple(ToyAspect(name, self) for name in STEPS),
            gateway=ToyGateway(self),
            observe_address=self.observe,
            probe=self.probe,
            reachability=ToyReachability(self),
            images=lambda: self.images,
            devices=lambda: (),
            absent_devices=lambda: (),
            pci_devices=self.pci_devices,
            read_device_health=lambda _: (),
            describe_devices=lambda found: {
                ("gpu", each.address): describe_device("gpu", each.address, found, {}) for each in found
            },
            check_machines=lambda: None,
            inspect_machine=self.inspect,
            serial_log=lambda _slot, _allocation, _most: None,
            delete_expired_logs=lambda: None,
            open_console=no_console,
            open_display=no_console,
            open_ssh=no_console,
            runs=self.runs,
            to_shut_down=self.to_shut_down,
            start_reading=self.start_reading,
            listen=lambda: None,
            close=lambda: None,
        )

    def start_reading(self) -> None:
        reads = list[int]()
        for _ in range(2):
            look(("toy", "reads_per_snapshot"), lambda: reads.append(1))
        self.reads_per_snapshot.append(len(reads))
        self.before_second_read()

    def pci_devices(self) -> PciDevices:
        if "pci" in self.unreadable:
            raise HostUnreadable("PCI devices: Input/output error")
        return PciDevices(self.pci)

    def inspect(self, network: SliceNetwork) -> ObservedMachine | None:
        if self.machine is not None or ("machine", network.index) not in self.objects:
            return self.machine
        return ObservedMachine("running", 1, 96)

    def runs(self, network: SliceNetwork) -> bool:
        return ("machine", int(network.index)) in self.objects

    def to_shut_down(self, network: SliceNetwork) -> tuple[Step, ...]:
        key = ("machine", int(network.index))
        if key not in self.objects or self.paused:
            return ()

        def shut_down() -> None:
            self.do("machine.shut_down")
            if not self.ignores_shutdown:
                del self.objects[key]

        return (Step("machine.shut_down", shut_down),)

    def observe(self, network: SliceNetwork) -> ObservedAddress:
        if ("machine", network.index) not in self.objects:
            return ObservedAddress(None, "none")
        return ObservedAddress(self.address or network.ip, self.lease)

    def probe(self, address: Ipv4Address, port: int, banner: str) -> Answered | NotYet:
        return NotYet("connection refused") if self.silent else Answered(f"{banner}2.0-toy")

    def do(self, step: str) -> None:
        self.begun.set()
        if step in self.slow:
            assert self.slow[step].wait(10)
        if step in self.refused:
            raise self.refused[step](f"{step} is refused by the test")
        self.done.append(step)


@dataclass
class ToyReachability:
    toy: Toy

    def watch(self, wanted: Slice, port: int) -> None:
        self.toy.watched[wanted.network.index] = wanted

    def leave(self, slot: SlotIndex) -> None:
        self.toy.watched.pop(slot, None)

    def findings(self, wanted: Slice, port: int) -> Findings:
        return self.toy.findings if wanted.network.index in self.toy.watched else {}


@dataclass
class ToyAspect:
    name: str
    toy: Toy

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        if self.name != "translation":
            inside = replace(wanted, ingress=(), ingress_changed=False)
            return self._to_create(wanted.network, wanted.network if self.name == "lease" else inside)
        steps = self._to_create(wanted.network, replace(wanted, ingress_changed=False))
        maps = (self._to_map(rule) for rule in wanted.ingress if rule.ingress_id in self.toy.reverted_ingress)
        return (*self._to_unmap(), *steps, *maps)

    def to_stop(self, stopped: SliceNetwork) -> tuple[Step, ...]:
        return self._to_create(stopped, stopped) if self.name == "lease" else self.to_remove(stopped)

    def still_on(self, stopped: SliceNetwork) -> tuple[str, ...]:
        return () if self.name == "lease" else self.remains(stopped)

    def to_remove(self, gone: SliceNetwork) -> tuple[Step, ...]:
        self._read()
        if (self.name, int(gone.index)) not in self.toy.objects:
            return ()

        def delete() -> None:
            self.toy.do(STEPS[self.name][1])
            if self.name not in self.toy.undeletable:
                del self.toy.objects[self.name, int(gone.index)]

        return (Step(STEPS[self.name][1], delete),)

    def remains(self, gone: SliceNetwork) -> tuple[str, ...]:
        self._read()
        return (f"{self.name} of {gone.tap}",) if (self.name, int(gone.index)) in self.toy.objects else ()

    def _to_create(self, network: SliceNetwork, wanted: Slice | SliceNetwork) -> tuple[Step, ...]:
        self._read()
        key, content = (self.name, int(network.index)), repr(wanted)
        if self.toy.objects.get(key) == content:
            return ()

        def create() -> None:
            self.toy.do(STEPS[self.name][0])
            self.toy.objects[key] = content

        return (Step(STEPS[self.name][0], create, NO_PORT if self.name == "port" else None),)

    def _to_unmap(self) -> tuple[Step, ...]:
        if not self.toy.foreign_rule:
            return ()
        differs = Difference("ingress.foreign", "nothing else", self.toy.foreign_rule)
        return (Step("translation.unmap", lambda: self.toy.do("translation.unmap"), differs),)

    def _to_map(self, rule: Mapping) -> Step:
        differs = Difference("ingress.changed", "its rules", "none", rule.ingress_id)
        return Step("translation.map", lambda: self.toy.do("translation.map"), differs)

    def _read(self) -> None:
        if self.name in self.toy.unreadable:
            raise HostUnreadable(f"{self.name} does not answer")


@dataclass
class ToyGateway:
    toy: Toy

    def to_apply(self) -> tuple[Step, ...]:
        if self.toy.gateway_read_blocks_until is not None:
            self.toy.hangs.set()
            assert self.toy.gateway_read_blocks_until.wait(30)
        return ()

    def mirrored(self) -> dict[SlotIndex, Difference]:
        return {}

    def lost(self) -> tuple[Difference, ...]:
        return ()

    def missing(self) -> tuple[str, ...]:
        if self.toy.survey_blocks_until is not None:
            self.toy.hangs.set()
            assert self.toy.survey_blocks_until.wait(30)
        return self.toy.missing

    def unsupported_modes(self) -> dict[NetworkMode, str]:
        return dict(self.toy.unsupported_modes)

    def prerequisites(self) -> tuple[Prerequisite, ...]:
        return tuple(Prerequisite("toy", ok=False, detail=words) for words in self.toy.missing)


def no_console(_slot: SliceNetwork, _allocation: AllocationId) -> Console:
    raise ConsoleRefused("machine_not_running", "the toy host has no consoles")
