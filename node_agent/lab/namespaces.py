"""A little host as its maker sees it: start it, speak to it, run programs inside it, kill parts of it, end it.

Its first process belongs to whoever holds the other end of its stdin: when the maker dies, by `kill -9` too, the
kernel closes that pipe, the first process leaves, and the kernel kills the rest. A host is started in a
session of its own, so that Ctrl-C at a terminal reaches the maker alone, which then ends its hosts in order.
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
from node_agent.lab.inside import enter, number_inside, processes_in

_UNSHARE: Final = ("unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
_IMPORT_ROOT: Final = Path(node_agent.__path__[0]).parent
_ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
}
"""All that a host inherits: what its maker has in the environment is none of its business."""
STOP_SECONDS: Final = 5.0


class HostFailed(Exception):
    """A little host did not come up, or went away; `log` is the end of what it wrote."""

    def __init__(self, name: str, what: str, log: str) -> None:
        super().__init__(f"lab host {name} {what}:\n{log}")
        self.name, self.what, self.log = name, what, log


class CommandFailed(Exception):
    """A program inside a little host did not exit 0."""

    def __init__(self, name: str, argv: Sequence[str], done: subprocess.CompletedProcess[str]) -> None:
        said = (done.stderr or done.stdout).strip()
        super().__init__(f"on lab host {name}, {' '.join(argv)} exited {done.returncode}: {said}")
        self.code, self.stderr = done.returncode, done.stderr


class LittleHost:
    """Namespaces around the program `module`, which is told the path of its configuration.

    `folder` holds its configuration, logs and `host.pid`: the first process as this machine numbers it.
    """

    def __init__(self, name: str, module: str, folder: Path, config: msgspec.Struct) -> None:
        self.name, self.folder = name, folder
        (folder / "log").mkdir(parents=True, exist_ok=True)
        self._config = folder / "config.json"
        self._config.write_bytes(msgspec.json.encode(config))
        self._argv = (*_UNSHARE, sys.executable, "-m", module, str(self._config))
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._heard = b""
        self._speaking = threading.Lock()

    @property
    def pid(self) -> int:
        """The first process, as this machine numbers it."""
        return self._pid

    @property
    def pid_file(self) -> Path:
        """Holds the same, for other programs, while the host runs."""
        return self.folder / "host.pid"

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the first process; `await_birth` must follow."""
        self._heard = b""
        # Process ids of an earlier life belong to others by now.
        (self.folder / "daemons.json").unlink(missing_ok=True)
        with (self.folder / "log" / "host.log").open("ab") as output:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                cwd=_IMPORT_ROOT,
                env=_ENVIRONMENT,
            )

    def await_birth(self, seconds: float = 10.0) -> None:
        """Wait until the namespaces exist and the host listens. Raises `HostFailed`."""
        self.await_event("born", seconds)
        maker = self._living().pid
        self._pid = int(Path(f"/proc/{maker}/task/{maker}/children").read_text().split()[0])
        self.pid_file.write_text(str(self._pid))

    def tell(self, command: Command) -> None:
        process = self._living()
        assert process.stdin is not None
        with self._speaking:
            process.stdin.write(encode(command))
            process.stdin.flush()

    def await_event(self, kind: str, seconds: float) -> None:
        """Wait until the host has said `kind`. Raises `HostFailed` at the deadline or if it ended."""
        deadline = time.monotonic() + seconds
        while self._next_event(deadline).kind != kind:
            pass

    def _next_event(self, deadline: float) -> Event:
        stdout = self._living().stdout
        assert stdout is not None
        while b"\n" not in self._heard:
            readable, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            received = os.read(stdout.fileno(), 65536) if readable else b""
            if not received:
                raise self._failure("ended" if readable else "is late")
            self._heard += received
        line, _, self._heard = self._heard.partition(b"\n")
        return decode_event(line)

    def start_daemon(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Run `argv` under the host's supervision, in place of an earlier daemon of that name."""
        self.tell(StartDaemon(Daemon(name=name, argv=tuple(argv), environment=dict(environment or {}))))

    def stop_daemon(self, name: str, seconds: float = STOP_SECONDS) -> None:
        """Let `name` end (SIGTERM) and stay ended; one that does not end in time is killed."""
        self.tell(StopDaemon(name))
        deadline = time.monotonic() + seconds
        while name in self.daemons():
            if time.monotonic() > deadline:
                self.kill(name)
                deadline += seconds
            time.sleep(0.01)

    def daemons(self) -> dict[str, int]:
        """Supervised programs that live, with process ids as the host itself numbers them."""
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
        """Run a program inside the host to its end, its output as text.

        With `check`, raises `CommandFailed` unless it exits 0.
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
        """The command line that runs `argv` inside, for whoever wants to start it in another way."""
        self._living()
        return [*enter(self._pid), *argv]

    def processes(self) -> dict[int, tuple[str, ...]]:
        """All that runs inside: process id on this machine, and command line."""
        return processes_in(self._pid)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal a supervised daemon by its name, or else every program called so (`dnsmasq`).

        Raises `ProcessLookupError` if there is none.
        """
        supervised = self.daemons().get(name)
        targets = [
            pid
            for pid, argv in self.processes().items()
            if (supervised == number_inside(pid) if supervised else Path(argv[0]).name == name)
        ]
        if not targets:
            raise ProcessLookupError(f"nothing called {name} runs in lab host {self.name}")
        for pid in targets:
            os.kill(pid, number)

    def stop(self) -> None:
        """End the host and all in it; returns when the kernel has taken it down. Idempotent."""
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

    def _living(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise self._failure("is not running")
        return self._process

    def _failure(self, what: str) -> HostFailed:
        log = (self.folder / "log" / "host.log").read_text(errors="replace")
        return HostFailed(self.name, what, log[-2000:])
