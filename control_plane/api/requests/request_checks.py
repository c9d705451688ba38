"""Checks of every request before its route runs: values that cannot be stored, and the media type. Support for HEAD.

A value that has a secret, such as an API key, is refused here too, because the ledger would show it permanently.

A value that Postgres cannot store in a column or a JSON document (a zero byte or a lone surrogate in a text, a number
outside 64 bits) is refused here, wherever it occurs in the path, the query or the body. Routes need no such check.
"""

import asyncio
import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.api.requests.access import declaration_of
from control_plane.api.requests.problem_types import MOST_REASONS
from control_plane.api.requests.state import SECRET_IN_REQUEST
from control_plane.decisions.misplaced_secrets import has_secret, without_secrets
from control_plane.decisions.refusals import Malformed, Objection, UnsupportedMediaType

_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_CHARACTER: Final = "the value has a character that cannot be stored (U+0000 or a surrogate)"
_DIGITS: Final = 19
"""Number of digits of the largest 64-bit integer. Longer numbers are refused without a conversion, because Python
refuses to convert strings of more than 4,300 digits.
"""
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_LONGEST_POINTER: Final = 500
"""Maximum number of characters of a JSON pointer in a reason. The pointers to all fields of the API are shorter."""
_JSON: Final = "application/json"
_STREAM: Final = "text/event-stream"
_Path = tuple["_Path", str | int] | None
"""Location of a value in a JSON document: the location of the enclosing value, and its key or index. None: the root.

A JSON pointer is only built for a refused value. The pointers to all values of a document with long keys would together
be much longer than the document.
"""


async def storable(request: Request) -> None:
    """Check that the database can store every value of the request, and that it may: no value is a secret.

    Raises `Malformed` with the values that cannot or must not be stored, and `UnsupportedMediaType` for a body that is
    not JSON. The check stops as soon as it has more objections than a problem lists.
    """
    route = request.scope["route"]
    assert isinstance(route, APIRoute), f"the route must be an APIRoute, not {type(route).__name__}"
    given = [*request.path_params.items(), *request.query_params.multi_items()]
    objections = (
        Objection(reason[0], f"parameter {name}: {reason[1]}", parameter=name)
        for name, value in given
        for reason in (*_of_text(name), *_of_text(str(value)))
    )
    of_body: Iterator[Objection] = iter(())
    if route.body_field is not None and await request.body():
        _require_json(request)
        # Nodes send secrets in bodies: the token and the proof of an enrolment.
        of_body = _of_body(await request.json(), secrets=declaration_of(route)["roles"] == ["node"])
    if found := list(islice(chain(objections, of_body), MOST_REASONS + 1)):
        raise Malformed(*found)


def is_storable(body: Any) -> bool:
    """Return whether a request body, parsed from JSON, has only values that the database can store, and no secret."""
    return next(_of_body(body, secrets=False), None) is None


def _require_json(request: Request) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != _JSON:
        given = f"{media_type[:64]!r}" if media_type else "missing"
        reason = f"the media type of the body is {given}; send {_JSON!r} in the Content-Type header"
        raise UnsupportedMediaType(Objection("unsupported_media_type", reason, parameter="Content-Type"))


def _of_text(value: str) -> Iterator[tuple[str, str]]:
    if _UNSTORABLE.search(value):
        yield "unstorable_character", _CHARACTER
    elif has_secret(value):
        yield SECRET_IN_REQUEST
    elif _NUMBER.fullmatch(value):
        digits = value.lstrip("+-").lstrip("0")
        if len(digits) > _DIGITS or not _SMALLEST <= int(value) <= _LARGEST:
            yield "number_out_of_range", f"{value[:64]} is outside the range of 64-bit integers"


def _of_body(body: Any, *, secrets: bool) -> Iterator[Objection]:
    """Yield the objections to the values of a request body that was parsed from JSON, each with its JSON pointer (RFC
    6901). If `secrets` is true, secrets in the body are no objection.
    """
    # A stack instead of recursion: the document may be nested as deeply as Python's recursion limit allows.
    left: list[Iterator[tuple[_Path, Any]]] = [iter([(None, body)])]
    while left:
        for path, value in left[-1]:
            if isinstance(value, dict):
                left.append(_members(path, value))
                break
            if isinstance(value, list):
                left.append(_items(path, value))
                break
            yield from _of_scalar(path, value, secrets=secrets)
        else:
            left.pop()


def _members(path: _Path, members: dict[str, Any]) -> Iterator[tuple[_Path, Any]]:
    """Yield the values of a JSON object, and also those keys that cannot be stored or contain a secret."""
    for key, value in members.items():
        if _UNSTORABLE.search(key) or has_secret(key):
            yield (path, key), key
        yield (path, key), value


def _items(path: _Path, items: list[Any]) -> Iterator[tuple[_Path, Any]]:
    for index, value in enumerate(items):
        yield (path, index), value


def _of_scalar(path: _Path, value: Any, *, secrets: bool) -> Iterator[Objection]:
    match value:
        case str() if _UNSTORABLE.search(value):
            yield Objection("unstorable_character", _CHARACTER, _pointer(path))
        case str() if not secrets and has_secret(value):
            yield Objection(*SECRET_IN_REQUEST, _pointer(path))
        case bool():
            pass
        case int() if not _SMALLEST <= value <= _LARGEST:
            yield Objection(
                "number_out_of_range",
                "the number is outside the range of 64-bit integers; send a number from -2^63 to 2^63 - 1",
                _pointer(path),
            )
        case float() if not math.isfinite(value):
            yield Objection(
                "number_out_of_range",
                "the number is outside the range of 64-bit floating-point numbers; send a finite number",
                _pointer(path),
            )
        case _:
            pass


def _pointer(path: _Path) -> str:
    parts: list[str | int] = []
    while path is not None:
        path, part = path
        parts.append(part)
    return json_pointer(reversed(parts))


def json_pointer(parts: Iterable[str | int]) -> str:
    """Return the JSON pointer (RFC 6901) of these keys and indexes, shortened to `_LONGEST_POINTER` characters."""
    pointer = "".join(f"/{escaped(part)}" for part in parts)
    # Secrets are removed first, because a shortened one would not be recognized.
    return escaped_text(shortened(without_secrets(pointer), _LONGEST_POINTER))


def shortened(text: str, most: int) -> str:
    """Return the text, or its first `most` characters and an ellipsis if it is longer."""
    return text if len(text) <= most else f"{text[:most]}..."


def escaped(key: object) -> str:
    """Return a key escaped for a JSON pointer (RFC 6901, section 3)."""
    return str(key).replace("~", "~0").replace("/", "~1")


def escaped_text(text: str) -> str:
    """Return the text with lone surrogates escaped, because UTF-8 cannot encode them."""
    return text.encode("utf-8", "backslashreplace").decode()


class HeadAsGet:
    """Middleware that answers HEAD like GET without a body (RFC 9110, section 9.3.2). A stream ends after its
    headers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        streams = asyncio.Event()

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                if Headers(raw=message["headers"]).get("content-type", "").startswith(_STREAM):
                    streams.set()
            elif not message.get("more_body", False):
                await send({"type": "http.response.body", "body": b""})

        async def answer() -> None:
            await self._app({**scope, "method": "GET"}, receive, without_body)

        answering = asyncio.create_task(answer())
        streaming = asyncio.create_task(streams.wait())
        try:
            await asyncio.wait({answering, streaming}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await answering
            else:
                await send({"type": "http.response.body", "body": b""})
        finally:
            streaming.cancel()
            answering.cancel()
            await asyncio.gather(streaming, answering, return_exceptions=True)
