"""`AsyncClient`: the asynchronous client of the REST API, with the methods of `sync.Client`.

async with AsyncClient("https://control-plane.example:8080", key, ca=pem) as client:
    made = await client.run(calls.create_allocation(body))
    ready = await client.wait_for(made, "active", within=300)
    async for node in client.items(calls.nodes()):
        print(node.id, node.state)
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
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


class AsyncClient:
    """Asynchronous client of one control plane. Close it, or use it in an `async with` block.

    `ca` (PEM) verifies the certificate of the server; None: the system's CAs. `transport` replaces the network. Every
    method raises a `SliceplaneError`.
    """

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        ca: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        trusted = trust(url, ca)
        try:
            self._http = httpx.AsyncClient(
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, call: Call[T]) -> T:
        """Send a request and return its decoded response."""
        return (await self.send(call)).value

    async def send(self, call: Call[T]) -> Reply[T]:
        """Send a request and return its response. Repeats it if that is safe (see `retries`)."""
        request = prepare(call, str(uuid4()))
        for attempt in count():
            try:
                response = await self._http.request(
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
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt of a request must return a response or raise an error")

    async def items(self, call: ListCall[T], limit: int | None = None) -> AsyncIterator[T]:
        """Yield the decoded items of a list, at most `limit`. Pages are requested as they are needed."""
        async for reply in self.listing(call, limit):
            yield reply.value

    def listing(self, call: ListCall[T], limit: int | None = None) -> "AsyncListing[T]":
        """Return the items of a list as replies, at most `limit`. Pages are requested as they are needed."""
        return AsyncListing(self, call, limit)

    async def follow(
        self, watch: WatchCall[T], following: Following | None = None
    ) -> AsyncGenerator[Reply[T], None]:
        """Yield each message of a stream once, in order, across lost connections. `following` sets timeouts and
        callbacks.
        """
        state = following or Following()
        while True:
            try:
                async with aclosing(self._connected(watch, state)) as events:
                    async for data in events:
                        yield Reply(data, watch.message)
            except SliceplaneError as error:
                state.lost(error, time.monotonic())
            await asyncio.sleep(state.pause(time.monotonic()))

    async def timelines(
        self, allocation: str, following: Following | None = None, *, after: str | None = None
    ) -> AsyncGenerator[Timeline, None]:
        """Follow an allocation, and yield its timeline after each event."""
        timeline = Timeline(allocation)
        async with aclosing(
            self.follow(calls.watch_allocation(allocation, after=after), following)
        ) as events:
            async for event in events:
                timeline = timeline.then(event.value)
                yield timeline

    @overload
    async def wait_for(self, subject: Allocation, state: str, *, within: float) -> Allocation: ...

    @overload
    async def wait_for(self, subject: Task, state: str = "done", *, within: float) -> Task: ...

    async def wait_for(
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
                return waits.done(await self._ended(subject, following), state)
            return waits.reached(
                await self._settled(subject, waits.Goal(state, subject.version), following), state
            )
        except TimedOut:
            raise waits.late(subject.id, state, within) from None

    async def _settled(self, found: Allocation, goal: waits.Goal, following: Following) -> Allocation:
        if found.state == goal.state:
            return found
        async with aclosing(self.timelines(found.id, following)) as timelines:
            async for timeline in timelines:
                if goal.over(timeline):
                    break
        return await self.run(calls.allocation(found.id))

    async def _ended(self, found: Task, following: Following) -> Task:
        found = await self.run(calls.task(found.id))
        if found.state in waits.UNFINISHED:
            async with aclosing(self.follow(calls.watch_task(found.id), following)) as events:
                async for _ in events:
                    found = await self.run(calls.task(found.id))
                    if found.state not in waits.UNFINISHED:
                        break
        return found

    async def _connected(self, watch: WatchCall[T], state: Following) -> AsyncGenerator[bytes, None]:
        """Yield the events of one connection of a stream. End it if the next read could exceed the deadline."""
        seconds = state.read_seconds(time.monotonic())
        timeout = httpx.Timeout(seconds, connect=min(seconds, TIMEOUT.connect or seconds))
        stream = self._http.stream(
            "GET", watch.path, params=given(watch.params), headers=state.headers, timeout=timeout
        )
        try:
            async with stream as response:
                if not response.is_success:
                    refuse_failure(response.status_code, response.headers, await response.aread())
                refuse_other_content(response.headers)
                state.found()
                messages = Messages()
                async for chunk in response.aiter_bytes():
                    for message in messages.feed(chunk):
                        if (event := state.take(message)) is not None:
                            yield event
                    if state.left(time.monotonic()) < seconds:
                        return
        except httpx.TransportError as error:
            if not shortened(error, seconds):
                raise unreachable(self.url, error) from error


class AsyncListing(Generic[T]):
    """The items of a list. After the iteration, `next_cursor` is the API's cursor after the last item, or None if the
    list has no further items. `last_page` is the last response.
    """

    def __init__(self, client: AsyncClient, call: ListCall[T], limit: int | None) -> None:
        self._client, self._call, self._limit = client, call, limit
        self.next_cursor: str | None = None
        self.last_page: Reply[Page] | None = None

    async def __aiter__(self) -> AsyncIterator[Reply[T]]:
        pages = Pages(self._call, self._limit)
        while (page := pages.next()) is not None:
            self.last_page = await self._client.send(page)
            items = pages.take(self.last_page)
            self.next_cursor = pages.next_cursor
            for item in items:
                yield item
