"""HTTP client of the control plane.

A request is retried for a few seconds if the connection fails or the response is 429, 503, or 409 because a request
with the same idempotency key is in progress, each with Retry-After. All attempts of a POST have the same
Idempotency-Key, so that a retry after a lost connection cannot execute it twice.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

import httpx
import msgspec
from httpx_sse import EventSource, ServerSentEvent

from control_plane.cli.access import Access
from control_plane.cli.answers import Page, Problem, decode
from control_plane.cli.failures import Failure, Unreachable, from_problem
from control_plane.cli.trust import trust, why_untrusted

Params = Mapping[str, str | int | Sequence[str] | None]

_TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)
_STREAM_TIMEOUT: Final = httpx.Timeout(60.0, connect=5.0)
"""Timeout between two reads of a stream. Heartbeats are more frequent, so that a timeout means a dead connection."""
_PROBE_TIMEOUT: Final = httpx.Timeout(10.0, connect=5.0)
"""Longer than the longest timeout of a readiness check."""
_PAUSES: Final = (0.2, 0.5, 1.0)
_LONGEST_PAUSE: Final = 5.0
_LARGEST_PAGE: Final = 100
_RETRYABLE: Final = frozenset({409, 429, 503})


class Client:
    """Client of one control plane. Close it, or use it in a `with` block. Every method raises a `Failure`.

    `asides` are notes for the user about responses: the position of a past state, and that more results are available.
    `recorded` is the recording time of the last event in the past state that was returned last, or None.
    """

    def __init__(self, access: Access) -> None:
        self.url = access.url
        self.asides: dict[str, None] = {}
        self.recorded: datetime | None = None
        headers = {"Authorization": f"Bearer {access.api_key}"}
        trusted = trust(access.url, access.ca)
        try:
            self._http = httpx.Client(base_url=access.url, headers=headers, timeout=_TIMEOUT, verify=trusted)
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise Unreachable(f"cannot use {access.url}: {error}", "check the URL and the API key") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def get(self, path: str, params: Params | None = None) -> bytes:
        return self._send("GET", path, params=params)

    def probe(self, path: str) -> bytes:
        """Return the response body of a single attempt, whatever its status. Raises `Unreachable`."""
        with self._lost_connections():
            return self._http.get(path, timeout=_PROBE_TIMEOUT).content

    def post(self, path: str, body: object | None = None) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Idempotency-Key": str(uuid4()), "Content-Type": "application/json"}
        return self._send("POST", path, content=content, headers=headers)

    def patch(self, path: str, body: object) -> bytes:
        headers = {"Content-Type": "application/json"}
        return self._send("PATCH", path, content=msgspec.json.encode(body), headers=headers)

    def put(self, path: str, body: object) -> bytes:
        headers = {"Content-Type": "application/json"}
        return self._send("PUT", path, content=msgspec.json.encode(body), headers=headers)

    def delete(self, path: str) -> bytes:
        return self._send("DELETE", path)

    def items(self, path: str, params: Params | None = None, limit: int | None = None) -> "Listing":
        """Return the items of a list from all its pages, at most `limit` items (at least one)."""
        return Listing(self, path, params or {}, limit)

    @contextmanager
    def stream(
        self, path: str, params: Params | None = None, last_id: str | None = None
    ) -> Iterator[Iterator[ServerSentEvent]]:
        """Provide the messages of a server-sent event stream after `last_id`.

        A message that was sent without an id has the id of the message before it.

        Raises `Unreachable` if the connection breaks.
        """
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        with (
            self._lost_connections(),
            self._http.stream(
                "GET",
                path,
                params=_given(params),
                headers=headers,
                timeout=_STREAM_TIMEOUT,
            ) as response,
        ):
            if response.status_code != httpx.codes.OK:
                response.read()
                raise self._failure(response)
            yield EventSource(response).iter_sse()

    def _send(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        request = self._http.build_request(
            method, path, params=_given(params), content=content, headers=headers
        )
        for pause in _PAUSES:
            try:
                response = self._http.send(request)
            except httpx.TransportError as error:
                if why_untrusted(error):
                    break  # a retry would fail the certificate verification again
                time.sleep(pause)
                continue
            if response.status_code not in _RETRYABLE or "Retry-After" not in response.headers:
                return self._answer(response)
            time.sleep(_retry_pause(response))
        with self._lost_connections():
            return self._answer(self._http.send(request))

    def _answer(self, response: httpx.Response) -> bytes:
        if not response.is_success:
            raise self._failure(response)
        if cursor := response.headers.get("Sliceplane-Position"):
            recorded = response.headers.get("Sliceplane-Time")
            self.recorded = None if recorded is None else datetime.fromisoformat(recorded)
            shown = f"as of cursor {cursor}, recorded {recorded}"
            if not recorded:
                shown = f"as of cursor {cursor}, which is before the first event of the ledger"
            self.asides[shown] = None
        return response.content

    def _failure(self, response: httpx.Response) -> Failure:
        try:
            return from_problem(decode(response.content, Problem))
        except msgspec.DecodeError:
            return Unreachable(
                f"{self.url} returned {response.status_code} with an unexpected body",
                "check the URL: another server may be listening there",
            )

    @contextmanager
    def _lost_connections(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            if untrusted := why_untrusted(error):
                what, *advice = untrusted
                raise Unreachable(f"cannot verify the certificate of {self.url}: {what}", *advice) from error
            what = str(error) or type(error).__name__
            raise Unreachable(
                f"cannot reach the control plane at {self.url}: {what}",
                "check that it is running, or start one on this machine: ./dev up",
            ) from error


class Listing:
    """The items of a list. After the iteration, `next_cursor` is the API's cursor after the last item, or None if the
    list has no further items.
    """

    def __init__(self, client: Client, path: str, params: Params, limit: int | None) -> None:
        self._client, self._path, self._params, self._limit = client, path, params, limit
        self.next_cursor: str | None = None

    def __iter__(self) -> Iterator[msgspec.Raw]:
        params, left = dict(self._params), self._limit
        while left is None or left > 0:
            page = decode(self._client.get(self._path, {**params, "limit": _page_size(left)}), Page)
            yield from page.items[:left]
            left = None if left is None else left - len(page.items)
            self.next_cursor = params["cursor"] = page.next_cursor
            if page.next_cursor is None:
                return
        self._client.asides["more results available; raise --limit"] = None


def _given(params: Params | None) -> dict[str, str | int | Sequence[str]]:
    return {name: value for name, value in (params or {}).items() if value is not None}


def _page_size(limit: int | None) -> int | None:
    return None if limit is None else min(limit, _LARGEST_PAGE)


def _retry_pause(response: httpx.Response) -> float:
    seconds = response.headers["Retry-After"]
    return min(float(seconds), _LONGEST_PAUSE) if seconds.isdigit() else _LONGEST_PAUSE
