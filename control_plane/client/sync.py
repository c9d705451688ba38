"""`Client`: the synchronous client of the REST API.

with Client("https://control-plane.example:8080", key, ca=pem) as client:
    body = bodies.CreateAllocation(sku="lab.small", ssh_authorized_keys=[public_key])
    made = client.run(calls.create_allocation(body))
    ready = client.wait_for(made, "active", within=300)
    for node in client.items(calls.nodes()):
        print(node.id, node.state)
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import TracebackType
from typing import Generic, Self, TypeVar, overload
from uuid import uuid4

import httpx

from control_plane.client import calls, waits
from control_plane.client.answers import Allocation, Page, Task
from control_plane.client.connection import (
    QUICK,
    TIMEOUT,
    headers_of,
    refuse_other_content,
    shortened,
    unreachable,
)
from control_plane.client.errors import SliceplaneError, TimedOut, Unreachable, Untrusted
from control_plane.client.exchange import (
    Call,
    ListCall,
    Pages,
    Params,
    Reply,
    WatchCall,
    given,
    prepare,
    read,
    refuse_failure,
)
from control_plane.client.retries import pause_after_loss, pause_after_response
from control_plane.client.streams import Following, Messages
from control_plane.client.timeline import Timeline
from control_plane.client.trust import trust

T = TypeVar("T")


class Client:
    """Client of one control plane. Close it, or use it in a `with` block. Thread-safe.

    `ca` (PEM) verifies the certificate of the server; None: the system's CAs. `transport` replaces the network. Every
    method raises a `SliceplaneError`.
    """

    def __init__(
        self, url: str, api_key: str, *, ca: str | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.url = url.rstrip("/")
        trusted = trust(url, ca)
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers=headers_of(api_key),
                timeout=TIMEOUT,
                verify=trusted,
                transport=transport,
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise Unreachable(
                f"cannot send requests to {url}: {error}; check the URL and the API key"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def run(self, call: Call[T]) -> T:
        """Send a request and return its decoded response."""
        return self.send(call).value

    def send(self, call: Call[T]) -> Reply[T]:
        """Send a request and return its response. Repeats it if that is safe (see `retries`)."""
        request = prepare(call, str(uuid4()))
        for attempt in count():
            try:
                response = self._http.request(
                    request.method,
                    request.path,
                    params=request.params,
                    headers=request.headers,
                    content=request.content,
                    timeout=QUICK if call.quick else TIMEOUT,
                )
            except httpx.TransportError as error:
                lost = unreachable(self.url, error)
                pause = None if call.quick else pause_after_loss(request, attempt)
                if pause is None or isinstance(lost, Untrusted):
                    raise lost from error
            else:
                pause = pause_after_response(request, attempt, response.status_code, response.headers)
                if pause is None or call.quick:
                    return read(call, response.status_code, response.headers, response.content)
            time.sleep(pause)
        raise AssertionError("the last attempt of a request must return a response or raise an error")

    @contextmanager
    def opened(self, path: str) -> Iterator[httpx.Response]:
        """Provide the response to a GET request while its connection is open. The request is sent once."""
        try:
            with self._http.stream("GET", path, timeout=QUICK) as response:
                yield response
        except httpx.TransportError as error:
            raise unreachable(self.url, error) from error

    def download(self, path: str, params: Params | None = None) -> Iterator[bytes]:
        """Yield the content of a file from a GET request, in pieces. The request is sent once."""
        try:
            with self._http.stream("GET", path, params=given(params or {}), timeout=TIMEOUT) as response:
                if not response.is_success:
                    refuse_failure(response.status_code, response.headers, response.read())
                yield from response.iter_raw()
        except httpx.TransportError as error:
            raise unreachable(self.url, error) from error

    def items(self, call: ListCall[T], limit: int | None = None) -> Iterator[T]:
        """Yield the decoded items of a list, at most `limit`. Pages are requested as they are needed."""
        for reply in self.listing(call, limit):
            yield reply.value

    def listing(self, call: ListCall[T], limit: int | None = None) -> "Listing[T]":
        """Return the items of a list as replies, at most `limit`. Pages are requested as they are needed."""
        return Listing(self, call, limit)

    def follow(self, watch: WatchCall[T], following: Following | None = None) -> Iterator[Reply[T]]:
        """Yield each message of a stream once, in order, across lost connections. `following` sets timeouts and
        callbacks.
        """
        state = following or Following()
        while True:
            try:
                for data in self._connected(watch, state):
                    yield Reply(data, watch.message)
            except SliceplaneError as error:
                state.lost(error, time.monotonic())
            time.sleep(state.pause(time.monotonic()))

    def timelines(
        self, allocation: str, following: Following | None = None, *, after: str | None = None
    ) -> Iterator[Timeline]:
        """Follow an allocation, and yield its timeline after each event."""
        timeline = Timeline(allocation)
        for reply in self.follow(calls.watch_allocation(allocation, after=after), following):
            timeline = timeline.then(reply.value)
            yield timeline

    @overload
    def wait_for(self, subject: Allocation, state: str, *, within: float) -> Allocation: ...

    @overload
    def wait_for(self, subject: Task, state: str = "done", *, within: float) -> Task: ...

    def wait_for(
        self, subject: Allocation | Task, state: str = "done", *, within: float
    ) -> Allocation | Task:
        """Wait until an allocation or task, given as an earlier response, is in the state `state`. `within` is in
        seconds.

        Raises `NotReached` if the allocation or task ends in another state. Raises `TimedOut` after `within`; the
        operation continues.
        """
        following = Following(retry_seconds=within, deadline=time.monotonic() + within)
        try:
            if isinstance(subject, Task):
                return waits.done(self._ended(subject, following), state)
            return waits.reached(self._settled(subject, waits.Goal(state, subject.version), following), state)
        except TimedOut:
            raise waits.late(subject.id, state, within) from None

    def _settled(self, found: Allocation, goal: waits.Goal, following: Following) -> Allocation:
        if found.state == goal.state:
            return found
        for timeline in self.timelines(found.id, following):
            if goal.over(timeline):
                break
        return self.run(calls.allocation(found.id))

    def _ended(self, found: Task, following: Following) -> Task:
        found = self.run(calls.task(found.id))
        if found.state in waits.UNFINISHED:
            for _ in self.follow(calls.watch_task(found.id), following):
                found = self.run(calls.task(found.id))
                if found.state not in waits.UNFINISHED:
                    break
        return found

    def _connected(self, watch: WatchCall[T], state: Following) -> Iterator[bytes]:
        """Yield the events of one connection of a stream. End it if the next read could exceed the deadline."""
        seconds = state.read_seconds(time.monotonic())
        timeout = httpx.Timeout(seconds, connect=min(seconds, TIMEOUT.connect or seconds))
        stream = self._http.stream(
            "GET", watch.path, params=given(watch.params), headers=state.headers, timeout=timeout
        )
        try:
            with stream as response:
                if not response.is_success:
                    refuse_failure(response.status_code, response.headers, response.read())
                refuse_other_content(response.headers)
                state.found()
                messages = Messages()
                for chunk in response.iter_bytes():
                    for message in messages.feed(chunk):
                        if (event := state.take(message)) is not None:
                            yield event
                    if state.left(time.monotonic()) < seconds:
                        return
        except httpx.TransportError as error:
            if not shortened(error, seconds):
                raise unreachable(self.url, error) from error


class Listing(Generic[T]):
    """The items of a list. After the iteration, `next_cursor` is the API's cursor after the last item, or None if the
    list has no further items. `last_page` is the last response.
    """

    def __init__(self, client: Client, call: ListCall[T], limit: int | None) -> None:
        self._client, self._call, self._limit = client, call, limit
        self.next_cursor: str | None = None
        self.last_page: Reply[Page] | None = None

    def __iter__(self) -> Iterator[Reply[T]]:
        pages = Pages(self._call, self._limit)
        while (page := pages.next()) is not None:
            self.last_page = self._client.send(page)
            items = pages.take(self.last_page)
            self.next_cursor = pages.next_cursor
            yield from items
