"""Child processes that log to a file, end with their parent, and are restarted when they exit unexpectedly.

Start every child from the main thread, because the kernel binds the parent-death signal to the thread that forked. Call
`Child.supervise` from that thread too, repeatedly, during every wait.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, ClassVar, Final, Protocol

from deploy.embedded.restarts import Restarts

REPOSITORY: Final = Path(__file__).resolve().parents[2]
STOP_SECONDS: Final = 8.0


class Process(Protocol):
    """Interface of a started process: the methods of `subprocess.Popen` that `Child` uses."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int, /) -> None: ...

    def kill(self) -> None: ...


class Starter(Protocol):
    """Function that starts a program with additional environment variables, and with its output in `log`."""

    def __call__(self, argv: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> Process: ...


def start_process(argv: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> Process:
    """Start a program that writes to `log` and receives SIGTERM when its parent ends.

    `environment` adds to the environment of this process. The program is in a session of its own, because Ctrl-C must
    reach the parent only, which then stops its children in order.
    """
    return subprocess.Popen(
        [*_terminated_with_parent(), *argv],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


@dataclass
class Child:
    """One child process. `supervise` restarts the process if it exits without being stopped."""

    starter: ClassVar[Starter] = staticmethod(start_process)
    """Function that starts the process. Tests replace it with a faster function that has the same effect."""
    name: str
    argv: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    _restarts: Restarts = field(default_factory=Restarts)
    _process: Process | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = self.starter(self.argv, self.environment, log)
        self._restarts.started()

    def ensure(self) -> None:
        """Start the child process unless it is running."""
        if self._process is None or self._process.poll() is not None:
            self.start()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status of the child, negative for a signal. None while it runs, before its start, and after `stop`."""
        return None if self._process is None else self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the child process if it is running. After SIGKILL, wait until the process is gone."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    def supervise(self, show: Callable[[str], None]) -> None:
        """Restart the child process if it has exited and its restart pause is over. `show` prints a line."""
        if self._process is None or (status := self._process.poll()) is None:
            return
        if not self._restarts.is_due():
            return
        self._restarts.counted()
        show(f"{self.name} exited with status {status} and is restarted (log: {self.log})")
        self.start()

    def stop(self) -> None:
        """Terminate the child process, or kill it after a timeout. Idempotent."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def installed_program(name: str, *words: str) -> tuple[str, ...]:
    """Return the command line of a program of pyproject.toml, which is installed beside this process's Python."""
    return (str(Path(sys.executable).with_name(name)), *words)


def python_module(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", *words)


def _terminated_with_parent() -> tuple[str, ...]:
    """Return the setpriv(1) command that makes a program receive SIGTERM when its parent dies.

    setpriv replaces itself with the program, so the child process is the program.
    """
    return ("setpriv", "--pdeathsig=TERM", "--")
