"""The host's processes, from /proc and not from whoever started them: they may outlive what their starter knows.

Only this process's own PID namespace counts as the host. A machine that carries lab nodes shows their processes in
its /proc as well, under the same names and options, and they are none of its agent's business.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")


def own_processes() -> Iterator[tuple[int, tuple[str, ...]]]:
    """Id and command line of every process of this host that has one (kernel threads and zombies have none)."""
    own = _pid_namespace(PROC / "self")
    for folder in PROC.iterdir():
        if folder.name.isdigit() and (words := _command_line(folder, own)):
            yield int(folder.name), words


def _command_line(folder: Path, own: int) -> tuple[str, ...]:
    try:
        if _pid_namespace(folder) != own:
            return ()
        return tuple(os.fsdecode((folder / "cmdline").read_bytes()).split("\0")[:-1])
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ()  # ended while we looked, or not ours to look at


def _pid_namespace(process: Path) -> int:
    return (process / "ns" / "pid").stat().st_ino
