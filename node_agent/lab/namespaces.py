"""Handle of a lab host in the process that created it: start it, send commands, run or kill programs inside, stop it.

The first process of the host exits when its stdin is closed. If the creator dies, even by `kill -9`, the kernel closes
that pipe, the first process exits, and the kernel kills all other processes of the host. A host is started in a
separate session, so that Ctrl-C at a terminal reaches only the creator, which then stops its hosts in order.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

import node_agent
from node_agent.lab.control import Command, Daemon, Event, StartDaemon, StopDaemon, decode_event, encode
from node_agent.lab.namespace_access import enter, number_inside, processes_in

_UNSHARE: Final = ("unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
IMPORT_ROOT: Final = Path(node_agent.__path__[0]).parent
"""Folder from which Python programs in lab hosts import the packages of the project."""
_ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
}
"""All environment variables of a lab host's first process. Variables of the process that creates the host are not
inherited."""
STOP_SECONDS: Final = 5.0


class HostFailed(Exception):
    """A lab host did not start or has exited; `log` is the end of its log."""

    def __init__(self, name: str, problem: str, log: str) -> None:
        super().__init__(f"lab host {name} {problem}:\n{log}")
        self.name, self.problem, self.log = name, problem, log


class CommandFailed(Exception):
    """A program in a lab host exited with a code other than 0."""

    def __init__(self, name: str, argv: Sequence[str], done: subprocess.CompletedProcess[str]) -> None:
        output = (done.stderr or done.stdout).strip()
        super().__init__(f"on lab host {name}, {' '.join(argv)} exited with code {done.returncode}: {output}")
        self.code, self.stderr = done.returncode, done.stderr


class LabHost:
    """A lab host: separate namespaces in which the Python program `module` runs as first process.

    The program receives the path of its configuration as its argument. `folder` contains the configuration, the logs
    and `host.pid`, the id of the first process in the PID namespace of this machine.
    """

    def __init__(self, name: str, module: str, folder: Path, config: msgspec.Struct) -> None:
        self.name, self.folder = name, folder
        (folder / "log").mkdir(parents=True, exist_ok=True)
        self._config = folder / "config.json"
        self._config.write_bytes(msgspec.json.encode(config))
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._received = b""
        self._send_lock = threading.Lock()

    @property
    def pid(self) -> int:
        """Id of the lab host's first process, in the PID namespace of this machine."""
        return self._pid

    @property
    def pid_file(self) -> Path:
        """Path of the file that contains the id of the lab host's first process while the host runs."""
        return self.folder / "host.pid"

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the lab host's first process, which creates the namespaces; `await_namespaces` waits for them."""
        self._received = b""
        # Process ids of an earlier start may belong to other processes by now.
        (self.folder / "daemons.json").unlink(missing_ok=True)
        with (self.folder / "log" / "host.log").open("ab") as output:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                cwd=IMPORT_ROOT,
                env=_ENVIRONMENT,
            )

    def _command(self) -> Sequence[str]:
        """Return the command that starts the host. Its standard input and output are the control pipe."""
        return (*_UNSHARE, sys.executable, "-m", self._module, str(self._config))

    def await_namespaces(self, seconds: float = 10.0) -> None:
        """Wait until the lab host's namespaces exist and the host accepts commands. Raises `HostFailed`."""
        self.await_event("born", seconds)
        unshare_pid = self._running_process().pid
        self._pid = int(Path(f"/proc/{unshare_pid}/task/{unshare_pid}/children").read_text().split()[0])
        self.pid_file.write_text(str(self._pid))

    def send(self, command: Command) -> None:
        """Send a command to the lab host's first process. Raises `HostFailed` if the host is not running."""
        process = self._running_process()
        assert process.stdin is not None
        with self._send_lock:
            process.stdin.write(encode(command))
            process.stdin.flush()

    def await_event(self, kind: str, seconds: float) -> None:
        """Wait for an event of this kind from the lab host. Raises `HostFailed` on timeout or if the host exits."""
        deadline = time.monotonic() + seconds
        while self._next_event(deadline).kind != kind:
            pass

    def _next_event(self, deadline: float) -> Event:
        stdout = self._running_process().stdout
        assert stdout is not None
        while b"\n" not in self._received:
            readable, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            received = os.read(stdout.fileno(), 65536) if readable else b""
            if not received:
                raise self._failure(
                    "exited" if readable else "did not report in time that a daemon started or exited"
                )
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        return decode_event(line)

    def start_daemon(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Run `argv` as a supervised daemon of the lab host, replacing any daemon with the same name."""
        self.send(StartDaemon(Daemon(name=name, argv=tuple(argv), environment=dict(environment or {}))))

    def stop_daemon(self, name: str, seconds: float = STOP_SECONDS) -> None:
        """Stop a daemon of the lab host by SIGTERM, without a restart. Kill the daemon if it does not exit in time."""
        self.send(StopDaemon(name))
        deadline = time.monotonic() + seconds
        while name in self.daemons():
            if time.monotonic() > deadline:
                self.kill(name)
                deadline += seconds
            time.sleep(0.01)

    def daemons(self) -> dict[str, int]:
        """Return the process ids of the lab host's running daemons by name, in the PID namespace of the host."""
        try:
            pids: dict[str, int] = json.loads((self.folder / "daemons.json").read_text())
        except FileNotFoundError:
            return {}
        return pids

    def run(
        self,
        argv: Sequence[str],
        *,
        check: bool = True,
        stdin: str | None = None,
        seconds: float = 30.0,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside the lab host, wait for its exit, and return its exit code and its output as text.

        With `check`, raises `CommandFailed` unless the program exits with code 0.
        """
        done = subprocess.run(
            self.inside(argv),
            check=False,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**_ENVIRONMENT, **(environment or {})},
        )
        if check and done.returncode:
            raise CommandFailed(self.name, argv, done)
        return done

    def inside(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` inside the lab host, for a caller that starts the program itself."""
        self._running_process()
        return [*enter(self._pid), *argv]

    def processes(self) -> dict[int, tuple[str, ...]]:
        """Return the command lines of the processes inside the lab host, by process id on this machine."""
        return processes_in(self._pid)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the lab host's daemon `name`, or else to every program with that name (such as `dnsmasq`).

        Raises `ProcessLookupError` if the lab host runs no such program.
        """
        supervised = self.daemons().get(name)
        targets = [
            pid
            for pid, argv in self.processes().items()
            if (supervised == number_inside(pid) if supervised else Path(argv[0]).name == name)
        ]
        if not targets:
            raise ProcessLookupError(f"no process with the name {name} runs in lab host {self.name}")
        for pid in targets:
            os.kill(pid, number)

    def stop(self) -> None:
        """Stop the lab host and all of its processes; return when the kernel has removed the processes. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self.pid_file.unlink(missing_ok=True)

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise self._failure("is not running")
        return self._process

    def _failure(self, problem: str) -> HostFailed:
        log = (self.folder / "log" / "host.log").read_text(errors="replace")
        return HostFailed(self.name, problem, log[-2000:])
