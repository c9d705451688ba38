"""Programs that answer a question about the host, begun side by side: most of what they take is their start. And
programs that change it, one after another.
"""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, Generic, TypeVar

from node_agent.slices import HostRefused, HostUnreadable

T = TypeVar("T")
_MOMENT: Final = 0.05
Command = Sequence[str]


@dataclass(frozen=True, slots=True)
class Asked(Generic[T]):
    """A question that programs were begun for. `deadline` in seconds is how long all of them are waited for."""

    what: str
    programs: Sequence[subprocess.Popen[str]]
    read: Callable[..., T]
    """What their outputs, one argument each, mean. Raises `ValueError`."""
    deadline: float

    def answer(self) -> T:
        """Raises `HostUnreadable`."""
        try:
            ends = monotonic() + self.deadline
            return self.read(*[_output(program, ends) for program in self.programs])
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise HostUnreadable(f"{self.what}: {reason(error)}") from error
        finally:
            self.end()

    def end(self) -> None:
        """Nobody wants to know any more; after the answer this does nothing."""
        for program in self.programs:
            with program:
                program.kill()


def ask(what: str, commands: Sequence[Command], read: Callable[..., T], deadline: float) -> Asked[T]:
    """Begin them all. Raises `HostUnreadable`."""
    asked = Asked(what, begun := list[subprocess.Popen[str]](), read, deadline)
    try:
        begun += map(_begun, commands)
    except OSError as error:
        asked.end()
        raise HostUnreadable(f"{what}: {error}") from error
    return asked


def tell(
    what: str,
    command: Command,
    stdin: str,
    deadline: float,
    is_no_answer: Callable[[str], bool] = lambda _: False,
) -> None:
    """Run a program that changes the host. A complaint is the host's answer, or says that there was none.

    Raises `HostRefused`, `HostUnreadable`.
    """
    try:
        subprocess.run(command, input=stdin, capture_output=True, check=True, text=True, timeout=deadline)
    except subprocess.CalledProcessError as error:
        # Below zero: a signal ended it before it could say.
        unanswered = error.returncode < 0 or is_no_answer(reason(error))
        verdict = HostUnreadable if unanswered else HostRefused
        raise verdict(f"{what}: {reason(error)}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostUnreadable(f"{what}: {error}") from error


def reason(error: Exception) -> str:
    """Why there is no output, in the program's own words where it has any."""
    if isinstance(error, subprocess.CalledProcessError):
        return str(error.stderr).strip() or str(error)
    return str(error)


def _begun(command: Command) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _output(program: subprocess.Popen[str], ends: float) -> str:
    # One that has long ended needs a moment all the same, to be read.
    printed, complaint = program.communicate(timeout=max(_MOMENT, ends - monotonic()))
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, program.args, printed, complaint)
    return printed
