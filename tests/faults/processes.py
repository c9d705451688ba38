"""Signals to a program with all of its processes."""

import contextlib
import os
import signal
from pathlib import Path


def signal_all(pid: int, number: signal.Signals) -> None:
    """To a process and its children; the first before the others, whose deaths it would notice. A death is waited for
    by whoever started it.
    """
    for each in (pid, *_children_of(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, number)


def _children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
