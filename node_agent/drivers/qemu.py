"""QEMU processes, looked for in /proc and not in libvirt: a guest may outlive what libvirt knows of it."""

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from node_agent.drivers.processes import PROC, own_processes
from node_agent.machine_plans import FoundProcess
from node_agent.slices import HostRefused

_DEATH_SECONDS: Final = 5.0


def qemu_processes() -> tuple[FoundProcess, ...]:
    """Every QEMU of this host that runs a named guest (`-name guest=slice0,...`, as libvirt starts it)."""
    return tuple(_found())


def end_process(process: FoundProcess) -> None:
    """Kill it and wait for its end. One that is gone, or whose pid is another's by now, is left alone."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        # The handle pins the process, so what is checked now is what is killed.
        if _started(process.pid) == process.started:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            if not select.select([handle], [], [], _DEATH_SECONDS)[0]:
                raise HostRefused(f"qemu process {process.pid} of {process.name} did not die of SIGKILL")
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def _found() -> Iterator[FoundProcess]:
    for pid, words in own_processes():
        name, started = _guest_name(words), _started(pid)
        if name and started is not None:
            yield FoundProcess(name, pid, started)


def _guest_name(words: tuple[str, ...]) -> str | None:
    if not Path(words[0]).name.startswith("qemu-system") or "-name" not in words[:-1]:
        return None
    options = words[words.index("-name") + 1].split(",")
    return next((option.removeprefix("guest=") for option in options if option.startswith("guest=")), None)


def _started(pid: int) -> int | None:
    """Start time in clock ticks since boot (proc(5), /proc/pid/stat field 22); None once it is gone."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in brackets and may hold anything, blanks and brackets included.
    return int(stat.rpartition(")")[2].split()[19])
