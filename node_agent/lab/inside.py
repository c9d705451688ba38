"""Into a little host from outside: how to enter its namespaces, and what runs in them."""

import os
from pathlib import Path


def enter(pid: int) -> tuple[str, ...]:
    """The start of a command line whose rest runs in the namespaces of process `pid` (nsenter(1))."""
    return ("nsenter", f"--target={pid}", "--net", "--mount", "--uts", "--pid", "--")


def processes_in(pid: int) -> dict[int, tuple[str, ...]]:
    """All processes in the process namespace of `pid`: id on this machine, and command line.

    Kernel threads and processes that are just dying have no command line and are left out.
    """
    namespace = os.stat(f"/proc/{pid}/ns/pid").st_ino
    found: dict[int, tuple[str, ...]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (argv := _argv_within(entry, namespace)):
            found[int(entry.name)] = argv
    return found


def number_inside(pid: int) -> int:
    """How a process numbers itself: its id in the innermost namespace (proc(5), NSpid). 0 if it is gone."""
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
        # Gone since the folder was listed, or one that even root may not look into, so none of ours.
        return ()
