"""Callers of the fleet: they create and release slices through the API and watch the resulting events.

A fixed number of allocations is in progress at the same time; each next request is sent when another is done. An
allocation is done when the event stream reports that it is active or released. One stream reports all allocations; if
it is lost, it is requested again from the last event id.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeVar
from uuid import uuid4

import httpx
import msgspec
from httpx_sse import EventSource, ServerSentEvent

from bench.fleet.hosted import Admitted

_LOGIN: Final = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV bench"
_ENDS: Final = ("allocation.activated", "allocation.failed", "allocation.released")
_TIMEOUT_SECONDS: Final = 300.0
_RECONNECT_SECONDS: Final = 0.2
_DISCOVERY_SECONDS: Final = 0.5
_LEASE_SECONDS: Final = 24 * 3600
T = TypeVar("T")


def _ignore_progress(_done: int) -> None:
    """Progress callback that does nothing."""


class CallFailed(Exception):
    """The API returned an error, or an allocation failed; the message names the error or the allocation."""


class _Event(msgspec.Struct):
    type: str
    stream: str
    data: msgspec.Raw


class _Arrival(NamedTuple):
    """The time at which an event arrived, and the event's data."""

    at: float
    data: bytes


class Watch:
    """Awaits the activation, release or failure of allocations on the event stream. `run` runs as an asyncio task."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._came: dict[tuple[str, str], asyncio.Future[_Arrival]] = {}
        self._last: str | None = None
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Receive events from the API's event stream until cancelled; reconnect if the stream is lost."""
        while True:
            try:
                await self._listen()
            except httpx.TransportError:
                await asyncio.sleep(_RECONNECT_SECONDS)

    async def until(self, allocation: str, ends: str) -> float:
        """Wait for an allocation's event of the type `ends`, and return its time of arrival (`time.monotonic`).

        Raises `CallFailed` if the allocation fails, and `TimeoutError` if neither event arrives in time.
        """
        ended, failed = self._future(allocation, ends), self._future(allocation, "allocation.failed")
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await asyncio.wait({ended, failed}, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            raise CallFailed(f"{allocation} failed: {failed.result().data.decode()}")
        return ended.result().at

    async def _listen(self) -> None:
        headers = {} if self._last is None else {"Last-Event-ID": self._last}
        async with self._client.stream(
            "GET",
            "/events/watch",
            params={"type": _ENDS},
            headers=headers,
            timeout=httpx.Timeout(60, read=None),
        ) as stream:
            stream.raise_for_status()
            self.listening.set()
            async for message in EventSource(stream).aiter_sse():
                self._handle(message)

    def _handle(self, message: ServerSentEvent) -> None:
        self._last = message.id or self._last
        if message.data:
            event = msgspec.json.decode(message.data, type=_Event)
            future = self._future(event.stream.removeprefix("allocation-"), event.type)
            if not future.done():
                future.set_result(_Arrival(time.monotonic(), bytes(event.data)))

    def _future(self, allocation: str, ends: str) -> asyncio.Future[_Arrival]:
        return self._came.setdefault((allocation, ends), asyncio.get_running_loop().create_future())


@asynccontextmanager
async def running_watch(client: httpx.AsyncClient) -> AsyncIterator[Watch]:
    """Receive the API's event stream during a `with` block; the stream is connected when the block begins."""
    watch = Watch(client)
    running = asyncio.create_task(watch.run())
    try:
        await watch.listening.wait()
        yield watch
    finally:
        running.cancel()
        await asyncio.wait([running])


class Callers:
    """API callers that keep `at_once` allocations in progress at the same time; requests alternate between all APIs."""

    def __init__(self, clients: Sequence[httpx.AsyncClient], watch: Watch, at_once: int) -> None:
        self._clients, self._watch, self._at_once = clients, watch, at_once
        self._turn = 0

    async def register(self, name: str) -> Admitted:
        """Register a node, which can then enrol with the returned token."""
        response = await self.request("POST", "/nodes", {"id": name})
        return Admitted(name, response.json()["enrolment_token"])

    async def approve(self, name: str, slots: int) -> None:
        """Approve all slots of a node as soon as they are discovered."""
        while True:
            found = (await self.request("GET", f"/slots?node={name}")).json()["items"]
            if len(found) == slots:
                break
            await asyncio.sleep(_DISCOVERY_SECONDS)
        for index in range(slots):
            await self.request("POST", f"/nodes/{name}/slots/{index}/approve")

    async def create(self, count: int, progress: Callable[[int], None]) -> dict[str, float]:
        """Create `count` allocations. Return seconds from each request until active. Raises `CallFailed`."""
        return dict(await self.each(range(count), lambda _number: self._create(), progress))

    async def release(self, allocations: Sequence[str], progress: Callable[[int], None]) -> dict[str, float]:
        """Release these allocations. Return seconds from each request to the proof of removal. Raises `CallFailed`."""
        return dict(await self.each(allocations, self._release, progress))

    async def each(
        self,
        items: Iterable[int] | Iterable[str],
        work: Callable[..., Awaitable[T]],
        progress: Callable[[int], None] = _ignore_progress,
    ) -> list[T]:
        """Run `work` for each item, `at_once` items at the same time."""
        waiting, done = iter(items), list[T]()

        async def one_after_the_other() -> None:
            for each in waiting:
                done.append(await work(each))
                progress(len(done))

        async with asyncio.TaskGroup() as group:
            for _ in range(self._at_once):
                group.create_task(one_after_the_other())
        return done

    async def request(self, method: str, path: str, body: object = None) -> httpx.Response:
        """Send a request to the API. Raises `CallFailed` with the API's reasons."""
        self._turn += 1
        client = self._clients[self._turn % len(self._clients)]
        headers = {"Idempotency-Key": uuid4().hex}
        response = await client.request(method, path, json=body, headers=headers)
        if response.is_error:
            raise CallFailed(f"{method} {path} returned {response.status_code}: {response.text}")
        return response

    async def _create(self) -> tuple[str, float]:
        began = time.monotonic()
        body = {"sku": "lab.small", "ssh_authorized_keys": [_LOGIN], "lease_seconds": _LEASE_SECONDS}
        allocation = str((await self.request("POST", "/allocations", body)).json()["id"])
        return allocation, await self._watch.until(allocation, "allocation.activated") - began

    async def _release(self, allocation: str) -> tuple[str, float]:
        began = time.monotonic()
        await self.request("DELETE", f"/allocations/{allocation}")
        return allocation, await self._watch.until(allocation, "allocation.released") - began
