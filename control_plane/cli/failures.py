"""Failures of a command of `sliceplane`, with the exit codes that scripts may rely on.

A failure has what the user needs: what happened, every reason that the control plane returned, and what to do next.
`session` is the one place that prints it.
"""

from enum import IntEnum
from http import HTTPStatus
from typing import Final

from control_plane.cli.answers import Objection, Problem


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


class Different(Failure):
    """The live tables differ from the replayed ledger."""


_ADVICE: Final = {
    "unknown_sku": "list the SKUs: sliceplane skus list",
    "unknown_image": "list the images of each SKU: sliceplane skus list",
    "no_capacity": "list the free slots: sliceplane slots list; and the drift that blocks placement: sliceplane nodes drift",
    "unknown_allocation": "list the allocations: sliceplane allocations list",
    "unknown_project": "list the projects: sliceplane projects list",
    "project_missing": "specify one of your projects: --project PROJECT",
    "project_in_use": "list the allocations of the project: sliceplane allocations list --project PROJECT",
    "unknown_node": "list the nodes: sliceplane nodes list",
    "unknown_slot": "list the slots: sliceplane slots list",
    "unknown_projection": "list the projections: sliceplane projections list",
    "projection_not_stopped": "show the state of each projection: sliceplane projections list",
    "not_stopped_at_position": "show where the projection stopped: sliceplane projections list",
    "unknown_task": "list the tasks: sliceplane tasks list",
    "unknown_parked": "list the parked streams: sliceplane tasks parked",
    "no_desired_state": "show which slots have an allocation: sliceplane slots list",
    "unsupported_by_agent": "show the agent version of each node: sliceplane nodes list",
    "not_retriable": "create another allocation: sliceplane allocations create --sku SKU",
    "only_simulated_nodes": "list the nodes and their kinds: sliceplane nodes list",
    "node_exists": "show the state of the node: sliceplane nodes list",
    "fabric_only_refused": "use --network-mode private-nat",
    "network_mode_not_offered": "use --network-mode private-nat",
}
_NO_KEY: Final = "specify a valid key: --api-key, SLICEPLANE_API_KEY, or api_key in the configuration file"


def from_problem(problem: Problem) -> Failure:
    """Return the failure for a problem document (RFC 9457)."""
    # `detail` repeats the reasons in one sentence.
    what = problem.title if problem.reasons or not problem.detail else f"{problem.title}: {problem.detail}"
    kind, *advice = _kind_and_advice(problem)
    return kind(what, *advice, reasons=problem.reasons, request_id=problem.request_id or "")


def _kind_and_advice(problem: Problem) -> tuple[type[Failure], *tuple[str, ...]]:
    """Return the class of the failure for an HTTP status, and the advice for the user."""
    match problem.status:
        case HTTPStatus.UNAUTHORIZED:
            return NoAccess, _NO_KEY
        case HTTPStatus.FORBIDDEN:
            return NoAccess, "use an API key with the required role"
        case HTTPStatus.GONE:
            return Refused, "start again without --after, or with --after and an existing position"
        case status if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return Unreachable, "retry; the control plane's log has the details"
        case _:
            advice = [_ADVICE[each.code] for each in problem.reasons if each.code in _ADVICE]
            return Refused, *dict.fromkeys(advice or filter(None, [problem.hint]))
