"""Failpoints: named points in the code at which a process can be killed or stopped, for tests that prove that no data
is lost at such a point.

`failpoint("intake.taken")` does nothing unless `SLICEPLANE_FAILPOINTS` armed that name before the process started
(`arm_from` reads it once, in each program's main). An armed failpoint kills the process as `kill -9` would, or stops it
until it receives SIGCONT, so that a test can intervene. It can be armed for a later visit: `intake.taken@3` acts when
the process reaches it for the third time. All names are declared in `tasks.workflows`: mypy refuses any other name in
the code, and a program does not start if the setting contains another name. Each change that another program or the
next start can observe has a failpoint before and after it (`tests/checks/test_failpoints.py`).
"""

import signal
import threading
from dataclasses import dataclass
from typing import Final

from tasks.workflows import FAILPOINTS, Failpoint, Side, StepName, step_point


@dataclass
class Armed:
    """An armed failpoint: the signal that the process sends to itself, and the number of the visit (from 1) at which it
    does so.
    """

    signal: signal.Signals
    visit: int


_armed: Final[dict[str, Armed]] = {}
_STOP: Final = "stop:"


class UnknownFailpoint(ValueError):
    """The setting SLICEPLANE_FAILPOINTS contains an unknown failpoint or an invalid number after `@`."""

    def __init__(self, word: str) -> None:
        super().__init__(
            f"SLICEPLANE_FAILPOINTS contains {word!r}; write a failpoint of tasks/workflows.py, optionally followed by "
            "@visit (1, 2, ...) and preceded by stop: to stop the process instead of killing it"
        )


def arm_from(setting: str) -> None:
    """Arm the failpoints in `setting`: `name`, `name@visit` or `stop:name@visit`, comma separated; visits count from 1.

    If it raises `UnknownFailpoint`, no failpoint is armed.
    """
    _armed.update([_read(word) for word in filter(None, setting.split(","))])


def _read(word: str) -> tuple[str, Armed]:
    name, _, visit = word.removeprefix(_STOP).partition("@")
    if name not in FAILPOINTS or not (visit or "1").isdecimal() or visit == "0":
        raise UnknownFailpoint(word)
    does = signal.SIGSTOP if word.startswith(_STOP) else signal.SIGKILL
    return name, Armed(does, int(visit or 1))


def failpoint(name: Failpoint) -> None:
    """Kill or stop the process at this call if the named failpoint is armed."""
    _visit(name)


def step_failpoint(step: StepName, side: Side) -> None:
    """Kill or stop the process before or after (`side`) a change of the host, if the failpoint there is armed."""
    if _armed:
        _visit(step_point(step, side))


def _visit(name: str) -> None:
    if name not in _armed:
        return
    armed = _armed[name]
    armed.visit -= 1
    if armed.visit == 0:
        # Signal this thread: a signal to the process could go to another thread while this one continues for a moment.
        signal.pthread_kill(threading.get_ident(), armed.signal)
