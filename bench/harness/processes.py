"""Resource usage of processes: processor time and memory, as Linux reports them (proc_pid_stat(5)).

A process is counted with its descendants, including dead ones that it has waited for. The usage of Postgres
therefore includes all of its backends.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_OWN, _WAITED_FOR = slice(11, 13), slice(13, 15)
"""Fields of /proc/PID/stat after the name of the process: user and system time in ticks, of the process itself and of
its children that it has waited for.
"""


class Usage(NamedTuple):
    """Processor time `cpu` in seconds, and `memory` in bytes: private memory plus a share of shared memory (Pss)."""

    cpu: float
    memory: int


def usage_of(pid: int) -> Usage:
    """Return the usage of a process and its descendants. Reading the memory is slow. Ended processes count as zero."""
    pids = [pid, *_below(pid)]
    return Usage(sum(map(_cpu, pids)), sum(map(_memory, pids)))


def cpu(pid: int) -> float:
    """Return the processor seconds of a process and its descendants, without reading the memory."""
    return sum(map(_cpu, [pid, *_below(pid)]))


def _below(pid: int) -> Iterator[int]:
    for task in _tasks(pid):
        for child in _text(task / "children").split():
            yield int(child)
            yield from _below(int(child))


def _cpu(pid: int) -> float:
    # The name is in parentheses and may contain any character.
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
