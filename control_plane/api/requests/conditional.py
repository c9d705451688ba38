"""Conditional requests (RFC 9110, section 13): ETag, If-None-Match and If-Match.

The ETag of a resource is `"<version>.<digest>"`: the version of its stream in the ledger, and a digest of the response.
The digest is needed because a view also has values that are not in the ledger, such as the last heartbeat of a node. It
identifies a response exactly, so that `If-None-Match` never hides a change. `If-Match` compares only the version: what
is not in the ledger may change without an effect on the change that the caller intends. The version is compared inside
the transaction of the command (`control_plane.handle`).
"""

import re
from hashlib import sha256
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.decisions.refusals import Malformed, Objection
from control_plane.handle import Condition
from events.values import StreamId

_VERSION: Final = "resource_version"
_WANTED: Final = "if_match"
_DIGEST: Final = 16
_SUCCESSFUL: Final = range(200, 300)
_TAG: Final = re.compile(r'(?P<weak>W/)?"(?P<tag>[\x21\x23-\x7e\x80-\xff]*)"')
_LIST: Final = re.compile(
    rf"\s*{_TAG.pattern}(\s*,\s*{_TAG.pattern.replace('?P<weak>', '').replace('?P<tag>', '')})*\s*"
)
_OWN: Final = re.compile(r"(?P<version>[0-9]{1,18})\.[0-9a-f]+")


def tags_in(header: str) -> list[tuple[bool, str]]:
    """Return the entity tags of a header `If-Match` or `If-None-Match`: whether each is weak, and its text.

    Raises `ValueError` if the header is not a list of entity tags.
    """
    if not _LIST.fullmatch(header):
        raise ValueError(f"the value {header[:64]!r} of the header is not a list of entity tags")
    return [(found["weak"] is not None, found["tag"]) for found in _TAG.finditer(header)]


async def _if_match(
    request: Request,
    if_match: Annotated[
        str | None,
        Header(
            alias="If-Match",
            max_length=1000,
            description="Change the resource only if its version is that of this ETag; else the response is 412.",
        ),
    ] = None,
) -> None:
    """Store the resource versions that the header `If-Match` accepts. Raises `Malformed` for an invalid header."""
    if if_match is None or if_match.strip() == "*":
        return
    try:
        tags = tags_in(if_match)
    except ValueError as error:
        reason = f'{error}; send the ETag of the resource, such as "7.0f3a52c1b8d94e67"'
        raise Malformed(Objection("invalid_value", reason, parameter="If-Match")) from None
    # Comparison is strong: a weak tag matches nothing, like a tag of another form.
    found = [_OWN.fullmatch(tag) for weak, tag in tags if not weak]
    setattr(request.state, _WANTED, frozenset(int(each["version"]) for each in found if each))


async def _if_none_match(
    if_none_match: Annotated[
        str | None,
        Header(
            alias="If-None-Match",
            max_length=1000,
            description="Return 304 without a body if the response still has this ETag.",
        ),
    ] = None,
) -> None:
    """Document the header `If-None-Match`; the middleware `Conditional` evaluates it."""


IF_MATCH: Final = Depends(_if_match)
"""Dependency of routes that change a resource: it reads the header `If-Match`."""
TAGGED: Final[dict[str, Any]] = {
    "dependencies": [Depends(_if_none_match)],
    "responses": {304: {"description": "The resource still has the ETag of If-None-Match."}},
}
"""Arguments for the declaration of a route that returns one resource: they document `If-None-Match` and status 304."""


def condition_of(request: Request, about: StreamId | None) -> Condition | None:
    """Return the condition that the header `If-Match` sets for a change of the resource with the stream `about`; None
    without one.
    """
    wanted: frozenset[int] | None = getattr(request.state, _WANTED, None)
    return None if wanted is None or about is None else Condition(about, wanted)


def set_version(request: Request, version: int) -> None:
    """Set the version of the returned resource, from which its ETag is made."""
    setattr(request.state, _VERSION, version)


class Conditional:
    """Middleware that adds the ETag of a successful response for which a version is set. It answers a GET with 304 if
    `If-None-Match` has this ETag.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        held: Message | None = None

        async def send_tagged(message: Message) -> None:
            nonlocal held
            version = scope.get("state", {}).get(_VERSION)
            if (
                message["type"] == "http.response.start"
                and version is not None
                and message["status"] in _SUCCESSFUL
            ):
                held = message
                return
            if held is not None and message["type"] == "http.response.body":
                start, held = held, None
                tag = f'"{version}.{sha256(message["body"]).hexdigest()[:_DIGEST]}"'
                MutableHeaders(scope=start)["ETag"] = tag
                if scope["method"] == "GET" and _has(Headers(scope=scope).get("if-none-match"), tag):
                    await send(_not_modified(start))
                    message = {"type": "http.response.body", "body": b""}
                else:
                    await send(start)
            await send(message)

        await self._app(scope, receive, send_tagged)


def _has(header: str | None, own: str) -> bool:
    if header is None:
        return False
    if header.strip() == "*":
        return True
    try:
        return own.strip('"') in {tag for _, tag in tags_in(header)}
    except ValueError:
        return False


def _not_modified(start: Message) -> Message:
    headers = MutableHeaders(raw=[*start["headers"]])
    for name in ("content-length", "content-type"):
        del headers[name]
    return {**start, "status": 304, "headers": headers.raw}
