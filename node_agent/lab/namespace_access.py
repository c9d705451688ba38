"""Access to a lab host from outside: enter its namespaces, and list its processes."""

import os
from pathlib import Path


def enter(pid: int) -> tuple[str, ...]:
    """Return the command prefix that runs a command in the namespaces of process `pid` (nsenter(1))."""
    return ("nsenter", f"--target={pid}", "--net", "--mount", "--uts", "--pid", "--")


def processes_in(pid: int) -> dict[int, tuple[str, ...]]:
    """Return the command lines of the processes in the PID namespace of `pid`, by process id on this machine.

    Kernel threads and exiting processes have no command line and are omitted.
    """
    namespace = os.stat(f"/proc/{pid}/ns/pid").st_ino
    found: dict[int, tuple[str, ...]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (argv := _argv_within(entry, namespace)):
            found[int(entry.name)] = argv
    return found


def number_inside(pid: int) -> int:
    """Return the id of a process in its innermost PID namespace (proc(5), NSpid), or 0 if the process has exited."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    numbers = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return int(numbers.split()[-1])


def _argv_within(entry: Path, namespace: int) -> tuple[str, ...]:
    try:
        if (entry / "ns" / "pid").stat().st_ino != namespace:
            return ()
        return tuple((entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1])
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # The process has exited, or even root may not read it, in which case it belongs to no lab host.
        return ()
