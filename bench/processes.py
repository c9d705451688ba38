"""What processes cost: time on processors and memory, as Linux tells of each (proc_pid_stat(5)).

A process counts with all that it started, the dead included once it waited for them; so Postgres counts whole.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_OWN, _WAITED_FOR = slice(11, 13), slice(13, 15)
"""Where user and system time stand behind the name, in ticks; and those of children that are no more."""


class Spent(NamedTuple):
    """`cpu` in seconds, `memory` in bytes: what is a process's own and its share of what it shares (Pss)."""

    cpu: float
    memory: int


def spent(pid: int) -> Spent:
    """Of a process and of all that live below it; memory is the dear half. One that ended meanwhile counts nothing."""
    family = [pid, *_below(pid)]
    return Spent(sum(map(_cpu, family)), sum(map(_memory, family)))


def cpu(pid: int) -> float:
    """The other half alone."""
    return sum(map(_cpu, [pid, *_below(pid)]))


def _below(pid: int) -> Iterator[int]:
    for task in _tasks(pid):
        for child in _text(task / "children").split():
            yield int(child)
            yield from _below(int(child))


def _cpu(pid: int) -> float:
    # The name stands in parentheses and may hold anything.
    fields = _text(_PROC / str(pid) / "stat").rpartition(")")[2].split()
    return sum(map(int, [*fields[_OWN], *fields[_WAITED_FOR]])) / _TICKS


def _memory(pid: int) -> int:
    lines = _text(_PROC / str(pid) / "smaps_rollup").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _tasks(pid: int) -> list[Path]:
    try:
        return [*(_PROC / str(pid) / "task").iterdir()]
    except FileNotFoundError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
