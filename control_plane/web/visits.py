"""One request of a logged-in browser: its calls of the API, its form, and the page that answers it."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from control_plane.web.calls import Answer, Api, Query, Refusal, path_of, url_of
from control_plane.web.cookies import form_token, is_form_token
from control_plane.web.moments import FORMS, api_moment
from control_plane.web.rendering import page

MOST_FORM_BYTES: Final = 256 * 1024
_MOST_FIELDS: Final = 100
_PRESENT: Final = "now"
NOTICES: Final = {
    "stop": "The stop was requested.",
    "start": "The start was requested.",
    "release": "The release was requested.",
    "report-fault": "The fault was recorded. The slots are excluded from placement, and the allocation is released.",
    "renew": "The lease was renewed.",
    "open-ingress": "The ingress was reserved.",
    "close": "It was closed.",
    "created": "The allocation was created.",
    "retry": "The task is tried again.",
    "cancel": "The cancellation was requested.",
    "cordon": "The node was cordoned.",
    "uncordon": "The node was opened for placements again.",
    "drain": "The drain was started.",
    "revoke": "The access of the node was revoked: its key, session and queue no longer work. Its slices continue to run."
    " It must enrol again to regain access.",
    "readmit": "It is used for placements again.",
    "approve": "The slot was approved.",
    "retire": "The slot was retired.",
    "reprovision": "The slot got other addresses.",
    "force-release": "The slot was force-released.",
    "reserve": "The reservation was recorded.",
    "unreserve": "The reservation was removed.",
    "limits": "The limits were recorded.",
    "create-project": "The project was created.",
    "describe": "The description was changed.",
    "archive": "The project was archived.",
    "publish-sku": "The SKU was published.",
    "publish-image": "The image was published.",
    "publish-version": "The newest version has the entered values, and is offered.",
    "retire-sku": "The SKU was retired.",
    "retire-image": "The image was retired.",
    "erase": "The personal data was erased.",
    "revoke-key": "The API key was revoked.",
    "create-service-account": "The service account was created.",
    "disable": "The service account was disabled.",
    "enable": "The service account was enabled.",
    "end": "The session was ended.",
    "cut": "The console session ends within a second.",
    "rebuild": "The rebuild was requested.",
    "skip": "The event is skipped.",
    "retry-event": "The event is tried again.",
    "verify": "The verification was requested.",
}
"""Sentences that a page shows after an action, by the query parameter `notice`."""


def problem(status: HTTPStatus, code: str, message: str, hint: str, *, field: str | None = None) -> Refusal:
    """Return a refusal of the console itself, in the form of the refusals of the API. `field` names the field of the
    form that has the refused value.
    """
    pointer = None if field is None else f"/{field}"
    reason = {"code": code, "message": message, "field": pointer, "parameter": None}
    return Refusal({"title": status.phrase, "status": status.value, "reasons": [reason], "hint": hint})


class Form:
    """Fields of a form that a browser sent."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        self._every, self._fields = fields, dict(fields)

    def text(self, name: str) -> str:
        """Return the value of a field without surrounding white space; empty if it is missing."""
        return self._fields.get(name, "").strip()

    def every(self, name: str) -> list[str]:
        """Return all values of a field that the form has several times, such as a checkbox."""
        return [value for each, value in self._every if each == name]

    def listed(self, name: str) -> list[str]:
        """Return the words of all values of a field, such as those of chosen checkboxes."""
        return " ".join(self.every(name)).split()

    def values(self) -> Mapping[str, str]:
        """Return the value of each field; of a field that the form has several times, all of them, separated by
        spaces.
        """
        return {name: " ".join(self.every(name)) for name in self._fields}


async def read_form(request: Request, secret: str) -> Form:
    """Return the form of a request. Raises `Refusal` if it is too long, not a form, or was not made by a page for the
    browser with the cookie value `secret`.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_FORM_BYTES:
            message = f"the form has more than {MOST_FORM_BYTES} bytes"
            raise problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", message, "Shorten the longest field."
            )
    try:
        form = Form(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        message = "the request has no form in UTF-8"
        raise problem(HTTPStatus.BAD_REQUEST, "invalid_form", message, "Send the form of the page.") from None
    if not is_form_token(form.text("csrf"), secret):
        message = "the form does not belong to the present login of this browser"
        hint = "Open the page again and repeat the action. Another site cannot send forms to the console."
        raise problem(HTTPStatus.FORBIDDEN, "foreign_form", message, hint)
    return form


class Visit:
    """One request of a logged-in browser. `user` is the caller, in the form of `/v1/whoami`."""

    def __init__(self, request: Request, api: Api, secret: str, user: Mapping[str, Any]) -> None:
        self.request, self._api, self._secret, self.user = request, api, secret, user
        self._read: dict[str, asyncio.Future[Answer]] = {}
        """The GET requests since the last change: each URL is requested once, also for several items of a page."""

    @property
    def at(self) -> str | None:
        """The past moment that the page shows, in the format of the API; None: the present."""
        return None if (self.query("at") or "").lower() == _PRESENT else self.moment("at")

    def query(self, name: str) -> str | None:
        """Return a query parameter of the page without surrounding white space; None if it is missing or empty."""
        return self.request.query_params.get(name, "").strip() or None

    def moment(self, name: str) -> str | None:
        """Return a query parameter that is a time or position, in the format of the API; None if it is missing
        or empty. Raises `Refusal` if it is neither.
        """
        text = self.query(name)
        if text is None:
            return None
        found = api_moment(text, datetime.now(UTC))
        if found is None:
            message = f"{text[:64]!r} is not a time or position"
            hint = f"Enter a time, such as one of {FORMS} (UTC), or a position, such as position:120."
            raise problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_value", message, hint)
        return found

    def _shown_at(self) -> str | None:
        """Return the past moment that the page shows; None also for a parameter that is not a time or position."""
        try:
            return self.at
        except Refusal:
            return None

    def url(self, **changed: str | None) -> str:
        """Return the path and query of the page with changed parameters; None removes a parameter."""
        given = {name: value for name, value in self.request.query_params.items() if name != "notice"}
        return url_of(self.request.url.path, {**given, **changed})

    def allows(self, scope: str) -> bool:
        """Return whether the caller has a scope. A page omits the parts that the caller may not read."""
        return scope in self.user["scopes"]

    async def get(self, *segments: str, **query: Any) -> Any:
        """Return the JSON document of a GET request. Raises `Refusal`."""
        return _document(await self._get(segments, query))

    async def try_get(self, *segments: str, **query: Any) -> Any:
        """Return the JSON document of a GET request; None if the API answers 404. Raises `Refusal`."""
        answer = await self._get(segments, query)
        return None if answer.status == HTTPStatus.NOT_FOUND else _document(answer)

    async def get_if_available(self, *segments: str, **query: Any) -> Any:
        """Return the JSON document of a GET request; None if the API answers 503, such as while a read model lags.
        Raises `Refusal`.
        """
        answer = await self._get(segments, query)
        return None if answer.status == HTTPStatus.SERVICE_UNAVAILABLE else _document(answer)

    async def _get(self, segments: Sequence[str], query: Query) -> Answer:
        url = url_of(path_of(*segments), query)
        if url not in self._read:
            call = self._api.call(self.request, self._secret, "GET", url)
            self._read[url] = asyncio.ensure_future(call)
        return await self._read[url]

    def download(self, file_name: str, *segments: str, **query: Any) -> Response:
        """Return the response of a GET request as a file that the browser stores."""
        url = url_of(path_of(*segments), query)
        return _Download(self._api, self.request, self._secret, url, file_name)

    async def send(
        self, method: str, *segments: str, body: object = None, idempotency_key: str | None = None
    ) -> Any:
        """Send a change and return the JSON document of the response. Raises `Refusal`."""
        url = path_of(*segments)
        key = idempotency_key or None
        answer = await self._api.call(self.request, self._secret, method, url, body=body, idempotency_key=key)
        self._read.clear()
        return _document(answer)

    async def form(self) -> Form:
        """Return the form of the request. Raises `Refusal`."""
        return await read_form(self.request, self._secret)

    def render(self, template: str, code: int = HTTPStatus.OK, /, **values: Any) -> Response:
        """Return a page with a status code. Its footer links the API requests that return the data of the page."""
        notice = NOTICES.get(self.query("notice") or "")
        common = {
            "user": self.user,
            "csrf": form_token(self._secret),
            "api_urls": [*self._read],
            "notice": notice,
            "present": self.url(at=None, cursor=None),
        }
        return page(self.request, template, code, **common, at=self._shown_at(), **values)


class _Download(Response):
    """A response of the API that is passed on as it arrives. Raises `Refusal` if the API refuses the request."""

    def __init__(self, api: Api, request: Request, secret: str, url: str, file_name: str) -> None:
        super().__init__()
        self._api, self._request, self._secret, self._url = api, request, secret, url
        self._disposition = f'attachment; filename="{file_name}"'

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused: bytearray | None = None

        async def send_file(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start":
                if message["status"] == HTTPStatus.OK:
                    MutableHeaders(scope=message)["Content-Disposition"] = self._disposition
                else:
                    refused = bytearray()
            if refused is None:
                await send(message)
            else:
                refused += message.get("body", b"")

        await self._api.stream(self._request, self._secret, self._url, send_file, receive)
        if refused is not None:
            raise Refusal(json.loads(refused))


async def both(*calls: Any) -> list[Any]:
    """Run API calls concurrently and return their results. Raises the first `Refusal` after all have ended."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for each in results:
        if isinstance(each, BaseException):
            raise each
    return list(results)


async def nothing() -> None:
    """Take the place of an API call that the caller may not make, and return nothing."""


def see_other(url: str) -> RedirectResponse:
    """Return the response to a form that was carried out: the browser then gets the page at `url`."""
    return RedirectResponse(url, HTTPStatus.SEE_OTHER)


def _document(answer: Answer) -> Any:
    if not answer.is_success:
        raise Refusal(answer.json)
    return answer.json
