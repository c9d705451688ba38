"""Named places where a process can be made to die, for tests that prove nothing is lost there.

`failpoint("intake.taken")` does nothing unless `SLICEPLANE_FAILPOINTS` armed that name before the process started
(`arm_from` reads it once, in each program's main): then the process kills itself as `kill -9` would, at the armed
visit. What can be armed is declared in `tasks.workflows`: mypy refuses any other name in the code, and a program that
is told one does not start. An effect has a failpoint on both sides (`tests/checks/test_failpoints.py`).
"""

import os
import signal
from typing import Final

from tasks.workflows import FAILPOINTS, Failpoint, Side, StepName, step_point

_armed: Final[dict[str, int]] = {}


class UnknownFailpoint(ValueError):
    """Something was to be armed that is no failpoint, or at a visit that is no number."""

    def __init__(self, word: str) -> None:
        super().__init__(
            f"SLICEPLANE_FAILPOINTS names {word!r}, and a failpoint is one of tasks/workflows.py, with @visit (1, 2, ...) "
            "if need be"
        )


def arm_from(setting: str) -> None:
    """Arm from `name` or `name@visit`, comma separated; visits count from 1. Raises `UnknownFailpoint`, and arms
    none.
    """
    _armed.update([_read(word) for word in filter(None, setting.split(","))])


def _read(word: str) -> tuple[str, int]:
    name, _, visit = word.partition("@")
    if name not in FAILPOINTS or not (visit or "1").isdecimal() or visit == "0":
        raise UnknownFailpoint(word)
    return name, int(visit or 1)


def failpoint(name: Failpoint) -> None:
    """Die here if armed."""
    _visit(name)


def step_failpoint(step: StepName, side: Side) -> None:
    """Die on this side of a step if armed."""
    if _armed:
        _visit(step_point(step, side))


def _visit(name: str) -> None:
    if name not in _armed:
        return
    _armed[name] -= 1
    if _armed[name] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
