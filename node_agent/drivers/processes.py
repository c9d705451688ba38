"""The host's processes, from /proc and not from whoever started them: they may outlive what their starter knows.

Only this process's own PID namespace counts as the host. A machine that carries lab nodes shows their processes in
its /proc as well, under the same names and options, and they are none of its agent's business.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

PROC: Final = Path("/proc")


def own_processes(host: int | Literal["self"] = "self") -> Iterator[tuple[int, tuple[str, ...]]]:
    """Id and command line of every process of this host that has one (kernel threads and zombies have none).

    The host is that of the process `host`, which has the ids that it has here.
    """
    own = _pid_namespace(PROC / str(host))
    for folder in PROC.iterdir():
        if folder.name.isdigit() and (words := _command_line(folder, own)):
            yield int(folder.name), words


@dataclass(frozen=True, slots=True)
class Moment:
    """What /proc/PID/stat shows of a process: its state, a letter, and its start in clock ticks since boot."""

    state: str
    started: int

    @property
    def is_frozen(self) -> bool:
        """Whether a signal or a tracer has stopped it."""
        return self.state in {"T", "t"}


def moment_of(pid: int) -> Moment | None:
    """Return None once the process is gone."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in brackets and may hold anything, blanks and brackets included.
    fields = stat.rpartition(")")[2].split()
    return Moment(fields[0], int(fields[19]))


def is_frozen(pid: int) -> bool:
    """Return whether a signal or a tracer has stopped the process."""
    moment = moment_of(pid)
    return moment is not None and moment.is_frozen


def is_still(pid: int) -> bool:
    """Return whether the process does nothing: it is stopped, or has ended."""
    moment = moment_of(pid)
    return moment is None or moment.is_frozen or moment.state in {"Z", "X"}


def _command_line(folder: Path, own: int) -> tuple[str, ...]:
    try:
        if _pid_namespace(folder) != own:
            return ()
        return tuple(os.fsdecode((folder / "cmdline").read_bytes()).split("\0")[:-1])
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ()  # ended while we looked, or not ours to look at


def _pid_namespace(process: Path) -> int:
    return (process / "ns" / "pid").stat().st_ino
