"""The hypervisor through libvirt: kept connections, one call on each at a time, every call under a deadline.

One call at a time, and no keepalive on them: with libvirt 9.0, a keepalive that closed a connection while calls
waited on it crashed the process (SIGSEGV below virNetClientSendWithReply, at the first hung libvirtd). A call that
hangs keeps its connection to itself until libvirtd goes on or dies; the next call takes another. Domains belong to
libvirtd and not to these connections: nothing here ends with the agent.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar
from uuid import UUID

import libvirt
import libvirt_qemu
import structlog

from events.values import MAX_SLOTS, PciAddress
from node_agent.domain_xml import NotAGuest, domain_xml, guest_in, interfaces_in, pci_devices_in
from node_agent.drivers.deadlines import Call, Deadlines, Overdue
from node_agent.drivers.libvirt_events import DomainWatch, run_event_loop
from node_agent.drivers.qemu import QemuProcesses, continue_process, end_process
from node_agent.drivers.qemu_view import foreign_devices, parsed
from node_agent.guests import Guest, Hosting
from node_agent.looks import look_again
from node_agent.machine_plans import DomainState, FoundDomain, FoundProcess
from node_agent.slices import HostRefused, HostUnreadable

log = structlog.get_logger(__name__)
T = TypeVar("T")

# libvirt-python carries no types: its objects are Any, and only in this module.
Connection = Any
Domain = Any

_STATES: Final[dict[int, DomainState]] = {
    libvirt.VIR_DOMAIN_PAUSED: "paused",
    libvirt.VIR_DOMAIN_SHUTDOWN: "stopped",
    libvirt.VIR_DOMAIN_SHUTOFF: "stopped",
    libvirt.VIR_DOMAIN_CRASHED: "stopped",
}
_GONE: Final = frozenset({libvirt.VIR_ERR_NO_DOMAIN})
_PAST: Final = frozenset({libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID})
"""It ended since it was seen, or is not in the state that it was seen in."""
_HARMLESS: Final = frozenset({"tainted: running with undesirable elevated privileges"})
"""What libvirt notes of a domain that is as it was written: QEMU runs as root. Any other note, such as that monitor
commands were issued, has QEMU asked for what it has."""
_KILLED: Final = re.compile(
    r"(process exited while connecting to monitor|qemu unexpectedly closed the monitor)( \(vm='[^']*'\))?",
    re.IGNORECASE,
)
"""All that libvirt says of a QEMU that was killed while it was being started. One that ends of itself leaves words
behind it, and they follow here after a colon."""
_FORGET: Final = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
)


class LibvirtHypervisor:
    """`node_agent.hypervisors.Hypervisor`. `changed` is called, from a thread of its own, when a domain may have ended
    or have been changed; it must return at once.
    """

    def __init__(
        self,
        uri: str,
        changed: Callable[[], None],
        read_seconds: float = 5.0,
        change_seconds: float = 30.0,
        processes: QemuProcesses | None = None,
    ) -> None:
        run_event_loop()
        self._read_seconds, self._change_seconds = read_seconds, change_seconds
        self._deadlines = Deadlines()
        self._connections = _Connections(uri)
        self._watch = DomainWatch(uri, changed)
        self._processes = processes or QemuProcesses()

    def close(self) -> None:
        self._watch.stop()

    def domains(self) -> tuple[FoundDomain, ...]:
        with _domains_unreadable():
            return self._deadlines.within(self._read_seconds, self._list)

    def ask_domains(self) -> "AskedDomains":
        """Begin to list them; that waits for nothing. Raises `HostUnreadable`."""
        with _domains_unreadable():
            return AskedDomains(self._deadlines.begin(self._read_seconds, self._list))

    def processes(self) -> tuple[FoundProcess, ...]:
        return self._processes.all()

    def process(self, domain: FoundDomain) -> FoundProcess | None:
        tap = domain.guest.tap if domain.guest is not None else domain.name
        found = self._processes.of_guest(domain.name, tap)
        # One that is stopped would not answer.
        if found is None or found.frozen or not domain.tainted:
            return found
        return replace(found, foreign=(*found.foreign, *self._foreign_devices(domain)))

    def continue_process(self, process: FoundProcess) -> None:
        look_again()
        continue_process(process)

    def _foreign_devices(self, domain: FoundDomain) -> tuple[str, ...]:
        def ask(connection: Connection) -> tuple[str, ...]:
            own = _by_uuid(connection, domain.uuid)
            return tuple(foreign_devices(own.XMLDesc(), lambda *words: _monitor(own, *words)))

        try:
            return self._deadlines.within(self._read_seconds, lambda: self._call(ask))
        except (Overdue, libvirt.libvirtError) as error:
            # It ended meanwhile, or is busy: the next look asks again, and nothing else depends on it.
            log.warning("monitor_unanswered", machine=domain.name, reason=str(error))
            return ()

    def start(self, guest: Guest, hosting: Hosting) -> None:
        xml = domain_xml(guest, hosting)
        self._change(f"start {guest.name}", lambda connection: _start(connection, guest.name, xml))

    def shut_down(self, domain: UUID) -> None:
        self._change(
            f"shut down {domain}", lambda connection: _by_uuid(connection, domain).shutdown(), done=_PAST
        )

    def resume(self, domain: UUID) -> None:
        # A libvirtd that died in the middle of a start shows that machine paused when it comes back, and then ends it.
        self._change(
            f"resume {domain}", lambda connection: _by_uuid(connection, domain).resume(), stale=_PAST
        )

    def pin(self, domain: UUID, pins: tuple[str, ...]) -> None:
        self._change(f"pin {domain}", lambda connection: _pin(connection, domain, pins), stale=_PAST)

    def destroy(self, domain: UUID) -> None:
        # A transient domain is gone with its process, at any moment here.
        self._change(f"destroy {domain}", lambda connection: _destroy(connection, domain), done=_GONE)

    def end(self, process: FoundProcess) -> None:
        look_again()
        end_process(process)

    def _change(
        self,
        asked: str,
        call: Callable[[Connection], object],
        *,
        stale: frozenset[int] = frozenset(),
        done: frozenset[int] = frozenset(),
    ) -> None:
        """`stale` codes say no more than that what was seen is past; after those in `done` nothing is left to do."""
        try:
            self._deadlines.within(self._change_seconds, lambda: self._call(call))
        except Overdue as overdue:
            raise HostUnreadable(f"libvirt, {asked}: {overdue}") from overdue
        except libvirt.libvirtError as error:
            if error.get_error_code() in done:
                return
            past = error.get_error_code() in stale
            verdict = HostUnreadable if past or _is_no_answer(error) else HostRefused
            raise verdict(f"libvirt, {asked}: {error}") from error
        finally:
            look_again()

    def _list(self) -> tuple[FoundDomain, ...]:
        return self._call(lambda connection: tuple(_listed(connection)))

    def _call(self, call: Callable[[Connection], T]) -> T:
        with self._connections.one() as connection:
            return call(connection)


@dataclass(frozen=True, slots=True)
class AskedDomains:
    """`node_agent.looks.Begun`."""

    call: Call[tuple[FoundDomain, ...]]

    def answer(self) -> tuple[FoundDomain, ...]:
        """Raises `HostUnreadable`."""
        with _domains_unreadable():
            return self.call.result()

    def end(self) -> None:
        """It cannot be ended: it keeps its place until libvirtd answers or dies."""


class _Connections:
    """Connections that nobody uses just now. There are never more than calls that ran at once."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._idle: SimpleQueue[Connection] = SimpleQueue()

    @contextmanager
    def one(self) -> Iterator[Connection]:
        connection = self._kept() or self._opened()
        try:
            yield connection
        finally:
            if connection.isAlive():
                self._idle.put(connection)

    def _kept(self) -> Connection | None:
        try:
            while not (connection := self._idle.get_nowait()).isAlive():
                continue
        except Empty:
            return None
        return connection

    def _opened(self) -> Connection:
        return libvirt.open(self._uri)


@contextmanager
def _domains_unreadable() -> Iterator[None]:
    try:
        yield
    except (Overdue, libvirt.libvirtError) as error:
        raise HostUnreadable(f"libvirt, list domains: {error}") from error


def _start(connection: Connection, name: str, xml: str) -> None:
    try:
        connection.createXML(xml, libvirt.VIR_DOMAIN_START_VALIDATE)
    except libvirt.libvirtError as error:
        if not _KILLED.fullmatch(error.get_str2() or ""):
            raise
        # Somebody killed QEMU while libvirt was starting it, which would fail a slice that has nothing wrong with it.
        # Once: what is killed each time is no accident, and that is the refusal.
        log.warning("machine_killed_at_its_start", machine=name, reason=str(error))
        connection.createXML(xml, libvirt.VIR_DOMAIN_START_VALIDATE)


def _is_no_answer(error: libvirt.libvirtError) -> bool:
    # Lost on the way, or another change of this domain takes its time. The change may have been made or
    # may yet be: only a fresh look can tell, so this is no refusal.
    busy: bool = error.get_error_code() == libvirt.VIR_ERR_OPERATION_TIMEOUT
    lost: bool = error.get_error_domain() == libvirt.VIR_FROM_RPC
    return busy or lost


def _listed(connection: Connection) -> Iterator[FoundDomain]:
    for domain, stats in connection.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_STATE):
        try:
            xml, tainted = domain.XMLDesc(), _is_tainted(domain)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise
            continue  # ended while we looked
        guest, interfaces, devices = _parts(xml)
        yield FoundDomain(
            name=domain.name(),
            uuid=UUID(domain.UUIDString()),
            state=_STATES.get(stats["state.state"], "running"),
            guest=guest,
            interfaces=interfaces,
            devices=devices,
            tainted=tainted,
        )


def _is_tainted(domain: Domain) -> bool:
    return any(each not in _HARMLESS for each in domain.messages(libvirt.VIR_DOMAIN_MESSAGE_TAINTING))


def _monitor(domain: Domain, command: str, arguments: dict[str, str]) -> Any:
    asked = json.dumps({"execute": command, "arguments": arguments})
    return parsed(libvirt_qemu.qemuMonitorCommand(domain, asked, 0))


# A survey sees the same domains again and again.
@lru_cache(maxsize=MAX_SLOTS)
def _parts(xml: str) -> tuple[Guest | None, tuple[str, ...], tuple[PciAddress, ...]]:
    """What is ours, links and MACs, PCI functions."""
    try:
        guest = guest_in(xml)
    except NotAGuest:
        guest = None
    return guest, interfaces_in(xml), pci_devices_in(xml)


def _by_uuid(connection: Connection, uuid: UUID) -> Domain:
    return connection.lookupByUUIDString(str(uuid))


def _pin(connection: Connection, uuid: UUID, pins: tuple[str, ...]) -> None:
    domain, cpus = _by_uuid(connection, uuid), range(connection.getCPUMap()[0])
    for vcpu, cpu in enumerate(pins):
        domain.pinVcpu(vcpu, tuple(str(each) == cpu for each in cpus))


def _destroy(connection: Connection, uuid: UUID) -> None:
    domain = _by_uuid(connection, uuid)
    if domain.isActive():
        domain.destroy()
    if domain.isPersistent():
        domain.undefineFlags(_FORGET)
