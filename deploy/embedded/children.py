"""Programs of ours as children: logged to a file, dead with their parent, started again when they die.

Every child is started from the main thread, because the kernel's parent-death signal is bound to the thread that
forked; `tend` is called from there too, again and again, while anything is waited for.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deploy.embedded.restarts import Restarts

REPOSITORY: Final = Path(__file__).resolve().parents[2]
STOP_SECONDS: Final = 8.0


@dataclass
class Child:
    """One program. `tend` starts it again after an end that was not requested."""

    name: str
    argv: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    _restarts: Restarts = field(default_factory=Restarts)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_dying_with_parent(), *self.argv],
                cwd=REPOSITORY,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is the parent's to turn into an orderly end
            )
        self._restarts.started()

    def ensure(self) -> None:
        """Start it unless it runs."""
        if self._process is None or self._process.poll() is not None:
            self.start()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def status(self) -> int | None:
        """How it ended, negative for a signal; None while it runs, or while nobody wants it to."""
        return None if self._process is None else self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Signal it, if it runs; after a SIGKILL, return when it is gone."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    def tend(self, say: Callable[[str], None]) -> None:
        """Start it again if it has died."""
        if self._process is None or (status := self._process.poll()) is None:
            return
        if not self._restarts.is_due():
            return
        self._restarts.counted()
        say(f"{self.name} ended with status {status} and is started again (log: {self.log})")
        self.start()

    def stop(self) -> None:
        """End it in order, or by force when it does not listen. Twice is as once."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def python_module(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", *words)


def _dying_with_parent() -> tuple[str, ...]:
    """setpriv(1) becomes the program, so the child is the program itself."""
    return ("setpriv", "--pdeathsig=TERM", "--")
