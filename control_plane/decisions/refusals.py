"""How a decision says no: with every reason at once, and changing nothing.

One small tree; `control_plane.api.problems` is the one table from it to HTTP.
"""

from typing import NamedTuple


class Objection(NamedTuple):
    """One reason against a request.

    `field` is a JSON pointer into the request body, such as `/sku`; `parameter` names a parameter of the query, the
    path or the header. At most one of them is set.
    """

    code: str
    message: str
    field: str | None = None
    parameter: str | None = None


class Refused(Exception):
    """The base of all refusals."""

    def __init__(self, *objections: Objection) -> None:
        super().__init__("; ".join(objection.message for objection in objections))
        self.objections = objections


class BadRequest(Refused):
    """The body is not JSON."""


class UnsupportedMediaType(Refused):
    """The body has another media type than JSON."""


class Malformed(Refused):
    """The request is not one that could ever be granted: its schema forbids it."""


class UnknownName(Refused):
    """The request names something that does not exist."""


class Conflict(Refused):
    """The state of things forbids it now: no capacity, a taken address, a wrong moment."""


class Gone(Refused):
    """What the request wants to go on from is no longer there, and never will be again."""


class NotYetKnown(Refused):
    """What is asked for cannot be told yet, and can in a moment."""


class Throttled(Refused):
    """The caller sends more than its budget allows; it may send the same again in `retry_after` seconds."""

    def __init__(self, retry_after: int, *objections: Objection) -> None:
        super().__init__(*objections)
        self.retry_after = retry_after


class Unauthorised(Refused):
    """Nobody knows who is asking."""


class Forbidden(Refused):
    """It is known who asks, and they may not."""
