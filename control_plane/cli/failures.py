"""Failures of a command of `sliceplane`, with the exit codes that scripts may rely on.

A failure has what the user needs: what happened, every reason that the control plane returned, and what to do next.
Only the module `session` prints failures.
"""

from enum import IntEnum
from http import HTTPStatus

from control_plane.cli import hints
from control_plane.cli.pages.words import outlook
from control_plane.client import errors
from control_plane.client.answers import Objection


class ExitCode(IntEnum):
    """Exit codes of the client. They are stable: a code never changes its meaning."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    NO_ACCESS = 3
    UNREACHABLE = 4
    NOT_DONE = 5
    INTERRUPTED = 130


class Failure(Exception):
    """A command failed. `advice` is what to do next, one line each."""

    exit_code = ExitCode.REFUSED

    def __init__(
        self, what: str, *advice: str, reasons: tuple[Objection, ...] = (), request_id: str = ""
    ) -> None:
        super().__init__(what)
        self.what, self.advice, self.reasons, self.request_id = what, advice, reasons, request_id


class Refused(Failure):
    """The control plane refused the request."""


class WrongUsage(Failure):
    exit_code = ExitCode.USAGE


class NoAccess(Failure):
    """The API key is missing, invalid, or lacks the required role."""

    exit_code = ExitCode.NO_ACCESS


class Unreachable(Failure):
    """The control plane did not respond, or returned an invalid response. The outcome of a change is unknown."""

    exit_code = ExitCode.UNREACHABLE


class Interrupted(Failure):
    """The user interrupted the command. The requested operation continues."""

    exit_code = ExitCode.INTERRUPTED


class NotReached(Failure):
    """The request was accepted, but the allocation ended without reaching the requested state."""

    exit_code = ExitCode.NOT_DONE


class TaskNotDone(Failure):
    """The task was accepted, but ended without success."""

    exit_code = ExitCode.NOT_DONE


class Stopped(Failure):
    """The request was accepted, but an event of the ledger stops the operation until an operator intervenes."""

    exit_code = ExitCode.NOT_DONE


class NotReady(Failure):
    """A health check of the control plane is not ok; the printed page shows which one and why."""


class NotPlaceable(Failure):
    """An allocation would not be placed now; the printed preview shows the reasons. Nothing was requested."""


class Different(Failure):
    """The live tables differ from the replayed ledger, or the ledger differs from what was sealed."""


_START = "check that it is running, or start one on this machine: ./dev up"
_OTHER = "check the URL: another server may be listening there; and compare the versions: sliceplane doctor"


def failure_of(error: errors.SliceplaneError) -> Failure:
    """Return the failure of a command for an error of the client, with what to do next."""
    match error:
        case errors.ApiProblem():
            return _of_problem(error)
        case errors.InvalidName():
            return WrongUsage(error.what, "use a name as the lists show it")
        case errors.InvalidCa():
            return WrongUsage(
                error.what, "check the file of --ca or SLICEPLANE_CA, or ca in the configuration file"
            )
        case errors.Untrusted():
            return Unreachable(error.what, error.advice)
        case errors.UnexpectedResponse():
            return Unreachable(error.what, _OTHER, request_id=error.request_id or "")
        case errors.TimedOut() | errors.NotReached():
            return NotReached(error.what)
        case _:
            return Unreachable(error.what, _START)


def _of_problem(error: errors.ApiProblem) -> Failure:
    advice = hints.hints(tuple(each.code for each in error.reasons), error.status, error.problem.hint)
    kind = _class_of(error.status)
    if error.problem.outlook:
        advice = (*(f"{name}: {text}" for name, text in outlook(error.problem.outlook)), *advice)
    return kind(error.what, *advice, reasons=error.reasons, request_id=error.request_id or "")


def _class_of(status: int) -> type[Failure]:
    """Return the class of the failure for an HTTP status; docs/cli.md lists the exit codes."""
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return NoAccess
    return Unreachable if status >= HTTPStatus.INTERNAL_SERVER_ERROR else Refused
