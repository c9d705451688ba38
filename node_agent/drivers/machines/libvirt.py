"""Driver of libvirt: a connection pool with one call per connection at a time, and a deadline per call.

Each connection carries one call at a time and has no keepalive: with libvirt 9.0, a keepalive that closed a
connection while calls waited on it crashed the agent (SIGSEGV below virNetClientSendWithReply) as soon as libvirtd
hung. A hung call occupies its connection until libvirtd continues or exits; the next call uses another connection.
Domains belong to libvirtd and not to these connections, so they continue to run when the agent exits.
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
from node_agent.aspects.machine_plans import DomainState, FoundDomain, FoundProcess
from node_agent.drivers.deadlines import Call, DeadlineExceeded, Deadlines
from node_agent.drivers.machines.domain_xml import (
    NotAGuest,
    domain_xml,
    guest_in,
    interfaces_in,
    pci_devices_in,
)
from node_agent.drivers.machines.libvirt_console import (
    LibvirtConsole,
    open_console,
    open_display,
)
from node_agent.drivers.machines.libvirt_events import DomainWatch, run_event_loop
from node_agent.drivers.machines.qemu import QemuProcesses, continue_process, end_process
from node_agent.drivers.machines.qemu_view import foreign_devices, parsed
from node_agent.drivers.machines.socket_console import SocketConsole, connect_to_ssh
from node_agent.host.guests import Guest, Hosting
from node_agent.host.slices import HostRefused, HostUnreadable, SliceNetwork
from node_agent.host.snapshots import invalidate_reads

log = structlog.get_logger(__name__)
T = TypeVar("T")

# libvirt-python has no type annotations, so its objects are Any; they are used only in this module.
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
"""libvirt error codes which show that the domain has ended since it was observed, or is no longer in the observed
state.
"""
_HARMLESS: Final = frozenset({"tainted: running with undesirable elevated privileges"})
"""Taint messages of an unaltered domain: QEMU runs as root. Any other message, for example that monitor commands were
issued, causes a query of QEMU's devices."""
_KILLED: Final = re.compile(
    r"(process exited while connecting to monitor|qemu unexpectedly closed the monitor)( \(vm='[^']*'\))?",
    re.IGNORECASE,
)
"""Complete libvirt error message of a QEMU that was killed during its start. If QEMU exits by itself, its own error
output follows after a colon."""
_UNDEFINE: Final = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
)


class LibvirtHypervisor:
    """Implementation of `node_agent.aspects.hypervisors.Hypervisor` by libvirt.

    `changed` is called from a separate thread when a domain may have ended or changed; it must return at once.
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
        self._uri, self._pool = uri, _ConnectionPool(uri)
        self._watch = DomainWatch(uri, changed)
        self._processes = processes or QemuProcesses()

    def close(self) -> None:
        self._watch.stop()

    def domains(self) -> tuple[FoundDomain, ...]:
        with _domains_unreadable():
            return self._deadlines.within(self._read_seconds, self._list)

    def start_listing_domains(self) -> "DomainListing":
        """Start to list the domains of libvirt, without waiting for the result. Raises `HostUnreadable`."""
        with _domains_unreadable():
            return DomainListing(self._deadlines.begin(self._read_seconds, self._list))

    def processes(self) -> tuple[FoundProcess, ...]:
        return self._processes.all()

    def process(self, domain: FoundDomain) -> FoundProcess | None:
        tap = domain.guest.tap if domain.guest is not None else domain.name
        found = self._processes.of_guest(domain.name, tap)
        # A process that is stopped by a signal would not answer monitor commands.
        if found is None or found.frozen or not domain.tainted:
            return found
        return replace(found, foreign=(*found.foreign, *self._foreign_devices(domain)))

    def continue_process(self, process: FoundProcess) -> None:
        invalidate_reads()
        continue_process(process)

    def _foreign_devices(self, domain: FoundDomain) -> tuple[str, ...]:
        def query(connection: Connection) -> tuple[str, ...]:
            own = _by_uuid(connection, domain.uuid)
            return tuple(foreign_devices(own.XMLDesc(), lambda *words: _monitor(own, *words)))

        try:
            return self._deadlines.within(self._read_seconds, lambda: self._call(query))
        except (DeadlineExceeded, libvirt.libvirtError) as error:
            # The domain has ended or is busy. The next survey queries it again, and nothing else depends on the result.
            log.warning("qemu_monitor_query_failed", machine=domain.name, reason=str(error))
            return ()

    def start(self, guest: Guest, hosting: Hosting) -> None:
        xml = domain_xml(guest, hosting)
        self._change(f"start {guest.name}", lambda connection: _start(connection, guest.name, xml))

    def shut_down(self, domain: UUID) -> None:
        self._change(
            f"shut down {domain}", lambda connection: _by_uuid(connection, domain).shutdown(), done=_PAST
        )

    def resume(self, domain: UUID) -> None:
        # If libvirtd dies during the start of a domain, it reports that domain as paused after its restart and then
        # ends it.
        self._change(
            f"resume {domain}", lambda connection: _by_uuid(connection, domain).resume(), stale=_PAST
        )

    def pin(self, domain: UUID, pins: tuple[str, ...]) -> None:
        self._change(f"pin {domain}", lambda connection: _pin(connection, domain, pins), stale=_PAST)

    def destroy(self, domain: UUID) -> None:
        # A transient domain disappears with its process, which may happen at any moment.
        self._change(f"destroy {domain}", lambda connection: _destroy(connection, domain), done=_GONE)

    def open_console(self, domain: UUID) -> LibvirtConsole:
        try:
            return self._deadlines.within(self._read_seconds, lambda: open_console(self._uri, domain))
        except DeadlineExceeded as overdue:
            raise HostUnreadable(f"libvirt cannot open the console of {domain}: {overdue}") from overdue

    def open_display(self, domain: UUID) -> SocketConsole:
        try:
            return self._deadlines.within(self._read_seconds, lambda: open_display(self._uri, domain))
        except DeadlineExceeded as overdue:
            raise HostUnreadable(f"libvirt cannot open the display of {domain}: {overdue}") from overdue

    def open_ssh(self, domain: UUID, network: SliceNetwork) -> SocketConsole:
        return connect_to_ssh(domain, network)

    def end(self, process: FoundProcess) -> None:
        invalidate_reads()
        end_process(process)

    def _change(
        self,
        operation: str,
        call: Callable[[Connection], object],
        *,
        stale: frozenset[int] = frozenset(),
        done: frozenset[int] = frozenset(),
    ) -> None:
        """Execute a libvirt call that changes a domain. Raises `HostRefused`, `HostUnreadable`.

        Libvirt error codes in `stale` mean that the observed state is outdated (`HostUnreadable`); codes in `done`
        count as success.
        """
        try:
            self._deadlines.within(self._change_seconds, lambda: self._call(call))
        except DeadlineExceeded as overdue:
            raise HostUnreadable(f"libvirt cannot {operation}: {overdue}") from overdue
        except libvirt.libvirtError as error:
            if error.get_error_code() in done:
                return
            past = error.get_error_code() in stale
            error_type = HostUnreadable if past or _is_inconclusive(error) else HostRefused
            raise error_type(f"libvirt cannot {operation}: {error}") from error
        finally:
            invalidate_reads()

    def _list(self) -> tuple[FoundDomain, ...]:
        return self._call(lambda connection: tuple(_listed(connection)))

    def _call(self, call: Callable[[Connection], T]) -> T:
        with self._pool.borrow() as connection:
            return call(connection)


@dataclass(frozen=True, slots=True)
class DomainListing:
    """A started request for libvirt's list of domains. Implements `node_agent.host.snapshots.StartedRead`."""

    call: Call[tuple[FoundDomain, ...]]

    def answer(self) -> tuple[FoundDomain, ...]:
        """Wait for libvirt's list of domains and return it. Raises `HostUnreadable`."""
        with _domains_unreadable():
            return self.call.result()

    def end(self) -> None:
        """Do nothing: a started call keeps its thread until libvirtd answers or exits."""


class _ConnectionPool:
    """Pool of idle connections to libvirt. It never holds more connections than calls that ran concurrently."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._idle: SimpleQueue[Connection] = SimpleQueue()

    @contextmanager
    def borrow(self) -> Iterator[Connection]:
        connection = self._take_idle() or self._open()
        try:
            yield connection
        finally:
            if connection.isAlive():
                self._idle.put(connection)

    def _take_idle(self) -> Connection | None:
        try:
            while not (connection := self._idle.get_nowait()).isAlive():
                continue
        except Empty:
            return None
        return connection

    def _open(self) -> Connection:
        return libvirt.open(self._uri)


@contextmanager
def _domains_unreadable() -> Iterator[None]:
    try:
        yield
    except (DeadlineExceeded, libvirt.libvirtError) as error:
        raise HostUnreadable(f"libvirt cannot list domains: {error}") from error


def _start(connection: Connection, name: str, xml: str) -> None:
    try:
        connection.createXML(xml, libvirt.VIR_DOMAIN_START_VALIDATE)
    except libvirt.libvirtError as error:
        if not _KILLED.fullmatch(error.get_str2() or ""):
            raise
        # QEMU was killed while libvirt started it, which would fail a slice without a fault of its own. The start is
        # repeated only once: if QEMU is killed again, the cause is permanent, and the error is reported.
        log.warning("qemu_was_killed_while_it_started", machine=name, reason=str(error))
        connection.createXML(xml, libvirt.VIR_DOMAIN_START_VALIDATE)


def _is_inconclusive(error: libvirt.libvirtError) -> bool:
    # The connection was lost, or another change of this domain takes too long. The change may or may not have taken
    # effect. Only a new read of the host shows that, so this is not a refusal.
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
            continue  # ended since it was listed
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
    request = json.dumps({"execute": command, "arguments": arguments})
    return parsed(libvirt_qemu.qemuMonitorCommand(domain, request, 0))


# Every survey parses the same domains.
@lru_cache(maxsize=MAX_SLOTS)
def _parts(xml: str) -> tuple[Guest | None, tuple[str, ...], tuple[PciAddress, ...]]:
    """Return the guest of a domain, its links and MAC addresses, and its PCI functions.

    The guest is None if the agent did not define the domain.
    """
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
        domain.undefineFlags(_UNDEFINE)
