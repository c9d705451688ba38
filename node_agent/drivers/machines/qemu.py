"""QEMU processes, found through /proc and not through libvirt, because a guest may outlive libvirt's record of it."""

import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from node_agent.aspects.machine_plans import FoundProcess
from node_agent.drivers.processes import PROC, moment_of, own_processes
from node_agent.host.slices import HostRefused

_EXIT_SECONDS: Final = 5.0
_TUN: Final = "/dev/net/tun"


class QemuProcesses:
    """QEMU processes in the PID namespace of the process `host`.

    The process of each guest is cached after the first search.
    """

    def __init__(self, host: int | Literal["self"] = "self") -> None:
        self._host: int | Literal["self"] = host
        self._cache: dict[str, FoundProcess] = {}

    def all(self) -> tuple[FoundProcess, ...]:
        """Return every QEMU process of this host that has a named guest (`-name guest=slice0,...`, as libvirt starts
        it).
        """
        return tuple(_found(self._host))

    def of_guest(self, name: str, tap: str) -> FoundProcess | None:
        """Return the QEMU process of the guest `name`; None if the process has exited.

        The result lists the foreign files that the process has open; its tap device `tap` is not foreign.
        """
        cached = self._cache.get(name)
        moment = moment_of(cached.pid) if cached is not None else None
        if cached is None or moment is None or moment.started != cached.started:
            # The newest process is the guest's. An older one that outlived its machine is reported by `all`.
            named = (each for each in self.all() if each.name == name)
            cached = max(named, key=lambda each: each.started, default=None)
            self._cache.pop(name, None)
            if cached is None:
                return None
            self._cache[name] = cached
            moment = moment_of(cached.pid)
        frozen = moment is not None and moment.is_frozen
        return replace(cached, frozen=frozen, foreign=_foreign_files(cached, tap))


def continue_process(process: FoundProcess) -> None:
    """Continue a QEMU process that SIGSTOP stopped. Has no effect if the process exited or its pid was reused."""
    with _pinned(process) as handle:
        if handle is not None:
            signal.pidfd_send_signal(handle, signal.SIGCONT)


def end_process(process: FoundProcess) -> None:
    """Kill a process and wait for its exit. Has no effect if the process has exited or its pid was reused."""
    with _pinned(process) as handle:
        if handle is not None:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            if not select.select([handle], [], [], _EXIT_SECONDS)[0]:
                raise HostRefused(
                    f"qemu process {process.pid} of {process.name} did not exit within {_EXIT_SECONDS:g} s after SIGKILL"
                )


@contextmanager
def _pinned(process: FoundProcess) -> Iterator[int | None]:
    """Open a pidfd of a QEMU process, so that no process with a reused pid gets the signal; None if it has exited."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        with suppress(ProcessLookupError):
            yield handle if _started(process.pid) == process.started else None
    finally:
        os.close(handle)


def _foreign_files(process: FoundProcess, tap: str) -> tuple[str, ...]:
    # Not cached: a descriptor that was closed and opened again has the same number.
    folder = PROC / str(process.pid) / "fd"
    try:
        with os.scandir(folder) as entries:
            return tuple(sorted(_foreign(folder, [each.name for each in entries], tap)))
    except (FileNotFoundError, ProcessLookupError):
        return ()  # the process has exited


def _foreign(folder: Path, descriptors: Iterable[str], tap: str) -> Iterator[str]:
    """Yield descriptions of the open sockets and links of a QEMU process that a guest never needs.

    QEMU serves libvirt only on a Unix socket, so internet sockets are foreign.
    """
    for descriptor in descriptors:
        file = folder / descriptor
        with suppress(FileNotFoundError):  # closed since it was listed
            target = os.readlink(file)
            if target.startswith("socket:") and not (protocol := _protocol(file)).startswith("UNIX"):
                yield f"a {protocol} socket{_port(folder.parent, target)}"
            elif target == _TUN and (other := _tap(folder.parent / "fdinfo" / descriptor)) not in {tap, ""}:
                yield f"link {other}"


def _protocol(socket: Path) -> str:
    """Return the kernel's name of a socket's protocol (`TCP`, `UNIX-STREAM`), read in the same way as lsof(8) does."""
    return os.getxattr(socket, "system.sockprotoname").rstrip(b"\0").decode()


def _port(process: Path, socket: str) -> str:
    """Describe the port to which an internet socket of the QEMU process is bound; empty for other sockets."""
    for table in ("tcp", "udp", "tcp6", "udp6"):
        for fields in map(str.split, (process / "net" / table).read_text().splitlines()[1:]):
            if socket == f"socket:[{fields[9]}]":
                return f" on port {int(fields[1].rpartition(':')[2], 16)}"
    return ""


def _tap(fdinfo: Path) -> str:
    """Return the link of a process's open TUN device (proc(5), `iff`); empty if it is attached to no link."""
    lines = (line.partition(":") for line in fdinfo.read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key == "iff"), "")


def _found(host: int | Literal["self"]) -> Iterator[FoundProcess]:
    for pid, arguments in own_processes(host):
        name, started = _guest_name(arguments), _started(pid)
        if name and started is not None:
            yield FoundProcess(name, pid, started)


def _guest_name(arguments: tuple[str, ...]) -> str | None:
    if not Path(arguments[0]).name.startswith("qemu-system") or "-name" not in arguments[:-1]:
        return None
    options = arguments[arguments.index("-name") + 1].split(",")
    return next((option.removeprefix("guest=") for option in options if option.startswith("guest=")), None)


def _started(pid: int) -> int | None:
    moment = moment_of(pid)
    return moment.started if moment is not None else None
