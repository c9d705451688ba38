"""The hypervisor and the disks of the simulated host, and guests that answer after their boot time.

A guest has no thread or timer, so that thousands of guests can be simulated. Instead, a probe that arrives after the
boot time makes the guest request its address and answer. A guest that a previous agent started counts as booted,
because the state file does not contain start times.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from time import monotonic, time
from typing import Final
from uuid import UUID

from events.values import Ipv4Address
from node_agent.aspects.machine_plans import DomainState, FoundDomain, FoundProcess
from node_agent.host.guests import DiskBoot, Guest, Hosting
from node_agent.host.host import Answered, ConsoleRefused, NotYet
from node_agent.host.slices import HostRefused, HostUnreadable, SliceNetwork
from node_agent.host.snapshots import look
from node_agent.lab.simulated.dhcp import ask_for_lease
from node_agent.lab.simulated.display import SimulatedDisplay
from node_agent.lab.simulated.host import KeptLog, SimulatedHost, State
from node_agent.lab.simulated.ssh import SimulatedSsh
from node_agent.settings import SimulatedImage
from tasks.orders import RootDisk
from tasks.streams import KEPT_LOG_SECONDS

_LONGEST_LOG: Final = 64 * 1024
"""Maximum number of characters of a simulated log."""


class SimulatedHypervisor:
    """Simulated implementation of `node_agent.aspects.hypervisors.Hypervisor`.

    Every running domain has a simulated process, which ends with the domain. `changed` is called when a domain ended,
    when its vCPUs were pinned to CPUs, and when a test altered it as another program could.
    """

    def __init__(self, host: SimulatedHost, changed: Callable[[], None], boot_seconds: float) -> None:
        self._host, self._changed, self._boot_seconds = host, changed, boot_seconds
        self._started_at: dict[UUID, float] = {}
        self._consoles: dict[UUID, SimulatedConsole] = {}
        self._displays: dict[UUID, list[SimulatedDisplay | SimulatedSsh]] = {}
        self._consoles_lock = threading.Lock()

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

    def add_foreign_device(self, domain: UUID, foreign: str) -> None:
        """Add a device to a domain's QEMU process but not to its XML, as an operator can by QEMU's monitor."""
        with self._host.change() as state:
            state.foreign |= {each.name: [foreign] for each in state.domains if each.uuid == domain}

    def start(self, guest: Guest, hosting: Hosting) -> None:
        with self._host.change("machine.start", str(guest.uuid)) as state:
            refusal = _refusal(state, guest, hosting)
            if refusal is not None:
                raise HostRefused(f"cannot start domain {guest.name}: {refusal}")
            taps = () if guest.place.vf is not None else (guest.tap,)
            interfaces = (guest.mac, *taps)
            devices = tuple(sorted(guest.place.addresses))
            domain = FoundDomain(guest.name, guest.uuid, "running", guest, interfaces, devices)
            state.domains.append(domain)
            state.disks = sorted({*state.disks, str(hosting.console)})
            _log_boot(state, str(hosting.console), guest)
            state.carried = sorted({*state.carried, *taps})
            state.starts[guest.name] = state.starts.get(guest.name, 0) + 1
            self._started_at[guest.uuid] = monotonic()

    def resume(self, domain: UUID) -> None:
        if not any(each.uuid == domain and each.state == "paused" for each in self.domains()):
            raise HostUnreadable(f"cannot resume domain {domain}: the domain is no longer paused")
        self._set_state(domain, "running")

    def pause(self, domain: UUID) -> None:
        """Pause a simulated domain without the agent, as an operator can."""
        self._set_state(domain, "paused")

    def freeze(self, domain: UUID, *, frozen: bool = True) -> None:
        """Stop (`frozen`) or continue the process of a simulated domain, as an operator can by a signal."""
        with self._host.change() as state:
            names = {each.name for each in state.domains if each.uuid == domain}
            state.frozen = sorted({*state.frozen} | names if frozen else {*state.frozen} - names)
        self._changed()

    def alter(self, domain: UUID, *strange: str) -> None:
        """Alter a simulated domain as an operator can, without the agent: add `strange` to its foreign changes."""
        with self._host.change() as state:
            state.domains = [
                _altered(each, strange) if each.uuid == domain else each for each in state.domains
            ]
        self._changed()

    def pin(self, domain: UUID, pins: tuple[str, ...]) -> None:
        with self._host.change("machine.pin", str(domain)) as state:
            if domain not in [each.uuid for each in state.domains]:
                raise HostUnreadable(f"cannot pin the CPUs of domain {domain}: the domain no longer runs")
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

    def open_console(self, domain: UUID) -> "SimulatedConsole":
        running = [each for each in self.domains() if each.uuid == domain and each.state == "running"]
        if not running:
            raise ConsoleRefused("machine_not_running", f"domain {domain} does not run")
        with self._consoles_lock:
            if domain in self._consoles:
                raise ConsoleRefused("console_in_use", f"the console of domain {domain} is open already")
            console = self._consoles[domain] = SimulatedConsole(lambda: self._close_console(domain))
        guest = running[0].guest
        console.show(f"\r\n{'' if guest is None else guest.allocation_id} login: ".encode())
        return console

    def open_display(self, domain: UUID) -> SimulatedDisplay:
        running = [each for each in self.domains() if each.uuid == domain and each.state == "running"]
        if not running:
            raise ConsoleRefused("machine_not_running", f"domain {domain} does not run")
        display = SimulatedDisplay(running[0].name)
        with self._consoles_lock:
            self._displays.setdefault(domain, []).append(display)
        return display

    def open_ssh(self, domain: UUID, network: SliceNetwork) -> SimulatedSsh:
        running = [each for each in self.domains() if each.uuid == domain and each.state == "running"]
        if not running:
            raise ConsoleRefused("machine_not_running", f"domain {domain} does not run")
        guest = running[0].guest
        booted = guest is not None and self.has_booted(running[0])
        if guest is None or not booted or ask_for_lease(self._host, guest.mac) != network.ip:
            raise ConsoleRefused(
                "ssh_not_reachable", f"port 22 of domain {domain} at {network.ip}: no answer"
            )
        connection = SimulatedSsh()
        with self._consoles_lock:
            self._displays.setdefault(domain, []).append(connection)
        return connection

    def _close_console(self, domain: UUID) -> None:
        with self._consoles_lock:
            self._consoles.pop(domain, None)

    def has_booted(self, domain: FoundDomain) -> bool:
        started_at = self._started_at.get(domain.uuid)
        return domain.state == "running" and (
            started_at is None or monotonic() >= started_at + self._boot_seconds
        )

    def _end(self, effect: str, uuid: UUID, found: set[DomainState]) -> None:
        with self._host.change(effect, str(uuid)) as state:
            ended = [each for each in state.domains if each.uuid == uuid and each.state in found]
            state.domains = [each for each in state.domains if each not in ended]
            state.frozen = [name for name in state.frozen if name not in {each.name for each in ended}]
            released = {name for each in ended for name in each.interfaces}
            state.carried = [each for each in state.carried if each not in released]
            for each in ended:
                state.foreign.pop(each.name, None)
        if uuid not in [each.uuid for each in self.domains()]:
            self._started_at.pop(uuid, None)
            if (console := self._consoles.get(uuid)) is not None:
                console.close()
            with self._consoles_lock:
                displays = self._displays.pop(uuid, [])
            for display in displays:
                display.close()
        self._changed()

    def _set_state(self, uuid: UUID, to: DomainState) -> None:
        with self._host.change("machine.set", str(uuid)) as state:
            if uuid not in [each.uuid for each in state.domains]:
                raise HostRefused(f"domain {uuid} does not exist")
            state.domains = [replace(each, state=to) if each.uuid == uuid else each for each in state.domains]


class SimulatedConsole:
    """Simulated implementation of `node_agent.host.host.Console`. The guest echoes its input, as a login does."""

    def __init__(self, closed: Callable[[], None]) -> None:
        self._closed = closed
        self._output: SimpleQueue[bytes] = SimpleQueue()

    def show(self, output: bytes) -> None:
        self._output.put(output)

    def read(self) -> bytes:
        return self._output.get()

    def write(self, data: bytes) -> None:
        if data:
            self.show(data.replace(b"\r", b"\r\n"))

    def close(self) -> None:
        self._closed()
        self._output.put(b"")


class SimulatedDisks:
    """Simulated implementation of `node_agent.aspects.hypervisors.Disks`, which stores only the names of files."""

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
                raise HostRefused(f"cannot write file {name}: the content is empty")
            state.disks = sorted({*state.disks, name})

    def read_log(self, name: str, most: int) -> tuple[bytes, int]:
        with self._host.look() as state:
            content = state.logs.get(name, "").encode()
        return content[max(0, len(content) - most) :], len(content)

    def _by_slot(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        with self._host.look() as state:
            for name in state.disks:
                found.setdefault(name.partition("/")[0], []).append(name)
        return found

    def wipe(self, slot: str) -> None:
        with self._host.change("disk.wipe", slot) as state:
            state.disks = [name for name in state.disks if name.partition("/")[0] != slot]
            state.logs = {name: log for name, log in state.logs.items() if name.partition("/")[0] != slot}


class SimulatedKeptLogs:
    """Simulated implementation of `node_agent.aspects.hypervisors.KeptLogs`. `now` returns the time in seconds since
    1970.
    """

    def __init__(self, host: SimulatedHost, now: Callable[[], float] = time) -> None:
        self._host, self._now = host, now

    def keep(self, slot: str, guest: UUID, content: bytes, size: int) -> None:
        with self._host.change("log.keep", slot) as state:
            state.kept_logs[slot] = KeptLog(guest, content.decode(errors="replace"), size, self._now())

    def find(self, slot: str, guest: UUID, most: int) -> tuple[bytes, int] | None:
        with self._host.look() as state:
            kept = state.kept_logs.get(slot)
        if kept is None or kept.guest != guest or self._is_expired(kept):
            return None
        return kept.text.encode()[-most:], kept.size

    def delete_expired(self) -> None:
        with self._host.look() as state:
            expired = [slot for slot, kept in state.kept_logs.items() if self._is_expired(kept)]
        if expired:
            with self._host.change("log.delete", " ".join(expired)) as state:
                state.kept_logs = {
                    slot: kept for slot, kept in state.kept_logs.items() if not self._is_expired(kept)
                }

    def _is_expired(self, kept: KeptLog) -> bool:
        return self._now() - kept.kept_at >= KEPT_LOG_SECONDS


class SimulatedRootDisks:
    """Simulated implementation of `node_agent.aspects.hypervisors.RootDisks`, which stores only the names of files. Its
    image store has every image except those of an injected fault.
    """

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def found(self, slot: str) -> tuple[str, ...]:
        with self._host.look() as state:
            inside = [name for name in state.root_disks if name.partition("/")[0] == slot]
        return (slot, *inside) if inside else ()

    def fetch(self, disk: RootDisk) -> None:
        with self._host.look() as state:
            if disk.digest in state.absent_images:
                raise HostRefused(f"the image store does not have image {disk.digest}")

    def make(self, name: str, disk: RootDisk) -> None:
        self.fetch(disk)
        with self._host.change("root_disk.make", name) as state:
            state.root_disks = sorted({*state.root_disks, name})

    def wipe(self, slot: str) -> None:
        with self._host.change("root_disk.wipe", slot) as state:
            state.root_disks = [name for name in state.root_disks if name.partition("/")[0] != slot]

    def boot(self, name: str, disk: RootDisk) -> DiskBoot:
        return DiskBoot(Path(name))


class SimulatedProbe:
    """Simulated implementation of `node_agent.host.host.Probe`.

    A booted guest answers as configured for its image, at the address that it received by DHCP.
    """

    def __init__(
        self, host: SimulatedHost, hypervisor: SimulatedHypervisor, images: tuple[SimulatedImage, ...]
    ) -> None:
        self._host, self._hypervisor = host, hypervisor
        self._images = {image.name: image for image in images}

    def __call__(self, address: Ipv4Address, port: int, banner: str) -> Answered | NotYet:
        booted = [
            domain.guest for domain in self._hypervisor.domains() if self._hypervisor.has_booted(domain)
        ]
        leased = {ask_for_lease(self._host, guest.mac): guest for guest in booted if guest is not None}
        image = self._image_of(leased[address]) if address in leased else None
        if image is None:
            return NotYet(f"the readiness port {port} did not answer")
        if image.port != port:
            return NotYet(f"cannot connect to the readiness port {port}: Connection refused")
        if not image.banner.startswith(banner):
            return NotYet(f"the readiness port answered {image.banner!r}, not {banner!r}")
        return Answered(image.banner if banner else "")

    def _image_of(self, guest: Guest) -> SimulatedImage | None:
        """Return the settings that define how a guest answers, or None if it does not answer. A guest with a root disk
        answers as an SSH server, unless its image has settings.
        """
        usual = None if guest.root_disk is None else SimulatedImage(name=guest.image)
        return self._images.get(guest.image, usual)


def _log_boot(state: State, log: str, guest: Guest) -> None:
    """Append the serial output of a boot to a log, which is limited in size as virtlogd limits it."""
    output = f"Booting image {guest.image}\r\n{guest.allocation_id} login: \r\n"
    state.logs[log] = (state.logs.get(log, "") + output)[-_LONGEST_LOG:]


def _refusal(state: State, guest: Guest, hosting: Hosting) -> str | None:
    if state.refuses_starts is not None:
        return state.refuses_starts
    if guest.name in [each.name for each in state.domains]:
        return f"domain {guest.name} exists already"
    if guest.uuid in [each.uuid for each in state.domains]:
        return f"UUID {guest.uuid} belongs to another domain"
    if str(hosting.seed) not in state.disks:
        return f"file {hosting.seed} does not exist"
    if isinstance(hosting.boot, DiskBoot) and str(hosting.boot.root_disk) not in state.root_disks:
        return f"file {hosting.boot.root_disk} does not exist"
    return _tap_refused(state, guest) or _devices_refused(state, guest)


def _tap_refused(state: State, guest: Guest) -> str | None:
    tap = next((tap for tap in state.taps if tap.name == guest.tap), None)
    if guest.place.vf is not None:
        return None
    if tap is None:
        return f"link {guest.tap} does not exist"
    if tap.many != (guest.place.queues > 1):
        return f"link {guest.tap} has a different queue mode than the guest"
    if any(guest.tap in each.interfaces for each in state.domains):
        return f"link {guest.tap} is busy"
    return None


def _devices_refused(state: State, guest: Guest) -> str | None:
    present, running = (
        {each.address for each in state.pci},
        [d for d in state.domains if d.state != "stopped"],
    )
    for address in sorted(guest.place.addresses):
        if address not in present:
            return f"PCI device {address} does not exist"
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
