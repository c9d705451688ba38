"""Lifecycle of the dnsmasq process: start it, detect its exit, and leave it running when the agent exits.

dnsmasq deliberately outlives the agent, so that guests can renew their leases while the agent restarts or is down. The
next agent finds the process by its command line. It adopts a process with the desired arguments and replaces any other.
Leases survive a replacement, because the lease file is on disk. At most one process runs: `serve` ends all others
first.

dnsmasq binds its socket to the bridge's device, so a device that was deleted and created again under the same name
needs a new dnsmasq. The interface index for which the process was started is stored in its environment.
"""

import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from time import monotonic
from typing import Final

import structlog

from node_agent.aspects.gateway import NodeNetwork
from node_agent.drivers.dhcp.dhcp_sockets import inodes_of, listening_inodes, owner_of
from node_agent.drivers.network.netlink import Refused
from node_agent.drivers.processes import PROC, is_frozen, is_still, own_processes
from node_agent.host.slices import HostRefused, HostUnreadable
from node_agent.runtime.backoff import Backoff

log = structlog.get_logger(__name__)

STABLE_SECONDS: Final = 10.0
"""Run time in seconds after which an exit of dnsmasq does not count as a failed start, so that the restart delay is
reset."""
_POLL_SECONDS: Final = 0.5
"""Seconds between two checks whether a signal has stopped dnsmasq, which the kernel reports only to the process's
parent."""
LINK: Final = "SLICEPLANE_LINK"
PORT: Final = ":0043"
"""UDP port 67 (DHCP server) in the hexadecimal notation of /proc/net/udp."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running dnsmasq process of the agent; `link` is the index of the bridge device for which it was started."""

    pid: int
    arguments: tuple[str, ...]
    link: str


class Dnsmasq:
    """The dnsmasq process that serves the reservations in `folder`.

    The user `dnsmasq` must be able to access `folder`. `link_number` returns the kernel's index of a device. `ended` is
    called when the process exits or is stopped by a signal, and repeatedly until another dnsmasq serves; it must return
    at once.
    """

    def __init__(
        self,
        folder: Path,
        link_number: Callable[[str], int | None],
        ended: Callable[[], None],
        deadline: float,
    ) -> None:
        self._folder, self._link_number, self._deadline = folder, link_number, deadline
        self._ended = ended
        self._lock = threading.RLock()
        self._monitored: int | None = None
        self._leaving = threading.Event()
        self._backoff = Backoff(first=0.1, cap=5.0)
        self._own_inodes = frozenset[int]()
        self._owners = dict[int, str]()

    def serves(self, network: NodeNetwork) -> bool:
        with self._lock:
            running = self.running()
            if len(running) != 1 or not self._matches(running[0], network):
                return False
            self._ensure_monitored(running[0].pid)
            return not is_frozen(running[0].pid)

    def serve(self, network: NodeNetwork) -> None:
        """Adopt a running dnsmasq with the desired arguments, or start one, and end all others.

        Raises `HostRefused`, `HostUnreadable`.
        """
        with self._lock:
            # A process stopped by a signal is replaced: a debugger may control it, and its sockets hold old requests.
            matching = (each for each in self.running() if self._matches(each, network))
            found = [each for each in matching if not is_frozen(each.pid)][:1]
            for each in self.running():
                if each not in found:
                    self._end(each.pid)
            if found:
                log.info("running_dnsmasq_adopted", pid=found[0].pid)
            self._ensure_monitored(found[0].pid if found else self._start(network))

    def foreign(self, network: NodeNetwork) -> tuple[str, ...]:
        """Describe other programs that receive DHCP requests on the bridge. Raises `HostUnreadable`."""
        device = self._link_number(network.bridge)
        if device is None:
            return ()
        subnet = IPv4Network(network.subnet)
        addresses = frozenset({network.gateway, str(subnet.broadcast_address), "255.255.255.255"})
        try:
            found = listening_inodes(device, addresses, self._deadline)
        except Refused as error:
            # The kernel has no sock_diag. A second server that answers requests is still detected by its leases.
            log.debug("listing_of_dhcp_sockets_unsupported_by_kernel", reason=str(error))
            return ()
        except OSError as error:
            raise HostUnreadable(f"cannot list sockets on port 67: {error}") from error
        if not found <= self._own_inodes:
            self._own_inodes = frozenset(inode for each in self.running() for inode in inodes_of(each.pid))
        foreign = sorted(found - self._own_inodes)
        # The search for an owner reads all processes of the host, so its result is kept.
        self._owners = {inode: self._owners.get(inode) or owner_of(inode) for inode in foreign}
        return tuple(self._owners.values())

    def reload(self) -> None:
        """Make dnsmasq reload its reservations (dnsmasq(8), SIGHUP)."""
        # Not during a start: SIGHUP ends a process that has not installed its signal handler yet.
        with self._lock:
            for each in self.running():
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGHUP)

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Keep this object from starting or ending dnsmasq during the `with` block; yield whether dnsmasq runs."""
        with self._lock:
            yield bool(self.running())

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend dnsmasq (SIGSTOP) during the `with` block. Raises `HostUnreadable`."""
        with self._lock:
            found = [each.pid for each in self.running()]
            try:
                for pid in found:
                    _suspend(pid, self._deadline)
                yield
            finally:
                for pid in found:
                    _continue(pid)

    def close(self) -> None:
        """Stop monitoring dnsmasq, which continues to answer DHCP requests."""
        self._leaving.set()

    def stop(self) -> None:
        """Stop monitoring dnsmasq, and end its process."""
        with self._lock:
            self.close()
            for each in self.running():
                self._end(each.pid)

    def running(self) -> tuple[Running, ...]:
        return tuple(_found(f"--dhcp-leasefile={self._folder / 'leases'}"))

    def _matches(self, found: Running, network: NodeNetwork) -> bool:
        desired = (self._arguments(network), str(self._link_number(network.bridge)))
        return (found.arguments, found.link) == desired

    def _start(self, network: NodeNetwork) -> int:
        number = self._link_number(network.bridge)
        if number is None:
            raise HostRefused(f"cannot start dnsmasq: link {network.bridge} does not exist")
        try:
            child = subprocess.Popen(
                self._arguments(network),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", os.defpath), LINK: str(number)},
                # A separate session, so that an interrupt of the agent at a terminal does not end DHCP.
                start_new_session=True,
            )
        except OSError as error:
            raise HostRefused(f"cannot start dnsmasq: {error}") from error
        self._await_socket(child)
        log.info("dnsmasq_started", pid=child.pid)
        return child.pid

    def _await_socket(self, child: subprocess.Popen[bytes]) -> None:
        ends = monotonic() + self._deadline
        while not _listens(child.pid):
            if child.poll() is not None:
                raise HostRefused(
                    f"dnsmasq exited with status {child.returncode} at its start: {self._log_tail()}"
                )
            if monotonic() > ends:
                self._end(child.pid)
                raise HostUnreadable(
                    f"dnsmasq did not listen for DHCP requests within {self._deadline:g} s; see the log {self._folder / 'log'}"
                )
            self._leaving.wait(0.005)

    def _log_tail(self) -> str:
        try:
            return "; ".join((self._folder / "log").read_text().splitlines()[-2:])
        except OSError:
            return "no log output"

    def _ensure_monitored(self, pid: int) -> None:
        if self._monitored != pid:
            self._monitored = pid
            # A previous agent may have died while the process was suspended.
            _continue(pid)
            threading.Thread(target=self._monitor, args=(pid,), name="dnsmasq", daemon=True).start()

    def _monitor(self, pid: int) -> None:
        started_at = monotonic()
        while not self._leaving.is_set():
            if _wait_for_exit(pid, _POLL_SECONDS):
                break
            if self._is_frozen(pid):
                self._ended()
        _reap(pid)
        if monotonic() - started_at > STABLE_SECONDS:
            self._backoff.reset()
        while self._is_monitored(pid) and not self._leaving.wait(self._backoff.next()):
            log.warning("dnsmasq_exited", pid=pid)
            self._ended()

    def _is_frozen(self, pid: int) -> bool:
        # The lock excludes the time in which this program itself suspends the process.
        with self._lock:
            return is_frozen(pid)

    def _is_monitored(self, pid: int) -> bool:
        with self._lock:
            return self._monitored == pid

    def _end(self, pid: int) -> None:
        # A stopped process handles SIGTERM only once it is continued.
        for number in (signal.SIGKILL,) if is_frozen(pid) else (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            if _wait_for_exit(pid, self._deadline / 2):
                _reap(pid)
                return
        raise HostUnreadable(f"dnsmasq process {pid} did not exit after SIGKILL")

    def _arguments(self, network: NodeNetwork) -> tuple[str, ...]:
        subnet = IPv4Network(network.subnet)
        return (
            shutil.which("dnsmasq") or "dnsmasq",
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--pid-file=",
            "--port=0",
            "--user=dnsmasq",
            f"--interface={network.bridge}",
            "--bind-dynamic",
            # `static`: only reserved addresses are assigned, and only to the cards they are reserved for (ALC-4).
            f"--dhcp-range={subnet.network_address},static,{subnet.netmask},{network.lease_seconds}",
            f"--dhcp-option=option:router,{network.gateway}",
            f"--dhcp-option=option:mtu,{network.mtu}",
            *(
                f"--dhcp-option=option:dns-server,{','.join(network.resolvers)}"
                for _ in network.resolvers[:1]
            ),
            f"--dhcp-hostsdir={self._folder / 'hosts'}",
            f"--dhcp-leasefile={self._folder / 'leases'}",
            f"--log-facility={self._folder / 'log'}",
            "--quiet-dhcp",
            "--no-ping",
            "--dhcp-authoritative",
            # Leases are identified by MAC address only: with a client id, one guest could claim another guest's lease.
            "--dhcp-ignore-clid",
        )


def _found(mark: str) -> Iterator[Running]:
    for pid, words in own_processes():
        # The process may exit during the read.
        with suppress(OSError):
            if mark in words and Path(words[0]).name == "dnsmasq":
                environment = os.fsdecode((PROC / str(pid) / "environ").read_bytes()).split("\0")
                links = [word.partition("=")[2] for word in environment if word.startswith(f"{LINK}=")]
                yield Running(pid, words, links[0] if links else "")


def _listens(pid: int) -> bool:
    """Return whether the process has a socket on the DHCP server port.

    Other processes may have such sockets too, for example the dnsmasq of libvirt's default network.
    """
    # The sockets of this thread's network namespace, in which the child was started.
    lines = Path("/proc/thread-self/net/udp").read_text().splitlines()[1:]
    sockets = {f"socket:[{words[9]}]" for words in map(str.split, lines) if words[1].endswith(PORT)}
    # The process may exit during the read.
    with suppress(FileNotFoundError):
        return any(_target(handle) in sockets for handle in (PROC / str(pid) / "fd").iterdir())
    return False


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return "the file descriptor was closed after it was listed"


def _wait_for_exit(pid: int, timeout: float) -> bool:
    """Wait up to `timeout` seconds until a process has exited; return whether it has. It need not be a child process.

    A zombie counts as exited.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout)[0])
    finally:
        os.close(handle)


def _suspend(pid: int, within: float) -> None:
    """Suspend a process by SIGSTOP and wait until it is stopped or has exited. Raises `HostUnreadable`."""
    ends = monotonic() + within
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        while not is_still(pid):
            if monotonic() > ends:
                raise HostUnreadable(f"dnsmasq process {pid} still runs after SIGSTOP")
            time.sleep(0.001)


def _continue(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _reap(pid: int) -> None:
    # An adopted process is not a child of this one.
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
