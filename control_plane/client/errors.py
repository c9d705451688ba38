"""Errors of the client: one class for each problem type of the API, and those of transport and waiting.

`SliceplaneError` is the base class of all. An `ApiProblem` is a refusal or failure that the control plane returned; its
class is that of the problem's type, and the codes of its reasons name the details.
"""

from http import HTTPStatus
from typing import Final

from control_plane.client.answers import Objection, Problem


class SliceplaneError(Exception):
    """Base class of the client's errors. `request_id` names the request in the log of the control plane."""

    def __init__(self, what: str, request_id: str | None = None) -> None:
        super().__init__(what)
        self.what, self.request_id = what, request_id


class InvalidName(SliceplaneError):
    """A name cannot be a part of a path: it is empty, a relative path, or contains a slash. No request was sent."""


class InvalidCa(SliceplaneError):
    """The CA contains no valid PEM certificate. No request was sent."""


class Unreachable(SliceplaneError):
    """The control plane did not respond. The outcome of a change is unknown; a repeated request has no second effect
    if its idempotency key is the same.
    """


class Untrusted(Unreachable):
    """The certificate of the server cannot be verified. `advice` is what to do. No request was sent."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(what)
        self.advice = advice


class UnexpectedResponse(SliceplaneError):
    """The response does not have the format of the API: another server may have sent it, or a control plane of another
    release.
    """


class TimedOut(SliceplaneError):
    """The wait timed out. The operation that the client waited for continues."""


class NotReached(SliceplaneError):
    """The allocation or task ended in a state other than the one waited for. `state` is the state in which it ended."""

    def __init__(self, what: str, state: str) -> None:
        super().__init__(what)
        self.state = state


class ApiProblem(SliceplaneError):
    """The control plane refused the request, or failed to answer it (RFC 9457)."""

    def __init__(self, problem: Problem) -> None:
        # `detail` repeats the reasons in one sentence.
        detail = f": {problem.detail}" if problem.detail and not problem.reasons else ""
        super().__init__(f"{problem.title}{detail}", problem.request_id)
        self.problem = problem

    def __str__(self) -> str:
        return "; ".join([self.what, *(f"{_placed(each)} [{each.code}]" for each in self.reasons)])

    @property
    def status(self) -> int:
        return self.problem.status

    @property
    def reasons(self) -> tuple[Objection, ...]:
        return self.problem.reasons

    @property
    def codes(self) -> frozenset[str]:
        """The codes of the reasons; docs/codes.md describes each."""
        return frozenset(each.code for each in self.reasons)


def _placed(reason: Objection) -> str:
    place = reason.field or reason.parameter
    return f"{place}: {reason.message}" if place else reason.message


class BadRequest(ApiProblem):
    """The body is not valid JSON."""


class Malformed(ApiProblem):
    """A field or parameter of the request is missing or invalid; each reason names it."""


class UnsupportedMediaType(ApiProblem):
    """The media type of the body is not JSON."""


class ContentTooLarge(ApiProblem):
    """The body is larger than the control plane accepts."""


class NotFound(ApiProblem):
    """The path does not exist: the URL is wrong, or the control plane is older than this client."""


class MethodNotAllowed(ApiProblem):
    """The path does not support the method: the control plane is older or newer than this client."""


class UnknownName(ApiProblem):
    """The named resource does not exist, or belongs to a project that the caller may not read."""


class Gone(ApiProblem):
    """The cursor is permanently invalid, because the ledger was restored."""


class Conflict(ApiProblem):
    """The request conflicts with the current state."""


class PreconditionFailed(ApiProblem):
    """The resource has changed since the version that the request names."""


class NotYetKnown(ApiProblem):
    """The answer is not available yet; repeat the request."""


class Throttled(ApiProblem):
    """The caller sends too many requests."""


class Unauthorised(ApiProblem):
    """The credentials are missing, unknown, expired or revoked."""


class Forbidden(ApiProblem):
    """The caller lacks the required role or scope."""


class InternalError(ApiProblem):
    """The control plane has a defect."""


class DatabaseUnavailable(ApiProblem):
    """The database does not respond, so that the outcome of a change is unknown."""


class QueuesUnavailable(ApiProblem):
    """Redis does not respond."""


class IdentityProviderUnavailable(ApiProblem):
    """The identity provider that issued the caller's token does not respond."""


class UnreadableEvent(ApiProblem):
    """An event that the answer needs cannot be read."""


BY_TYPE: Final[dict[str, type[ApiProblem]]] = {
    "bad-request": BadRequest,
    "conflict": Conflict,
    "content-too-large": ContentTooLarge,
    "database-unavailable": DatabaseUnavailable,
    "forbidden": Forbidden,
    "gone": Gone,
    "identity-provider-unavailable": IdentityProviderUnavailable,
    "internal-error": InternalError,
    "malformed": Malformed,
    "method-not-allowed": MethodNotAllowed,
    "not-found": NotFound,
    "not-yet-known": NotYetKnown,
    "precondition-failed": PreconditionFailed,
    "queues-unavailable": QueuesUnavailable,
    "throttled": Throttled,
    "unauthorised": Unauthorised,
    "unknown-name": UnknownName,
    "unreadable-event": UnreadableEvent,
    "unsupported-media-type": UnsupportedMediaType,
}
"""The exception class of each problem type, by the last segment of the URI of the type."""
_BY_STATUS: Final[dict[int, type[ApiProblem]]] = {
    HTTPStatus.BAD_REQUEST: BadRequest,
    HTTPStatus.UNAUTHORIZED: Unauthorised,
    HTTPStatus.FORBIDDEN: Forbidden,
    HTTPStatus.NOT_FOUND: UnknownName,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.GONE: Gone,
    HTTPStatus.PRECONDITION_FAILED: PreconditionFailed,
    HTTPStatus.UNPROCESSABLE_ENTITY: Malformed,
    HTTPStatus.TOO_MANY_REQUESTS: Throttled,
    HTTPStatus.INTERNAL_SERVER_ERROR: InternalError,
}


def from_problem(problem: Problem) -> ApiProblem:
    """Return the error of a problem document. A type that this release does not have gets the class of its status."""
    name = problem.type.replace(":", "/").rpartition("/")[2]
    kind = BY_TYPE.get(name) or _BY_STATUS.get(problem.status, ApiProblem)
    return kind(problem)


def is_temporary(error: SliceplaneError) -> bool:
    """Return whether an outage or a restart of the control plane can be the cause, so that a retry may succeed."""
    match error:
        case Untrusted():
            return False
        case Unreachable() | UnexpectedResponse():
            return True
        case ApiProblem():
            return error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        case _:
            return False
