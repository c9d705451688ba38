"""The first process of a lab host: it starts and restarts daemons, and reaps orphaned processes.

One thread runs one loop with three inputs: the control pipe (stdin), signals and time. Daemons are foreground children,
so this process detects their exit. A daemon that exits is started again after a pause that grows up to 5 s
while the daemon keeps exiting early. End of file on the control pipe means that the creator of the host is gone, and
then this process exits. When this process exits for any reason, the kernel kills all processes in its namespaces. This
process performs no cleanup, because it could not do so after `kill -9`.
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
from node_agent.runtime.backoff import Backoff

log = structlog.get_logger()

STABLE_SECONDS: Final = 10.0
PROBE_PAUSE: Final = 0.03


class _Supervised:
    """A daemon that the supervisor must keep running, with its current state."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.pid: int | None = None
        self.prober: int | None = None
        self.ready = False
        self.backoff = Backoff(first=0.1, cap=5.0)
        self.started = 0.0
        self.due = 0.0


class Supervisor:
    """Supervisor of the daemons of a lab host.

    `on_links` is called when the lab has attached the host's network cards. `folder` receives one log file per daemon
    (in `log/`) and `daemons.json` with the daemons' process ids in the namespace of this host. `event_output` is the
    result of `reserve_stdout`.
    """

    def __init__(
        self, event_output: int, folder: Path, daemons: Sequence[Daemon], on_links: Callable[[], None]
    ) -> None:
        self._event_output = event_output
        self._folder = folder
        self._supervised = {daemon.name: _Supervised(daemon) for daemon in daemons}
        # Daemons that were stopped and have not exited yet; a daemon with the same name must not start meanwhile.
        self._stopping: dict[int, str] = {}
        self._on_links = on_links
        self._linked = self._announced = False
        self._commands = b""

    def run(self) -> None:
        """Supervise the daemons until the control pipe is closed or SIGTERM arrives."""
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        # The wake-up descriptor is written only for signals that have a Python handler.
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, _exit)
        self._announce(Event(kind="born"))
        is_running = True
        while is_running:
            self._start_due_daemons()
            readable, _, _ = select.select([0, wake], [], [], self._idle_seconds())
            if wake in readable:
                os.read(wake, 4096)
            self._reap()
            is_running = 0 not in readable or self._execute_commands()

    def _announce(self, event: Event) -> None:
        # If the creator is gone, the control pipe is closed at the same time, which ends the loop.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._event_output, event.encoded())

    def _start_due_daemons(self) -> None:
        now = time.monotonic()
        for name, supervised in self._supervised.items():
            if (
                supervised.due > now
                or name in self._stopping.values()
                or not self._may_start(supervised.daemon)
            ):
                continue
            if supervised.pid is None:
                self._start(supervised, now)
            elif not supervised.ready and supervised.prober is None:
                supervised.prober = _spawn(supervised.daemon.probe, {}, os.devnull)
        if (
            self._linked
            and not self._announced
            and all(supervised.ready for supervised in self._supervised.values())
        ):
            self._announced = True
            self._announce(Event(kind="ready"))

    def _may_start(self, daemon: Daemon) -> bool:
        return all(name in self._supervised and self._supervised[name].ready for name in daemon.after)

    def _start(self, supervised: _Supervised, now: float) -> None:
        daemon = supervised.daemon
        output = str(self._folder / "log" / f"{daemon.name}.log")
        supervised.pid = _spawn(daemon.argv, daemon.environment, output)
        supervised.started, supervised.due = now, now + PROBE_PAUSE
        supervised.ready = supervised.ready or not daemon.probe
        log.info("daemon_started", daemon=daemon.name, pid=supervised.pid)
        self._write_process_ids()

    def _idle_seconds(self) -> float | None:
        """Return the seconds until the next start or probe of a daemon is due, or None if none is pending."""
        now = time.monotonic()
        unsettled = [
            supervised
            for supervised in self._supervised.values()
            if supervised.pid is None or not supervised.ready
        ]
        pending = [supervised.due - now for supervised in unsettled if self._may_start(supervised.daemon)]
        return max(0.001, min(pending)) if pending else None

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._handle_exit(pid, os.waitstatus_to_exitcode(status))

    def _handle_exit(self, pid: int, code: int) -> None:
        """Handle the exit of a child process: a daemon, a probe, a stopped daemon, or an orphan, which is ignored."""
        now = time.monotonic()
        if self._stopping.pop(pid, None):
            self._write_process_ids()
        for supervised in self._supervised.values():
            if supervised.prober == pid:
                supervised.prober, supervised.ready, supervised.due = None, code == 0, now + PROBE_PAUSE
            elif supervised.pid == pid:
                uptime = now - supervised.started
                if uptime > STABLE_SECONDS:
                    supervised.backoff.reset()
                supervised.pid, supervised.due = None, now + supervised.backoff.next()
                log.warning(
                    "daemon_of_lab_node_exited",
                    daemon=supervised.daemon.name,
                    exit_code=code,
                    uptime_seconds=round(uptime, 2),
                )
                self._write_process_ids()

    def _execute_commands(self) -> bool:
        """Execute the commands in the control pipe; return False if the pipe is closed."""
        received = os.read(0, 65536)
        *lines, self._commands = (self._commands + received).split(b"\n")
        for line in lines:
            self._execute(decode(line))
        return bool(received)

    def _execute(self, command: Command) -> None:
        match command:
            case LinksAttached():
                self._on_links()
                self._linked = True
            case StartDaemon(daemon=daemon):
                self._stop_daemon(daemon.name)
                self._supervised[daemon.name] = _Supervised(daemon)
            case StopDaemon(name=name):
                self._stop_daemon(name)

    def _stop_daemon(self, name: str) -> None:
        supervised = self._supervised.pop(name, None)
        if supervised and supervised.pid:
            self._stopping[supervised.pid] = name
            os.kill(supervised.pid, signal.SIGTERM)
            log.info("daemon_stopping", daemon=name, pid=supervised.pid)
        self._write_process_ids()

    def _write_process_ids(self) -> None:
        pids = {
            supervised.daemon.name: supervised.pid
            for supervised in self._supervised.values()
            if supervised.pid
        }
        pids |= {name: pid for pid, name in self._stopping.items()}
        fresh = self._folder / "daemons.json.new"
        fresh.write_text(json.dumps(pids))
        fresh.rename(self._folder / "daemons.json")


def reserve_stdout() -> int:
    """Reserve the standard output of this process for events to the lab, and return its file descriptor.

    Other output of this process and its children goes to standard error, the log of the lab host.
    """
    event_output = os.dup(1)
    os.dup2(2, 1)
    return event_output


def _exit(_number: int, _frame: object) -> None:
    raise SystemExit(0)


def _spawn(argv: Sequence[str], environment: Mapping[str, str], output: str) -> int:
    """Start a child process without input and with default signal handlers; append its output to a file."""
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
