"""The first process of a little host: it starts daemons, restarts them, and reaps whatever is orphaned.

One thread, one loop, three inputs: the control pipe (stdin), signals, and time. Daemons are foreground children, so
that their death is seen here and nowhere else; a dead one is started again after a pause that doubles from 0.1 s
to 5 s while it keeps dying young. The control pipe is also the lifeline: its end of file means that whoever made this
host is gone, and then this process leaves. When it leaves, by whatever road, the kernel kills all that lived in its
namespaces: nothing here cleans up, because nothing could after `kill -9`.
"""

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from node_agent.lab.control import Command, Daemon, Event, LinksAttached, StartDaemon, StopDaemon, decode

log = structlog.get_logger()

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
LIVED_LONG: Final = 10.0
PROBE_PAUSE: Final = 0.03


class _Wanted:
    """A daemon that shall run, whether or not it lives at this moment."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.pid: int | None = None
        self.prober: int | None = None
        self.ready = False
        self.pause = FIRST_PAUSE
        self.started = 0.0
        self.due = 0.0


class Supervisor:
    """Runs `daemons`. `on_links` is called when the network cards are plugged in; `folder` takes one log
    file a daemon (`log/`) and `daemons.json`, the process ids as this host sees them; `voice` is what
    `take_voice` gave.
    """

    def __init__(
        self, voice: int, folder: Path, daemons: Sequence[Daemon], on_links: Callable[[], None]
    ) -> None:
        self._voice = voice
        self._folder = folder
        self._wanted = {daemon.name: _Wanted(daemon) for daemon in daemons}
        # Told to stop, not yet dead: a second one of that name must not start beside it.
        self._leaving: dict[int, str] = {}
        self._on_links = on_links
        self._linked = self._announced = False
        self._commands = b""

    def run(self) -> None:
        """Serve until the control pipe ends or SIGTERM comes."""
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        # A handler of Python's is what makes the wake-up descriptor speak.
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, _leave)
        self._announce(Event(kind="born"))
        serving = True
        while serving:
            self._start_what_is_due()
            readable, _, _ = select.select([0, wake], [], [], self._idle_seconds())
            if wake in readable:
                os.read(wake, 4096)
            self._reap()
            serving = 0 not in readable or self._obey()

    def _announce(self, event: Event) -> None:
        # A listener that is gone is noticed at the lifeline, which ends at the same moment.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._voice, event.encoded())

    def _start_what_is_due(self) -> None:
        now = time.monotonic()
        for name, wanted in self._wanted.items():
            if wanted.due > now or name in self._leaving.values() or not self._may_start(wanted.daemon):
                continue
            if wanted.pid is None:
                self._start(wanted, now)
            elif not wanted.ready and wanted.prober is None:
                wanted.prober = _spawn(wanted.daemon.probe, {}, os.devnull)
        if self._linked and not self._announced and all(wanted.ready for wanted in self._wanted.values()):
            self._announced = True
            self._announce(Event(kind="ready"))

    def _may_start(self, daemon: Daemon) -> bool:
        return all(name in self._wanted and self._wanted[name].ready for name in daemon.after)

    def _start(self, wanted: _Wanted, now: float) -> None:
        daemon = wanted.daemon
        output = str(self._folder / "log" / f"{daemon.name}.log")
        wanted.pid = _spawn(daemon.argv, daemon.environment, output)
        wanted.started, wanted.due = now, now + PROBE_PAUSE
        wanted.ready = wanted.ready or not daemon.probe
        log.info("daemon_started", daemon=daemon.name, pid=wanted.pid)
        self._record()

    def _idle_seconds(self) -> float | None:
        """How long nothing can fall due but by a signal or a command; None for ever."""
        now = time.monotonic()
        unsettled = [wanted for wanted in self._wanted.values() if wanted.pid is None or not wanted.ready]
        pending = [wanted.due - now for wanted in unsettled if self._may_start(wanted.daemon)]
        return max(0.001, min(pending)) if pending else None

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._bury(pid, os.waitstatus_to_exitcode(status))

    def _bury(self, pid: int, code: int) -> None:
        """`pid` was a daemon, a probe, one that was told to leave, or an orphan that nobody asks about."""
        now = time.monotonic()
        if self._leaving.pop(pid, None):
            self._record()
        for wanted in self._wanted.values():
            if wanted.prober == pid:
                wanted.prober, wanted.ready, wanted.due = None, code == 0, now + PROBE_PAUSE
            elif wanted.pid == pid:
                lived = now - wanted.started
                wanted.pause = FIRST_PAUSE if lived > LIVED_LONG else min(wanted.pause * 2, LONGEST_PAUSE)
                wanted.pid, wanted.due = None, now + wanted.pause
                log.warning("daemon_died", daemon=wanted.daemon.name, code=code, lived=round(lived, 2))
                self._record()

    def _obey(self) -> bool:
        """Carry out the commands that stand in the pipe; False at its end."""
        received = os.read(0, 65536)
        *lines, self._commands = (self._commands + received).split(b"\n")
        for line in lines:
            self._carry_out(decode(line))
        return bool(received)

    def _carry_out(self, command: Command) -> None:
        match command:
            case LinksAttached():
                self._on_links()
                self._linked = True
            case StartDaemon(daemon=daemon):
                self._forget(daemon.name)
                self._wanted[daemon.name] = _Wanted(daemon)
            case StopDaemon(name=name):
                self._forget(name)

    def _forget(self, name: str) -> None:
        wanted = self._wanted.pop(name, None)
        if wanted and wanted.pid:
            self._leaving[wanted.pid] = name
            os.kill(wanted.pid, signal.SIGTERM)
            log.info("daemon_stopping", daemon=name, pid=wanted.pid)
        self._record()

    def _record(self) -> None:
        pids = {wanted.daemon.name: wanted.pid for wanted in self._wanted.values() if wanted.pid}
        pids |= {name: pid for pid, name in self._leaving.items()}
        fresh = self._folder / "daemons.json.new"
        fresh.write_text(json.dumps(pids))
        fresh.rename(self._folder / "daemons.json")


def take_voice() -> int:
    """Keep stdout for events alone: whatever else prints, in this process or a child, goes to the log."""
    voice = os.dup(1)
    os.dup2(2, 1)
    return voice


def _leave(_number: int, _frame: object) -> None:
    raise SystemExit(0)


def _spawn(argv: Sequence[str], environment: Mapping[str, str], output: str) -> int:
    """Start a child with no input, its output appended to a file, signals as at a fresh start."""
    null, stdin, stdout, stderr = os.devnull, 0, 1, 2
    files = (
        (os.POSIX_SPAWN_OPEN, stdin, null, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, stdout, output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        (os.POSIX_SPAWN_DUP2, stdout, stderr),
    )
    fresh = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE)
    return os.posix_spawnp(
        argv[0], tuple(argv), {**os.environ, **environment}, file_actions=files, setsigdef=fresh
    )
