"""Programs that the set-up runs: their output goes to one log, and a failure says what to do about it.

Each runs in a process group of its own, so that a Ctrl-C reaches us alone and we end all of it, grandchildren
included, before whoever called us undoes something (a policy file, a half-made folder) that they would need.
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
    """The set-up cannot go on; the message tells a person why and what to do."""


class CommandFailed(SetupFailed):
    """A program ended badly. `output` is all it wrote."""

    def __init__(self, command: Sequence[str], code: int, output: str, *, advice: str, log: Path) -> None:
        tail = "\n".join("  " + line for line in output.splitlines()[-_TAIL_LINES:])
        super().__init__(
            f"`{' '.join(command[:6])} ...` ended with {code}:\n{tail}\n{advice}\nThe whole log: {log}"
        )
        self.output = output


def run(
    command: Sequence[str],
    log: Path,
    *,
    advice: str = "Run ./dev again once that is mended.",
    environment: Mapping[str, str] | None = None,
) -> str:
    """Runs `command` to its end and returns what it wrote (also appended to `log`).

    Raises CommandFailed, with `advice`, when it does not end with 0; SetupFailed when there is no such program.
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
        raise SetupFailed(f"The program {command[0]} is missing on this machine.") from None
    try:
        return child.wait()
    except BaseException:
        # At once: the programs may take seconds to end.
        sys.stderr.write("\nstopping ...\n")
        _end_group(child.pid)
        raise


def _end_group(group: int) -> None:
    """Ends a process group and returns when the last of it is gone."""
    # Orphans of the group become our children, or nobody could tell when a dpkg left by apt has ended.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    deadline = time.monotonic() + _TERMINATE_SECONDS
    os.killpg(group, signal.SIGTERM)
    while _is_there(group):
        if time.monotonic() > deadline:
            os.killpg(group, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _is_there(group: int) -> bool:
    try:
        while os.waitpid(-group, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True
