"""Everything that can end a command badly, and the exit code that scripts may rely on.

A failure carries what the user needs: what happened, every reason the control plane gave, and what to do next.
`session` is the one place that shows it.
"""

from enum import IntEnum
from http import HTTPStatus
from typing import Final

from control_plane.cli.answers import Objection, Problem


class ExitCode(IntEnum):
    """Stable: a code never changes its meaning."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    NO_ACCESS = 3
    UNREACHABLE = 4
    NOT_DONE = 5
    INTERRUPTED = 130


class Failure(Exception):
    """A command that did not do what was asked. `advice` says what to do next, one line each."""

    exit_code = ExitCode.REFUSED

    def __init__(
        self, what: str, *advice: str, reasons: tuple[Objection, ...] = (), request_id: str = ""
    ) -> None:
        super().__init__(what)
        self.what, self.advice, self.reasons, self.request_id = what, advice, reasons, request_id


class Refused(Failure):
    """The control plane understood and said no."""


class WrongUsage(Failure):
    exit_code = ExitCode.USAGE


class NoAccess(Failure):
    """No key, a wrong key, or one whose role may not do this."""

    exit_code = ExitCode.NO_ACCESS


class Unreachable(Failure):
    """No answer, or one that only a broken control plane gives. Whether a change took place is not known."""

    exit_code = ExitCode.UNREACHABLE


class Interrupted(Failure):
    """The user stopped waiting. What was asked for goes on."""

    exit_code = ExitCode.INTERRUPTED


class NotReached(Failure):
    """The request was taken, and the allocation ended without becoming what it was to be."""

    exit_code = ExitCode.NOT_DONE


class TaskNotDone(Failure):
    """The task was taken, and came to an end without a result."""

    exit_code = ExitCode.NOT_DONE


class Stopped(Failure):
    """What was asked for was taken, and an event of the log keeps it from its end until somebody decides."""

    exit_code = ExitCode.NOT_DONE


class NotReady(Failure):
    """A check of the control plane is not ok; the printed page shows which one and why."""


class Different(Failure):
    """The live tables are not what the log says."""


_ADVICE: Final = {
    "unknown_sku": "see what is offered: sliceplane skus list",
    "unknown_image": "see the images of each SKU: sliceplane skus list",
    "no_capacity": "see which slots are free: sliceplane slots list; and what keeps slices from nodes: sliceplane nodes drift",
    "unknown_allocation": "see the allocations there are: sliceplane allocations list",
    "unknown_node": "see the nodes there are: sliceplane nodes list",
    "unknown_slot": "see the slots there are: sliceplane slots list",
    "unknown_projection": "see the projections there are: sliceplane projections list",
    "not_stopped": "see how each stands: sliceplane projections list",
    "not_stopped_there": "see where it stopped: sliceplane projections list",
    "unknown_task": "see the tasks there are: sliceplane tasks list",
    "unknown_parked": "see what is parked: sliceplane tasks parked",
    "nothing_wanted": "see which slots have an allocation: sliceplane slots list",
    "not_spoken": "see what runs on each node: sliceplane nodes list",
    "not_retriable": "ask for another: sliceplane allocations create --sku SKU",
    "only_simulated_nodes": "see the nodes and their kinds: sliceplane nodes list",
    "node_exists": "see how it stands: sliceplane nodes list",
    "fabric_only_refused": "ask for --network-mode private-nat",
    "network_mode_not_offered": "ask for --network-mode private-nat",
}
_NO_KEY: Final = "give a valid key: --api-key, SLICEPLANE_API_KEY, or api_key in the configuration file"


def from_problem(problem: Problem) -> Failure:
    """The failure that a problem document (RFC 9457) stands for."""
    # The detail is the reasons over again, in one sentence.
    what = problem.title if problem.reasons or not problem.detail else f"{problem.title}: {problem.detail}"
    kind, *advice = _meant_by(problem)
    return kind(what, *advice, reasons=problem.reasons, request_id=problem.request_id or "")


def _meant_by(problem: Problem) -> tuple[type[Failure], *tuple[str, ...]]:
    """The kind of failure behind a status, and what to do about it."""
    match problem.status:
        case HTTPStatus.UNAUTHORIZED:
            return NoAccess, _NO_KEY
        case HTTPStatus.FORBIDDEN:
            return NoAccess, "use a key whose role allows this"
        case HTTPStatus.GONE:
            return Refused, "start again without --after, or with --after and a position that there is"
        case status if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return Unreachable, "try again; the control plane's log knows more"
        case _:
            return Refused, *dict.fromkeys(
                _ADVICE[each.code] for each in problem.reasons if each.code in _ADVICE
            )
