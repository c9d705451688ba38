"""Refusals: the exceptions with which a decision refuses a request. A refusal lists all reasons, and changes nothing.

`control_plane.api.requests.problems` is the only mapping of these classes to HTTP responses.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

_UNKNOWN: Final = "unknown_"
"""Prefix of the codes of objections to names that do not exist."""


class Objection(NamedTuple):
    """One reason against a request.

    `field` is a JSON pointer into the request body, such as `/sku`; `parameter` names a query parameter, a path
    parameter or a header. At most one of them is set.
    """

    code: str
    message: str
    field: str | None = None
    parameter: str | None = None


class Refused(Exception):
    """Base class of all refusals."""

    def __init__(self, *objections: Objection) -> None:
        super().__init__("; ".join(objection.message for objection in objections))
        self.objections = objections


class BadRequest(Refused):
    """The request body is not valid JSON."""


class UnsupportedMediaType(Refused):
    """The media type of the request body is not JSON."""


class Malformed(Refused):
    """The request violates the schema and cannot succeed in any state."""


class UnknownName(Refused):
    """The request names a resource that does not exist."""


class Conflict(Refused):
    """The request conflicts with the current state: no capacity, an address in use, a wrong state of the resource."""


class Gone(Refused):
    """The cursor in the request is permanently invalid."""


def class_of(against: Sequence[Objection]) -> type[UnknownName | Conflict]:
    """Return the class of the refusal that has these objections of a decision function.

    It is `UnknownName` if one objection is to a name that does not exist, because repeating the request later does not
    help then; else `Conflict`.
    """
    unknown = any(objection.code.startswith(_UNKNOWN) for objection in against)
    return UnknownName if unknown else Conflict


def refuse_if(against: Sequence[Objection]) -> None:
    """Raise a refusal with the objections of a decision function, if there are any."""
    if against:
        raise class_of(against)(*against)


class PreconditionFailed(Refused):
    """The resource has another version than the request requires."""


class NotYetKnown(Refused):
    """The response to the request is not available yet; the caller may repeat the request soon."""


class Throttled(Refused):
    """The caller exceeded its budget; it may repeat the request after `retry_after` seconds."""

    def __init__(self, retry_after: int, *objections: Objection) -> None:
        super().__init__(*objections)
        self.retry_after = retry_after


class Unauthorised(Refused):
    """The caller is not authenticated."""


class IdentityProviderUnavailable(Refused):
    """The credentials cannot be verified now, because the identity provider that issued them does not respond."""


class Forbidden(Refused):
    """The caller is authenticated, but lacks the permission."""
