"""The dnsmasq process: started, watched so that its death is heard of, and left alone when the agent dies.

dnsmasq outlives the agent on purpose: guests renew their leases while the agent is being restarted or is dead. The next
agent finds it by its command line, adopts it when it runs as wanted, and replaces it otherwise; the lease file is
on disk, so a replacement knows every lease. There is at most one: `serve` ends all others first.

It binds its socket to the bridge's device, so a device that was made anew under the same name needs a new dnsmasq;
the number of the device that it was started for stands in its environment.
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

from node_agent.drivers.dhcp_sockets import inodes_of, listening_inodes, owner_of
from node_agent.drivers.netlink import Refused
from node_agent.drivers.processes import PROC, is_frozen, is_still, own_processes
from node_agent.gateway import NodeNetwork
from node_agent.slices import HostRefused, HostUnreadable
from tasks.backoff import Backoff

log = structlog.get_logger(__name__)

LIVED_LONG: Final = 10.0
"""Seconds after which a death is not put down to the start before it."""
_POLL_SECONDS: Final = 0.5
"""Seconds between two checks whether the server is stopped, which the kernel reports only to its parent."""
LINK: Final = "SLICEPLANE_LINK"
PORT: Final = ":0043"
"""Port 67 as /proc/net/udp writes it."""


@dataclass(frozen=True, slots=True)
class Running:
    """A dnsmasq of this folder, and the number of the link it was started for."""

    pid: int
    arguments: tuple[str, ...]
    link: str


class Dnsmasq:
    """`folder` must be reachable for the user dnsmasq; `link_number` asks the kernel for a device's number.

    `ended` is called when it died or was stopped, and again until another is served; it must return at once.
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
        self._turn = threading.RLock()
        self._watched: int | None = None
        self._leaving = threading.Event()
        self._backoff = Backoff(first=0.1, cap=5.0)
        self._own_inodes = frozenset[int]()
        self._owners = dict[int, str]()

    def serves(self, network: NodeNetwork) -> bool:
        with self._turn:
            running = self.running()
            if len(running) != 1 or not self._is(running[0], network):
                return False
            self._watch(running[0].pid)
            return not is_frozen(running[0].pid)

    def serve(self, network: NodeNetwork) -> None:
        """Adopt the dnsmasq that runs as wanted, or start one; end every other.

        Raises `HostRefused`, `HostUnreadable`.
        """
        with self._turn:
            # A frozen one is replaced: what stopped it may hold it, and its sockets are full of old requests.
            whole = (each for each in self.running() if self._is(each, network))
            found = [each for each in whole if not is_frozen(each.pid)][:1]
            for each in self.running():
                if each not in found:
                    self._end(each.pid)
            if found:
                log.info("dnsmasq_adopted", pid=found[0].pid)
            self._watch(found[0].pid if found else self._start(network))

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
            # A kernel without sock_diag: a second server that answers is detected by the leases.
            log.debug("sockets_unlisted", reason=str(error))
            return ()
        except OSError as error:
            raise HostUnreadable(f"sockets on port 67: {error}") from error
        if not found <= self._own_inodes:
            self._own_inodes = frozenset(inode for each in self.running() for inode in inodes_of(each.pid))
        foreign = sorted(found - self._own_inodes)
        # Each is looked for once, among all processes of the host.
        self._owners = {inode: self._owners.get(inode) or owner_of(inode) for inode in foreign}
        return tuple(self._owners.values())

    def hang_up(self) -> None:
        """Make it read its hosts anew (dnsmasq(8), SIGHUP)."""
        # Not while it is being started: before it handles the signal it would die of it.
        with self._turn:
            for each in self.running():
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGHUP)

    @contextmanager
    def held(self) -> Iterator[bool]:
        """While this lasts nobody starts it or ends it; gives whether it runs."""
        with self._turn:
            yield bool(self.running())

    @contextmanager
    def held_still(self) -> Iterator[None]:
        """While this lasts it runs and does nothing. Raises `HostUnreadable`."""
        with self._turn:
            found = [each.pid for each in self.running()]
            try:
                for pid in found:
                    _stop(pid, self._deadline)
                yield
            finally:
                for pid in found:
                    _go_on(pid)

    def close(self) -> None:
        """Watch it no more; it goes on serving."""
        self._leaving.set()

    def stop(self) -> None:
        """Watch it no more and end it."""
        with self._turn:
            self.close()
            for each in self.running():
                self._end(each.pid)

    def running(self) -> tuple[Running, ...]:
        return tuple(_found(f"--dhcp-leasefile={self._folder / 'leases'}"))

    def _is(self, found: Running, network: NodeNetwork) -> bool:
        wanted = (self._arguments(network), str(self._link_number(network.bridge)))
        return (found.arguments, found.link) == wanted

    def _start(self, network: NodeNetwork) -> int:
        number = self._link_number(network.bridge)
        if number is None:
            raise HostRefused(f"start dnsmasq: no link {network.bridge}")
        try:
            child = subprocess.Popen(
                self._arguments(network),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", os.defpath), LINK: str(number)},
                # A session of its own: what interrupts the agent at a terminal must not end DHCP.
                start_new_session=True,
            )
        except OSError as error:
            raise HostRefused(f"start dnsmasq: {error}") from error
        self._await_socket(child)
        log.info("dnsmasq_started", pid=child.pid)
        return child.pid

    def _await_socket(self, child: subprocess.Popen[bytes]) -> None:
        ends = monotonic() + self._deadline
        while not _listens(child.pid):
            if child.poll() is not None:
                raise HostRefused(f"dnsmasq ended with {child.returncode}: {self._last_words()}")
            if monotonic() > ends:
                self._end(child.pid)
                raise HostUnreadable(f"dnsmasq did not listen within {self._deadline:g} s")
            self._leaving.wait(0.005)

    def _last_words(self) -> str:
        try:
            return "; ".join((self._folder / "log").read_text().splitlines()[-2:])
        except OSError:
            return "it left no log"

    def _watch(self, pid: int) -> None:
        if self._watched != pid:
            self._watched = pid
            # An agent may have died while it held it still.
            _go_on(pid)
            threading.Thread(target=self._await_end, args=(pid,), name="dnsmasq", daemon=True).start()

    def _await_end(self, pid: int) -> None:
        born = monotonic()
        while not self._leaving.is_set():
            if _ended(pid, within=_POLL_SECONDS):
                break
            if self._is_frozen(pid):
                self._ended()
        _reap(pid)
        if monotonic() - born > LIVED_LONG:
            self._backoff.reset()
        while self._is_watched(pid) and not self._leaving.wait(self._backoff.next()):
            log.warning("dnsmasq_died", pid=pid)
            self._ended()

    def _is_frozen(self, pid: int) -> bool:
        # Not while this program itself holds it still.
        with self._turn:
            return is_frozen(pid)

    def _is_watched(self, pid: int) -> bool:
        with self._turn:
            return self._watched == pid

    def _end(self, pid: int) -> None:
        # A stopped process handles SIGTERM only once it is continued.
        for deadly in (signal.SIGKILL,) if is_frozen(pid) else (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(pid, deadly)
            if _ended(pid, within=self._deadline / 2):
                _reap(pid)
                return
        raise HostUnreadable(f"dnsmasq {pid} does not end")

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
            # `static`: only reserved addresses are given, and only to those they are reserved for (ALC-4).
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
            # A lease is found by its card alone: by client id, a neighbour could name somebody else's.
            "--dhcp-ignore-clid",
        )


def _found(mark: str) -> Iterator[Running]:
    for pid, words in own_processes():
        # It may end while we look.
        with suppress(OSError):
            if mark in words and Path(words[0]).name == "dnsmasq":
                environment = os.fsdecode((PROC / str(pid) / "environ").read_bytes()).split("\0")
                links = [word.partition("=")[2] for word in environment if word.startswith(f"{LINK}=")]
                yield Running(pid, words, links[0] if links else "")


def _listens(pid: int) -> bool:
    """Whether a process of this network namespace has a socket at its end of DHCP. Others may have theirs: libvirt's
    default network does."""
    # Of this thread's namespace, in which the child was started.
    lines = Path("/proc/thread-self/net/udp").read_text().splitlines()[1:]
    sockets = {f"socket:[{words[9]}]" for words in map(str.split, lines) if words[1].endswith(PORT)}
    # It may end while we look.
    with suppress(FileNotFoundError):
        return any(_target(handle) in sockets for handle in (PROC / str(pid) / "fd").iterdir())
    return False


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return "closed meanwhile"


def _ended(pid: int, within: float) -> bool:
    """Whether a process, ours or adopted, ends within so many seconds. A zombie has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within)[0])
    finally:
        os.close(handle)


def _stop(pid: int, within: float) -> None:
    """Returns when it has stopped, or ended."""
    ends = monotonic() + within
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        while not is_still(pid):
            if monotonic() > ends:
                raise HostUnreadable(f"dnsmasq {pid} does not stop")
            time.sleep(0.001)


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _reap(pid: int) -> None:
    # An adopted one is the child of another.
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
