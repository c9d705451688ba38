"""Requests and responses of the REST API as values: the core that both transports share.

A `Call` describes a request and the type of its response. `prepare` turns it into what is sent, and `read` turns what
arrived into a `Reply`, or raises a typed error. Both are pure: the transports (`sync`, `asynchronous`) only send, sleep
and repeat.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar

import msgspec

from control_plane.client.answers import Page, Problem, decode
from control_plane.client.errors import UnexpectedResponse, from_problem

T = TypeVar("T")
Params = Mapping[str, str | int | Sequence[str] | None]
"""Query parameters. None: the parameter is not sent; a sequence: the parameter is sent once for each value."""
LARGEST_PAGE: Final = 100
_WITH_KEY: Final = frozenset({"PATCH", "POST"})
_IDEMPOTENT: Final = frozenset({"DELETE", "GET", "PUT"})
"""Idempotent methods (RFC 9110, section 9.2.2)."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and the type of its response. `body` is encoded as JSON; None: the request has no body.

    A `quick` call checks the health of the server: it is sent once, and its response is read whatever its status is.
    """

    method: str
    path: str
    answer: type[T]
    params: Params = field(default_factory=dict)
    body: object = None
    quick: bool = False


@dataclass(frozen=True, slots=True)
class ListCall(Generic[T]):
    """A request for a list that is returned in pages, and the type of its items."""

    path: str
    item: type[T]
    params: Params = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WatchCall(Generic[T]):
    """A request for a stream of server-sent events, and the type of its messages."""

    path: str
    message: type[T]
    params: Params = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as it is sent. Each repetition sends the same data, and therefore has the same idempotency key."""

    method: str
    path: str
    params: Mapping[str, str | int | Sequence[str]]
    headers: Mapping[str, str]
    content: bytes | None = None

    @property
    def repeatable(self) -> bool:
        """Whether sending the request twice has the effect of sending it once."""
        return self.method in _IDEMPOTENT or "Idempotency-Key" in self.headers


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """A response: `raw` is its JSON as it arrived, `value` the decoded response.

    `position` and `recorded` name the exact past state that the response describes: the cursor of the last event
    included, and when it was recorded. They are None if the response describes the present. `replayed` is whether the
    response repeats that of an earlier request with the same idempotency key.
    """

    raw: bytes
    answer: type[T]
    position: str | None = None
    recorded: datetime | None = None
    request_id: str | None = None
    replayed: bool = False

    @property
    def value(self) -> T:
        """The decoded response. Raises `UnexpectedResponse`."""
        try:
            return decode(self.raw, self.answer)
        except msgspec.DecodeError as error:
            raise UnexpectedResponse(
                f"the response of the control plane is not valid: {error}", self.request_id
            ) from error


def prepare(call: Call[T], idempotency_key: str) -> Prepared:
    """Return the request to send. The idempotency key is sent only if the method is not idempotent by itself."""
    headers = {"Idempotency-Key": idempotency_key} if call.method in _WITH_KEY else {}
    content = None if call.body is None else msgspec.json.encode(call.body)
    if content is not None:
        headers["Content-Type"] = "application/json"
    return Prepared(call.method, call.path, given(call.params), headers, content)


def given(params: Params) -> dict[str, str | int | Sequence[str]]:
    """Return the query parameters that have a value."""
    return {name: value for name, value in params.items() if value is not None}


def read(call: Call[T], status: int, headers: Mapping[str, str], content: bytes) -> Reply[T]:
    """Return the response of a call. Raises an `ApiProblem` or `UnexpectedResponse`."""
    if not call.quick:
        refuse_failure(status, headers, content)
    recorded = headers.get("sliceplane-time")
    return Reply(
        content,
        call.answer,
        position=headers.get("sliceplane-position"),
        recorded=None if recorded is None else datetime.fromisoformat(recorded),
        request_id=headers.get("x-request-id"),
        replayed=headers.get("idempotent-replayed") == "true",
    )


def refuse_failure(status: int, headers: Mapping[str, str], content: bytes) -> None:
    """Raise the `ApiProblem` or `UnexpectedResponse` of a response with a status other than success."""
    if 200 <= status < 300:  # noqa: PLR2004, the class of success in RFC 9110
        return
    try:
        problem = decode(content, Problem)
    except msgspec.DecodeError:
        what = f"the server returned {status} with an unexpected body"
        raise UnexpectedResponse(what, headers.get("x-request-id")) from None
    raise from_problem(problem)


class Pages(Generic[T]):
    """The state of reading a list page by page: at most `limit` items, or all if it is None.

    `next_cursor` is the cursor after the last item read, None if the list has no further items.
    """

    def __init__(self, call: ListCall[T], limit: int | None) -> None:
        self._call, self._left, self._begun = call, limit, False
        self.next_cursor: str | None = None

    def next(self) -> Call[Page] | None:
        """Return the call for the next page, or None after the last one."""
        if self._left == 0 or (self._begun and self.next_cursor is None):
            return None
        size = None if self._left is None else min(self._left, LARGEST_PAGE)
        params = {**self._call.params, "cursor": self.next_cursor, "limit": size}
        return Call("GET", self._call.path, Page, params)

    def take(self, page: Reply[Page]) -> list[Reply[T]]:
        """Record that a page was received, and return its items, at most as many as are left of the limit."""
        self._begun = True
        found = page.value
        items = found.items[: self._left]
        self._left = None if self._left is None else self._left - len(items)
        self.next_cursor = found.next_cursor
        item = self._call.item
        return [Reply(bytes(each), item, page.position, page.recorded, page.request_id) for each in items]
