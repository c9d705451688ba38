"""Run programs that read or change the host.

The programs of one query run concurrently, because starting a program takes most of its time. Programs that change the
host run one after another.
"""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, Generic, TypeVar

from node_agent.host.slices import HostRefused, HostUnreadable

T = TypeVar("T")
_MIN_TIMEOUT: Final = 0.05
Command = Sequence[str]


@dataclass(frozen=True, slots=True)
class PendingQuery(Generic[T]):
    """A query of the host by programs that are still running. `deadline` is in seconds and applies to all programs."""

    operation: str
    programs: Sequence[subprocess.Popen[str]]
    read: Callable[..., T]
    """Combine the outputs of the programs, one argument each, into the result. Raises `ValueError`."""
    deadline: float

    def answer(self) -> T:
        """Wait for the programs of this query and return the query's result. Raises `HostUnreadable`."""
        try:
            ends = monotonic() + self.deadline
            return self.read(*[_output(program, ends) for program in self.programs])
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise HostUnreadable(f"cannot {self.operation}: {reason(error)}") from error
        finally:
            self.end()

    def end(self) -> None:
        """Kill the programs of this query that are still running. After `answer` a call has no effect."""
        for program in self.programs:
            with program:
                program.kill()


def start_query(
    operation: str, commands: Sequence[Command], read: Callable[..., T], deadline: float
) -> PendingQuery[T]:
    """Start all programs of a query. Raises `HostUnreadable`."""
    query = PendingQuery(operation, programs := list[subprocess.Popen[str]](), read, deadline)
    try:
        programs += map(_start, commands)
    except OSError as error:
        query.end()
        raise HostUnreadable(f"cannot {operation}: {error}") from error
    return query


def run_change(
    operation: str,
    command: Command,
    stdin: str,
    deadline: float,
    is_no_answer: Callable[[str], bool] = lambda _: False,
) -> None:
    """Run a program that changes the host.

    Raises `HostRefused` if the program fails. Raises `HostUnreadable` instead if `is_no_answer` accepts the program's
    error output, or if the program was killed or timed out, because the change may have taken effect.
    """
    try:
        subprocess.run(command, input=stdin, capture_output=True, check=True, text=True, timeout=deadline)
    except subprocess.CalledProcessError as error:
        # A negative code means that a signal ended the program, so its outcome is unknown.
        unanswered = error.returncode < 0 or is_no_answer(reason(error))
        error_type = HostUnreadable if unanswered else HostRefused
        raise error_type(f"cannot {operation}: {reason(error)}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostUnreadable(f"cannot {operation}: {error}") from error


def reason(error: Exception) -> str:
    """Return the reason why a program failed: its error output, or the text of `error` if there is no output."""
    if isinstance(error, subprocess.CalledProcessError):
        return str(error.stderr).strip() or str(error)
    return str(error)


def _start(command: Command) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _output(program: subprocess.Popen[str], ends: float) -> str:
    # Even a program that has already exited needs a positive timeout for reading its output.
    stdout, stderr = program.communicate(timeout=max(_MIN_TIMEOUT, ends - monotonic()))
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, program.args, stdout, stderr)
    return stdout
