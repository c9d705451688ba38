"""The host's processes, read from /proc because a process may outlive the record of the daemon that started it.

Only the PID namespace of this process counts as the host. The /proc of a machine that runs lab nodes also contains the
processes of the nodes, with the same names and options, and those processes must be ignored.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

PROC: Final = Path("/proc")


def own_processes(host: int | Literal["self"] = "self") -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield id and command line of every process of a host, except kernel threads and zombies, which have no command
    line.

    The host is the PID namespace of the process `host`. The ids are valid in the PID namespace of the calling process.
    """
    own = _pid_namespace(PROC / str(host))
    for folder in PROC.iterdir():
        if folder.name.isdigit() and (arguments := _command_line(folder, own)):
            yield int(folder.name), arguments


@dataclass(frozen=True, slots=True)
class Moment:
    """State of a process in /proc/PID/stat: the state letter, and the start time in clock ticks since boot."""

    state: str
    started: int

    @property
    def is_frozen(self) -> bool:
        """Whether a signal or a tracer has stopped the process."""
        return self.state in {"T", "t"}


def moment_of(pid: int) -> Moment | None:
    """Return the scheduling state and the start time of a process, or None if it has exited."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program name in parentheses; it may itself contain blanks and parentheses.
    fields = stat.rpartition(")")[2].split()
    return Moment(fields[0], int(fields[19]))


def is_frozen(pid: int) -> bool:
    """Return whether a signal or a tracer has stopped the process."""
    moment = moment_of(pid)
    return moment is not None and moment.is_frozen


def is_still(pid: int) -> bool:
    """Return whether the process executes nothing: it is stopped or has exited."""
    moment = moment_of(pid)
    return moment is None or moment.is_frozen or moment.state in {"Z", "X"}


def _command_line(folder: Path, own: int) -> tuple[str, ...]:
    try:
        if _pid_namespace(folder) != own:
            return ()
        return tuple(os.fsdecode((folder / "cmdline").read_bytes()).split("\0")[:-1])
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ()  # the process has exited, or this user may not read it


def _pid_namespace(process: Path) -> int:
    return (process / "ns" / "pid").stat().st_ino
