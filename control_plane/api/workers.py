"""The workers of the API program: several processes that answer requests on the same addresses.

One process runs Python code on one processor only, so an API with one worker uses one processor. With several workers,
the first process of the program answers no requests. It opens one listening socket per worker and address, forks the
workers, and restarts a worker that was killed. The kernel divides new connections among the sockets (SO_REUSEPORT). The
first process keeps all sockets open, so that connections to the socket of a killed worker wait for its successor.

A worker that exits with an error code has printed the reason, which would also stop the other ones: the whole program
then ends with that code. The workers hold the read end of a pipe, of which only the first process has the write end, so
they also end if the first process is killed.
"""

import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import structlog

from control_plane.wiring import CannotListen

log = structlog.get_logger()
BACKLOG: Final = 1024
STOP_SECONDS: Final = 10.0
"""Time after which a worker that was asked to stop is killed. Longer than a worker waits for its last responses."""
FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Worker(NamedTuple):
    """What a worker inherits: its listening sockets, and the file descriptor that becomes readable when the first
    process has ended.
    """

    sockets: Sequence[socket.socket]
    parent_ended: int


class _Child:
    """State of one worker in the first process of the program; `pid` is None while the worker does not run."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self.sockets = sockets
        self.pid: int | None = None
        self.due = self._started = 0.0
        self._pause = FIRST_PAUSE_SECONDS

    def started(self, pid: int) -> None:
        self.pid, self._started = pid, time.monotonic()

    def ended(self) -> None:
        """Record that the worker has ended, and set the time of its next start: at once after a long run, with growing
        pauses after short runs.
        """
        self.pid = None
        ran = time.monotonic() - self._started
        self._pause = FIRST_PAUSE_SECONDS if ran > LONGEST_PAUSE_SECONDS else self._pause * 2
        self.due = self._started + min(self._pause, LONGEST_PAUSE_SECONDS)


def open_listener(address: str) -> socket.socket:
    """Open a listening socket on `host:port`. Raises `CannotListen`."""
    return _open(*_parts(address), reuse_port=False)


def supervise_workers(addresses: Sequence[str], count: int) -> Worker | int:
    """Run `count` workers that listen on `addresses` until SIGTERM or SIGINT.

    Return twice: in the first process with the exit code of the program when all workers have ended, and in each worker
    with what it inherits. Raises `CannotListen`. The process must have no other threads, because it forks.
    """
    children = [
        _Child(sockets) for sockets in zip(*(_shared(each, count) for each in addresses), strict=True)
    ]
    # Signals are read by `sigtimedwait`, so that none arrives between a check and the wait.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    parent_ended, is_alive = os.pipe()
    while True:
        for child in children:
            if child.pid is None and child.due <= time.monotonic():
                pid = os.fork()
                if pid == 0:
                    os.close(is_alive)
                    for other in children:
                        if other is not child:
                            _close(other.sockets)
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
                    return Worker(child.sockets, parent_ended)
                child.started(pid)
        code = _wait(children)
        if code is not None:
            _stop(children)
            return code


def _wait(children: Sequence[_Child]) -> int | None:
    """Wait until a worker has to be started, or the program has to end: return its exit code then."""
    due = [each.due for each in children if each.pid is None]
    pause = max(0.0, min(due) - time.monotonic()) if due else 3600.0
    received = signal.sigtimedwait(_SIGNALS, pause)
    if received is not None and received.si_signo != signal.SIGCHLD:
        return 0
    codes = [code for code in map(_ended, children) if code is not None]
    return max(codes, default=None)


def _ended(child: _Child) -> int | None:
    """Reap the process of a worker if it has ended. Return its exit code if it ended with one, because then it is not
    restarted.
    """
    if child.pid is None:
        return None
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    if pid == 0:
        return None
    child.ended()
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        log.error("api_worker_exited", worker=pid, exit_code=code)
        return code or 1
    log.warning("api_worker_restarted", worker=pid, signal=-code)
    return None


def _stop(children: Sequence[_Child]) -> None:
    """Stop all workers: each answers the requests in progress. Kill those that do not end in time."""
    running = [child for child in children if child.pid is not None]
    for child in running:
        _send(child, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while running:
        running = [child for child in running if child.pid and os.waitpid(child.pid, os.WNOHANG)[0] == 0]
        left = deadline - time.monotonic()
        if running and left <= 0:
            for child in running:
                log.warning("api_worker_killed", worker=child.pid)
                _send(child, signal.SIGKILL)
                os.waitpid(child.pid or 0, 0)
            return
        if running:
            signal.sigtimedwait([signal.SIGCHLD], left)


def _send(child: _Child, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(child.pid or 0, number)


def _shared(address: str, count: int) -> list[socket.socket]:
    """Open `count` listening sockets on one address. Raises `CannotListen`, also if another program listens there."""
    host, port = _parts(address)
    # Without the option, the kernel refuses the address if another program has it, even one that permits sharing.
    _open(host, port, reuse_port=False).close()
    first = _open(host, port, reuse_port=True)
    chosen = first.getsockname()[1]
    return [first, *(_open(host, chosen, reuse_port=True) for _ in range(1, count))]


def _open(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    try:
        return socket.create_server((host, port), reuse_port=reuse_port, backlog=BACKLOG)
    except OSError as error:
        raise CannotListen(f"{host}:{port}", error) from error


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _close(sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        each.close()
