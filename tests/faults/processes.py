"""Signals to a process and all of its children."""

import contextlib
import os
import signal
from pathlib import Path


def signal_all(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and then to its children, so that the process cannot react to their deaths. The caller
    must be the parent of the process and wait for its death.
    """
    for each in (pid, *_children_of(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, number)


def _children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
