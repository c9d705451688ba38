"""Programs that the set-up runs. Their output goes to one log file; an error states what to do.

Each program runs in its own process group, so that Ctrl-C interrupts only the set-up. The set-up then ends the whole
group, including grandchildren, before its callers undo anything that the group still needs (a policy file, an
incomplete folder).
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_TAIL_LINES: Final = 20
_TERMINATE_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.05
_PR_SET_CHILD_SUBREAPER: Final = 36


class SetupFailed(Exception):
    """The set-up cannot continue; the message states the reason and what to do."""


class CommandFailed(SetupFailed):
    """A program exited with a code other than 0. `output` is everything that it wrote."""

    def __init__(self, command: Sequence[str], code: int, output: str, *, advice: str, log: Path) -> None:
        tail = "\n".join("  " + line for line in output.splitlines()[-_TAIL_LINES:])
        super().__init__(
            f"`{' '.join(command[:6])} ...` exited with code {code}:\n{tail}\n{advice}\nThe complete log is in {log}"
        )
        self.output = output


def run(
    command: Sequence[str],
    log: Path,
    *,
    advice: str = "Correct the problem, then run ./dev again.",
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run `command` until it exits and return its output, which is also appended to `log`.

    Raises `CommandFailed`, with `advice`, if the exit code is not 0, and `SetupFailed` if the program does not exist.
    """
    with log.open("ab") as written:
        written.write(f"\n$ {' '.join(command)}\n".encode())
        written.flush()
        start = written.tell()
        code = _wait(command, written.fileno(), {**os.environ, **(environment or {})})
    with log.open("rb") as read:
        read.seek(start)
        output = read.read().decode(errors="replace")
    if code != 0:
        raise CommandFailed(command, code, output, advice=advice, log=log)
    return output


def _wait(command: Sequence[str], output: int, environment: Mapping[str, str]) -> int:
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise SetupFailed(
            f"The program {command[0]} is not installed on this machine. Install it, then run ./dev again."
        ) from None
    try:
        return child.wait()
    except BaseException:
        # Printed before the wait below, because the programs may take seconds to exit.
        sys.stderr.write("\nstopping ...\n")
        _end_group(child.pid)
        raise


def _end_group(group: int) -> None:
    """Terminate a process group and return when its last process is gone. Kill it after a timeout."""
    # As a subreaper, this process adopts the orphans of the group and can wait for them. Without it, the end of a dpkg
    # that apt left behind could not be detected.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    deadline = time.monotonic() + _TERMINATE_SECONDS
    os.killpg(group, signal.SIGTERM)
    while _has_processes(group):
        if time.monotonic() > deadline:
            os.killpg(group, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _has_processes(group: int) -> bool:
    try:
        while os.waitpid(-group, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True
