"""Named places where a process can be made to die, for tests that prove nothing is lost there.

`failpoint("intake.taken")` does nothing unless `SLICEPLANE_FAILPOINTS` armed that name before the process started
(`arm_from` reads it once, in each program's main): then the process kills itself as `kill -9` would, at the armed
visit, or stops there until it is told to go on (SIGCONT), so that a test can come in between. What can be armed is
declared in `tasks.workflows`: mypy refuses any other name in the code, and a program that is told one does not start.
An effect has a failpoint on both sides (`tests/checks/test_failpoints.py`).
"""

import signal
import threading
from dataclasses import dataclass
from typing import Final

from tasks.workflows import FAILPOINTS, Failpoint, Side, StepName, step_point


@dataclass
class Armed:
    """What the process does to itself, at which visit from now on."""

    signal: signal.Signals
    visit: int


_armed: Final[dict[str, Armed]] = {}
_STOP: Final = "stop:"


class UnknownFailpoint(ValueError):
    """Something was to be armed that is no failpoint, or at a visit that is no number."""

    def __init__(self, word: str) -> None:
        super().__init__(
            f"SLICEPLANE_FAILPOINTS names {word!r}, and a failpoint is one of tasks/workflows.py, with @visit (1, 2, ...) "
            "if need be, after stop: where the process is to stop and not to die"
        )


def arm_from(setting: str) -> None:
    """Arm from `name`, `name@visit` or `stop:name@visit`, comma separated; visits count from 1. Raises
    `UnknownFailpoint`, and arms none.
    """
    _armed.update([_read(word) for word in filter(None, setting.split(","))])


def _read(word: str) -> tuple[str, Armed]:
    name, _, visit = word.removeprefix(_STOP).partition("@")
    if name not in FAILPOINTS or not (visit or "1").isdecimal() or visit == "0":
        raise UnknownFailpoint(word)
    does = signal.SIGSTOP if word.startswith(_STOP) else signal.SIGKILL
    return name, Armed(does, int(visit or 1))


def failpoint(name: Failpoint) -> None:
    """Die here if armed, or stop."""
    _visit(name)


def step_failpoint(step: StepName, side: Side) -> None:
    """The same on this side of a step."""
    if _armed:
        _visit(step_point(step, side))


def _visit(name: str) -> None:
    if name not in _armed:
        return
    armed = _armed[name]
    armed.visit -= 1
    if armed.visit == 0:
        # To this thread: sent to the process, another thread would take it while this one goes on for a moment.
        signal.pthread_kill(threading.get_ident(), armed.signal)
