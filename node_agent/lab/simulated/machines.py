"""The hypervisor and the disks of the simulated host, and guests that answer once they have booted.

A guest boots by being looked at: when its time has come, a probe has it ask for its address and answer, so that
a fleet of thousands needs no thread or timer of its own. A guest that an earlier agent started is taken to
have booted meanwhile; the host's file does not hold when it was born.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from uuid import UUID

from events.values import Ipv4Address
from node_agent.guests import Guest, Hosting
from node_agent.host import Answered, NotYet
from node_agent.lab.simulated.dhcp import ask_for_lease
from node_agent.lab.simulated.host import SimulatedHost, State
from node_agent.looks import look
from node_agent.machine_plans import DomainState, FoundDomain, FoundProcess
from node_agent.settings import SimulatedImage
from node_agent.slices import HostRefused, HostUnreadable


class SimulatedHypervisor:
    """`node_agent.hypervisors.Hypervisor`. A domain's process is as real as the domain, and dies with it.

    `changed` is called when a domain ended, was pinned, or was altered by another program.
    """

    def __init__(self, host: SimulatedHost, changed: Callable[[], None], boot_seconds: float) -> None:
        self._host, self._changed, self._boot_seconds = host, changed, boot_seconds
        self._born: dict[UUID, float] = {}

    def domains(self) -> tuple[FoundDomain, ...]:
        with self._host.look() as state:
            return tuple(state.domains)

    def processes(self) -> tuple[FoundProcess, ...]:
        with self._host.look() as state:
            living = [_process(domain) for domain in state.domains if domain.state != "stopped"]
            return (*living, *state.strays)

    def process(self, domain: FoundDomain) -> FoundProcess | None:
        with self._host.look() as state:
            if domain.uuid not in [each.uuid for each in state.domains]:
                return None
            frozen, foreign = domain.name in state.frozen, tuple(state.foreign.get(domain.name, ()))
            return replace(_process(domain), frozen=frozen, foreign=foreign)

    def continue_process(self, process: FoundProcess) -> None:
        with self._host.change("machine.resume", process.name) as state:
            state.frozen = [each for each in state.frozen if each != process.name]

    def extend(self, domain: UUID, foreign: str) -> None:
        """Add something to the domain's process that the domain does not show, as an operator can by the monitor."""
        with self._host.change() as state:
            state.foreign |= {each.name: [foreign] for each in state.domains if each.uuid == domain}

    def start(self, guest: Guest, hosting: Hosting) -> None:
        with self._host.change("machine.start", str(guest.uuid)) as state:
            refusal = _refusal(state, guest, hosting)
            if refusal is not None:
                raise HostRefused(f"start {guest.name}: {refusal}")
            taps = () if guest.place.vf is not None else (guest.tap,)
            interfaces = (guest.mac, *taps)
            devices = tuple(sorted(guest.place.addresses))
            domain = FoundDomain(guest.name, guest.uuid, "running", guest, interfaces, devices)
            state.domains.append(domain)
            state.disks = sorted({*state.disks, str(hosting.console)})
            state.carried = sorted({*state.carried, *taps})
            state.starts[guest.name] = state.starts.get(guest.name, 0) + 1
            self._born[guest.uuid] = monotonic()

    def resume(self, domain: UUID) -> None:
        if not any(each.uuid == domain and each.state == "paused" for each in self.domains()):
            raise HostUnreadable(f"resume {domain}: it is not paused any more")
        self._set_state(domain, "running")

    def pause(self, domain: UUID) -> None:
        """As an operator may, behind the agent's back."""
        self._set_state(domain, "paused")

    def freeze(self, domain: UUID, *, frozen: bool = True) -> None:
        """Stop the domain's process by a signal, or have it go on, as an operator may."""
        with self._host.change() as state:
            names = {each.name for each in state.domains if each.uuid == domain}
            state.frozen = sorted({*state.frozen} | names if frozen else {*state.frozen} - names)
        self._changed()

    def alter(self, domain: UUID, *strange: str) -> None:
        """As an operator may, too: from now on it is or has that beside what was written for it."""
        with self._host.change() as state:
            state.domains = [
                _altered(each, strange) if each.uuid == domain else each for each in state.domains
            ]
        self._changed()

    def pin(self, domain: UUID, pins: tuple[str, ...]) -> None:
        with self._host.change("machine.pin", str(domain)) as state:
            if domain not in [each.uuid for each in state.domains]:
                raise HostUnreadable(f"pin {domain}: it runs no more")
            state.domains = [_pinned(each, pins) if each.uuid == domain else each for each in state.domains]
        self._changed()

    def shut_down(self, domain: UUID) -> None:
        self._end("machine.shut_down", domain, {"running"})

    def destroy(self, domain: UUID) -> None:
        self._end("machine.destroy", domain, {"running", "paused", "stopped"})

    def end(self, process: FoundProcess) -> None:
        with self._host.change("machine.end", process.name) as state:
            state.strays = [each for each in state.strays if each != process]
        for domain in self.domains():
            if _process(domain) == process:
                self.destroy(domain.uuid)

    def has_booted(self, domain: FoundDomain) -> bool:
        born = self._born.get(domain.uuid)
        return domain.state == "running" and (born is None or monotonic() >= born + self._boot_seconds)

    def _end(self, effect: str, uuid: UUID, found: set[DomainState]) -> None:
        with self._host.change(effect, str(uuid)) as state:
            ended = [each for each in state.domains if each.uuid == uuid and each.state in found]
            state.domains = [each for each in state.domains if each not in ended]
            state.frozen = [name for name in state.frozen if name not in {each.name for each in ended}]
            let_go = {name for each in ended for name in each.interfaces}
            state.carried = [each for each in state.carried if each not in let_go]
            for each in ended:
                state.foreign.pop(each.name, None)
        if uuid not in [each.uuid for each in self.domains()]:
            self._born.pop(uuid, None)
        self._changed()

    def _set_state(self, uuid: UUID, to: DomainState) -> None:
        with self._host.change("machine.set", str(uuid)) as state:
            if uuid not in [each.uuid for each in state.domains]:
                raise HostRefused(f"no domain {uuid}")
            state.domains = [replace(each, state=to) if each.uuid == uuid else each for each in state.domains]


class SimulatedDisks:
    """`node_agent.hypervisors.Disks`. Only names: what a file holds matters to nobody here."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def path(self, name: str) -> Path:
        return Path(name)

    def found(self, slot: str) -> tuple[str, ...]:
        inside = look((self, "disks"), self._by_slot).get(slot)
        return (slot, *(name for name in inside if name != slot)) if inside else ()

    def write(self, name: str, content: bytes) -> None:
        with self._host.change("disk.write", name) as state:
            if not content:
                raise HostRefused(f"file {name}: it would be empty")
            state.disks = sorted({*state.disks, name})

    def _by_slot(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        with self._host.look() as state:
            for name in state.disks:
                found.setdefault(name.partition("/")[0], []).append(name)
        return found

    def wipe(self, slot: str) -> None:
        with self._host.change("disk.wipe", slot) as state:
            state.disks = [name for name in state.disks if name.partition("/")[0] != slot]


class SimulatedProbe:
    """`node_agent.host.Probe`. A booted guest answers as its image does, at the address that DHCP gave it."""

    def __init__(
        self, host: SimulatedHost, hypervisor: SimulatedHypervisor, images: tuple[SimulatedImage, ...]
    ) -> None:
        self._host, self._hypervisor = host, hypervisor
        self._images = {image.name: image for image in images}

    def __call__(self, address: Ipv4Address, port: int, banner: str) -> Answered | NotYet:
        booted = [
            domain.guest for domain in self._hypervisor.domains() if self._hypervisor.has_booted(domain)
        ]
        leased = {ask_for_lease(self._host, guest.mac): guest.image for guest in booted if guest is not None}
        image = self._images.get(leased[address]) if address in leased else None
        if image is None:
            return NotYet(f"port {port} did not answer")
        if image.port != port:
            return NotYet(f"port {port}: Connection refused")
        if not image.says.startswith(banner):
            return NotYet(f"the port answered {image.says!r}, not {banner!r}")
        return Answered(image.says if banner else "")


def _refusal(state: State, guest: Guest, hosting: Hosting) -> str | None:
    if state.refuses_starts is not None:
        return state.refuses_starts
    if guest.name in [each.name for each in state.domains]:
        return f"domain {guest.name} exists already"
    if guest.uuid in [each.uuid for each in state.domains]:
        return f"UUID {guest.uuid} is another domain's"
    if str(hosting.seed) not in state.disks:
        return f"there is no file {hosting.seed}"
    return _tap_refused(state, guest) or _devices_refused(state, guest)


def _tap_refused(state: State, guest: Guest) -> str | None:
    tap = next((tap for tap in state.taps if tap.name == guest.tap), None)
    if guest.place.vf is not None:
        return None
    if tap is None:
        return f"there is no link {guest.tap}"
    if tap.many != (guest.place.queues > 1):
        return f"link {guest.tap} is of another mode"
    if any(guest.tap in each.interfaces for each in state.domains):
        return f"link {guest.tap} is busy"
    return None


def _devices_refused(state: State, guest: Guest) -> str | None:
    there, running = {each.address for each in state.pci}, [d for d in state.domains if d.state != "stopped"]
    for address in sorted(guest.place.addresses):
        if address not in there:
            return f"PCI device {address} is not there"
        if any(address in each.devices for each in running):
            return f"PCI device {address} is in use"
    return None


def _pinned(domain: FoundDomain, pins: tuple[str, ...]) -> FoundDomain:
    if domain.guest is None:
        return domain
    return replace(domain, guest=replace(domain.guest, place=replace(domain.guest.place, pins=pins)))


def _altered(domain: FoundDomain, strange: tuple[str, ...]) -> FoundDomain:
    if domain.guest is None:
        return domain
    return replace(domain, guest=replace(domain.guest, strange=(*domain.guest.strange, *strange)))


def _process(domain: FoundDomain) -> FoundProcess:
    return FoundProcess(domain.name, pid=domain.uuid.int % 2**22 + 1, started=0)
