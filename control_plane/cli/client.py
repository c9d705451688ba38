"""One conversation with the control plane over HTTP.

Requests are repeated, within a few seconds, while no answer came or the answer was "later" (429, 503, or the 409
of a twin in progress, each with Retry-After). A POST carries an Idempotency-Key made once, so that repeating it
after a lost connection cannot do the thing twice.
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

from control_plane.cli.access import Access
from control_plane.cli.answers import Page, Problem, decode
from control_plane.cli.failures import Failure, Unreachable, from_problem
from control_plane.cli.trust import trust, why_untrusted

Params = Mapping[str, str | int | Sequence[str] | None]

_TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)
_STREAM_TIMEOUT: Final = httpx.Timeout(60.0, connect=5.0)
"""Between two reads of a stream; heartbeats come more often, so silence means a dead connection."""
_PROBE_TIMEOUT: Final = httpx.Timeout(10.0, connect=5.0)
"""More than the longest that a check waits for a server."""
_PAUSES: Final = (0.2, 0.5, 1.0)
_LONGEST_PAUSE: Final = 5.0
_LARGEST_PAGE: Final = 100
_LATER: Final = frozenset({409, 429, 503})


class Client:
    """Close it, or use it in a `with` block. Every method raises a `Failure`.

    `asides` is what the answers said beside their content: of what moment they are, and that there is more. `recorded`
    is the time of the last event up to that moment, once an answer of the past said so.
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
            raise Unreachable(f"cannot use {access.url}: {error}", "look at the URL and the key") from error

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
        """The answer of one attempt, whatever its status. Raises `Unreachable`."""
        with self._lost_connections():
            return self._http.get(path, timeout=_PROBE_TIMEOUT).content

    def post(self, path: str, body: object | None = None) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Idempotency-Key": str(uuid4()), "Content-Type": "application/json"}
        return self._send("POST", path, content=content, headers=headers)

    def put(self, path: str, body: object) -> bytes:
        headers = {"Content-Type": "application/json"}
        return self._send("PUT", path, content=msgspec.json.encode(body), headers=headers)

    def delete(self, path: str) -> bytes:
        return self._send("DELETE", path)

    def items(self, path: str, params: Params | None = None, limit: int | None = None) -> "Listing":
        """The items of a list, over all its pages, at most `limit` of them (one or more)."""
        return Listing(self, path, params or {}, limit)

    @contextmanager
    def stream(
        self, path: str, params: Params | None = None, last_id: str | None = None
    ) -> Iterator[Iterator[str]]:
        """Lines of a server-sent event stream, behind the id that was told last. Raises `Unreachable` when it
        breaks.
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
            yield response.iter_lines()

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
                    break  # it will not be believed in a second either
                time.sleep(pause)
                continue
            if response.status_code not in _LATER or "Retry-After" not in response.headers:
                return self._answer(response)
            time.sleep(_asked_pause(response))
        with self._lost_connections():
            return self._answer(self._http.send(request))

    def _answer(self, response: httpx.Response) -> bytes:
        if not response.is_success:
            raise self._failure(response)
        if place := response.headers.get("Sliceplane-Position"):
            recorded = response.headers.get("Sliceplane-Time")
            self.recorded = None if recorded is None else datetime.fromisoformat(recorded)
            self.asides[f"as of {place}, recorded {recorded or 'the beginning'}"] = None
        return response.content

    def _failure(self, response: httpx.Response) -> Failure:
        try:
            return from_problem(decode(response.content, Problem))
        except msgspec.DecodeError:
            return Unreachable(
                f"{self.url} answered {response.status_code} in words that are not the control plane's",
                "look at the URL: is something else listening there?",
            )

    @contextmanager
    def _lost_connections(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            if untrusted := why_untrusted(error):
                what, *advice = untrusted
                raise Unreachable(f"{self.url} is not believed: {what}", *advice) from error
            what = str(error) or type(error).__name__
            raise Unreachable(
                f"cannot reach the control plane at {self.url}: {what}",
                "is it running? start one here: ./dev up",
            ) from error


class Listing:
    """Items of a list. `next_cursor`, once they are all told, is where the API goes on behind them; None at the end."""

    def __init__(self, client: Client, path: str, params: Params, limit: int | None) -> None:
        self._client, self._path, self._params, self._limit = client, path, params, limit
        self.next_cursor: str | None = None

    def __iter__(self) -> Iterator[msgspec.Raw]:
        wanted, left = dict(self._params), self._limit
        while left is None or left > 0:
            page = decode(self._client.get(self._path, {**wanted, "limit": _page_size(left)}), Page)
            yield from page.items[:left]
            left = None if left is None else left - len(page.items)
            self.next_cursor = wanted["cursor"] = page.next_cursor
            if page.next_cursor is None:
                return
        self._client.asides["there is more than --limit lets through"] = None


def _given(params: Params | None) -> dict[str, str | int | Sequence[str]]:
    return {name: value for name, value in (params or {}).items() if value is not None}


def _page_size(limit: int | None) -> int | None:
    return None if limit is None else min(limit, _LARGEST_PAGE)


def _asked_pause(response: httpx.Response) -> float:
    asked = response.headers["Retry-After"]
    return min(float(asked), _LONGEST_PAUSE) if asked.isdigit() else _LONGEST_PAUSE
