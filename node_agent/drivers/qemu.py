"""QEMU processes, looked for in /proc and not in libvirt: a guest may outlive what libvirt knows of it."""

import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from node_agent.drivers.processes import PROC, moment_of, own_processes
from node_agent.machine_plans import FoundProcess
from node_agent.slices import HostRefused

_DEATH_SECONDS: Final = 5.0
_TUN: Final = "/dev/net/tun"


class QemuProcesses:
    """QEMU processes of the host of the process `host`. The process of a guest is looked for among all of them once."""

    def __init__(self, host: int | Literal["self"] = "self") -> None:
        self._host: int | Literal["self"] = host
        self._known: dict[str, FoundProcess] = {}

    def all(self) -> tuple[FoundProcess, ...]:
        """Every QEMU of this host that runs a named guest (`-name guest=slice0,...`, as libvirt starts it)."""
        return tuple(_found(self._host))

    def of_guest(self, name: str, tap: str) -> FoundProcess | None:
        """The process of the guest `name`, with what it holds beside its tap; None once it is gone."""
        known = self._known.get(name)
        moment = moment_of(known.pid) if known is not None else None
        if known is None or moment is None or moment.started != known.started:
            # The newest: one that outlived its machine is found among all.
            named = (each for each in self.all() if each.name == name)
            known = max(named, key=lambda each: each.started, default=None)
            self._known.pop(name, None)
            if known is None:
                return None
            self._known[name] = known
            moment = moment_of(known.pid)
        frozen = moment is not None and moment.is_frozen
        return replace(known, frozen=frozen, foreign=_held(known, tap))


def continue_process(process: FoundProcess) -> None:
    """Continue the process. If it is gone or its pid is reused, nothing is done."""
    with _pinned(process) as handle:
        if handle is not None:
            signal.pidfd_send_signal(handle, signal.SIGCONT)


def end_process(process: FoundProcess) -> None:
    """Kill it and wait for its end. One that is gone, or whose pid is another's by now, is left alone."""
    with _pinned(process) as handle:
        if handle is not None:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            if not select.select([handle], [], [], _DEATH_SECONDS)[0]:
                raise HostRefused(f"qemu process {process.pid} of {process.name} did not die of SIGKILL")


@contextmanager
def _pinned(process: FoundProcess) -> Iterator[int | None]:
    """A handle that pins the process, so that what is checked is what gets the signal; None where it is gone."""
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


def _held(process: FoundProcess, tap: str) -> tuple[str, ...]:
    # Read at each look: a descriptor that was closed and opened again has the same number.
    folder = PROC / str(process.pid) / "fd"
    try:
        with os.scandir(folder) as entries:
            return tuple(sorted(_foreign(folder, [each.name for each in entries], tap)))
    except (FileNotFoundError, ProcessLookupError):
        return ()  # it ended meanwhile


def _foreign(folder: Path, descriptors: Iterable[str], tap: str) -> Iterator[str]:
    """Yield open sockets and links that a guest never needs. QEMU serves libvirt on a local socket only."""
    for descriptor in descriptors:
        file = folder / descriptor
        with suppress(FileNotFoundError):  # closed meanwhile
            target = os.readlink(file)
            if target.startswith("socket:") and not (protocol := _protocol(file)).startswith("UNIX"):
                yield f"a {protocol} socket{_port(folder.parent, target)}"
            elif target == _TUN and (other := _tap(folder.parent / "fdinfo" / descriptor)) not in {tap, ""}:
                yield f"link {other}"


def _protocol(socket: Path) -> str:
    """A socket's protocol as the kernel calls it (`TCP`, `UNIX-STREAM`), the way that lsof(8) asks for it."""
    return os.getxattr(socket, "system.sockprotoname").rstrip(b"\0").decode()


def _port(process: Path, socket: str) -> str:
    """The port that an internet socket is bound to, in words; empty for a socket of another kind."""
    for table in ("tcp", "udp", "tcp6", "udp6"):
        for words in map(str.split, (process / "net" / table).read_text().splitlines()[1:]):
            if socket == f"socket:[{words[9]}]":
                return f" on port {int(words[1].rpartition(':')[2], 16)}"
    return ""


def _tap(fdinfo: Path) -> str:
    """The link that an open tun device is attached to (proc(5), `iff`); empty for none."""
    lines = (line.partition(":") for line in fdinfo.read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key == "iff"), "")


def _found(host: int | Literal["self"]) -> Iterator[FoundProcess]:
    for pid, words in own_processes(host):
        name, started = _guest_name(words), _started(pid)
        if name and started is not None:
            yield FoundProcess(name, pid, started)


def _guest_name(words: tuple[str, ...]) -> str | None:
    if not Path(words[0]).name.startswith("qemu-system") or "-name" not in words[:-1]:
        return None
    options = words[words.index("-name") + 1].split(",")
    return next((option.removeprefix("guest=") for option in options if option.startswith("guest=")), None)


def _started(pid: int) -> int | None:
    moment = moment_of(pid)
    return moment.started if moment is not None else None
