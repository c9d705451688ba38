"""The callers of the fleet: they ask for slices and give them back over the API, and watch what comes of it.

So many allocations are under way at a time, each asked for when another is done. Done is what a caller sees: the
moment at which the event stream tells that the allocation is active, or released. One stream tells of all of them;
lost, it is asked for again from where it was.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeVar
from uuid import uuid4

import httpx
import msgspec

from bench.hosted import Admitted

_LOGIN: Final = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV bench"
_ENDS: Final = ("allocation.activated", "allocation.failed", "allocation.released")
_PATIENCE: Final = 300.0
_AGAIN_SECONDS: Final = 0.2
_DISCOVERY_SECONDS: Final = 0.5
_LEASE_SECONDS: Final = 24 * 3600
T = TypeVar("T")


def _unwatched(_done: int) -> None:
    """Nobody wants to know."""


class Lost(Exception):
    """An allocation did not become what was asked for; the message names it."""


class _Event(msgspec.Struct):
    type: str
    stream: str
    data: msgspec.Raw


class _Came(NamedTuple):
    """When an event came, and its fact."""

    at: float
    data: bytes


class Watch:
    """What became of each allocation, as the event stream tells. It `run`s beside the callers."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._came: dict[tuple[str, str], asyncio.Future[_Came]] = {}
        self._last: str | None = None
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._listen()
            except httpx.TransportError:
                await asyncio.sleep(_AGAIN_SECONDS)

    async def until(self, allocation: str, ends: str) -> float:
        """The moment (`time.monotonic`) of this end. Raises `Lost` when it does not come, or another does."""
        wanted, failed = self._future(allocation, ends), self._future(allocation, "allocation.failed")
        async with asyncio.timeout(_PATIENCE):
            await asyncio.wait({wanted, failed}, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            raise Lost(f"{allocation} failed: {failed.result().data.decode()}")
        return wanted.result().at

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
            async for line in stream.aiter_lines():
                self._hear(line)

    def _hear(self, line: str) -> None:
        name, _, value = line.partition(": ")
        if name == "id":
            self._last = value
        elif name == "data":
            event = msgspec.json.decode(value, type=_Event)
            future = self._future(event.stream.removeprefix("allocation-"), event.type)
            if not future.done():
                future.set_result(_Came(time.monotonic(), bytes(event.data)))

    def _future(self, allocation: str, ends: str) -> asyncio.Future[_Came]:
        return self._came.setdefault((allocation, ends), asyncio.get_running_loop().create_future())


@asynccontextmanager
async def watching(client: httpx.AsyncClient) -> AsyncIterator[Watch]:
    """A watch that listens."""
    watch = Watch(client)
    running = asyncio.create_task(watch.run())
    try:
        await watch.listening.wait()
        yield watch
    finally:
        running.cancel()
        await asyncio.wait([running])


class Callers:
    """`at_once` allocations under way at a time, over all APIs in turns."""

    def __init__(self, clients: Sequence[httpx.AsyncClient], watch: Watch, at_once: int) -> None:
        self._clients, self._watch, self._at_once = clients, watch, at_once
        self._turn = 0

    async def expect(self, name: str) -> Admitted:
        """Admit a node, which may enrol then."""
        answer = await self.ask("POST", "/nodes", {"id": name})
        return Admitted(name, answer.json()["enrolment_token"])

    async def approve(self, name: str, slots: int) -> None:
        """All slots of a node, once they were discovered."""
        while True:
            found = (await self.ask("GET", f"/slots?node={name}")).json()["items"]
            if len(found) == slots:
                break
            await asyncio.sleep(_DISCOVERY_SECONDS)
        for index in range(slots):
            await self.ask("POST", f"/nodes/{name}/slots/{index}/approve")

    async def create(self, count: int, progress: Callable[[int], None]) -> dict[str, float]:
        """Have so many become active; seconds from each request to that, by allocation. Raises `Lost`."""
        return dict(await self.each(range(count), lambda _number: self._create(), progress))

    async def release(self, allocations: Sequence[str], progress: Callable[[int], None]) -> dict[str, float]:
        """Give all of these back; seconds from each request to the proof. Raises `Lost`."""
        return dict(await self.each(allocations, self._release, progress))

    async def each(
        self,
        of: Iterable[int] | Iterable[str],
        work: Callable[..., Awaitable[T]],
        progress: Callable[[int], None] = _unwatched,
    ) -> list[T]:
        """Do something for each, so many at a time."""
        waiting, done = iter(of), list[T]()

        async def one_after_the_other() -> None:
            for each in waiting:
                done.append(await work(each))
                progress(len(done))

        async with asyncio.TaskGroup() as group:
            for _ in range(self._at_once):
                group.create_task(one_after_the_other())
        return done

    async def ask(self, method: str, path: str, body: object = None) -> httpx.Response:
        """Raises `Lost` with the API's reasons."""
        self._turn += 1
        client = self._clients[self._turn % len(self._clients)]
        headers = {"Idempotency-Key": uuid4().hex}
        answer = await client.request(method, path, json=body, headers=headers)
        if answer.is_error:
            raise Lost(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer

    async def _create(self) -> tuple[str, float]:
        asked = time.monotonic()
        body = {"sku": "lab.small", "ssh_authorized_keys": [_LOGIN], "lease_seconds": _LEASE_SECONDS}
        allocation = str((await self.ask("POST", "/allocations", body)).json()["id"])
        return allocation, await self._watch.until(allocation, "allocation.activated") - asked

    async def _release(self, allocation: str) -> tuple[str, float]:
        asked = time.monotonic()
        await self.ask("DELETE", f"/allocations/{allocation}")
        return allocation, await self._watch.until(allocation, "allocation.released") - asked
