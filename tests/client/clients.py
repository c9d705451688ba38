"""Both clients behind one synchronous interface, so that each test runs with both transports."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from control_plane.client import AsyncClient, Client
from control_plane.client.exchange import Call, ListCall, Reply, WatchCall
from control_plane.client.streams import Following


class AnyClient(Protocol):
    """The methods of `Client`, with lists instead of iterators."""

    def run(self, call: Call[Any]) -> Any: ...

    def send(self, call: Call[Any]) -> Reply[Any]: ...

    def items(self, call: ListCall[Any], limit: int | None = None) -> list[Any]: ...

    def follow(self, watch: WatchCall[Any], following: Following | None = None, count: int = 0) -> list[Any]:
        """Return the first `count` messages of a stream."""

    def wait_for(self, subject: Any, state: str = "done", *, within: float) -> Any: ...


class _Sync:
    def __init__(self, client: Client) -> None:
        self._client = client
        self.run, self.send, self.wait_for = client.run, client.send, client.wait_for

    def items(self, call: ListCall[Any], limit: int | None = None) -> list[Any]:
        return list(self._client.items(call, limit))

    def follow(self, watch: WatchCall[Any], following: Following | None = None, count: int = 0) -> list[Any]:
        stream = self._client.follow(watch, following)
        return [next(stream).value for _ in range(count)]


class _Async:
    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self._client, self._runner = client, runner

    def run(self, call: Call[Any]) -> Any:
        return self._runner.run(self._client.run(call))

    def send(self, call: Call[Any]) -> Reply[Any]:
        return self._runner.run(self._client.send(call))

    def items(self, call: ListCall[Any], limit: int | None = None) -> list[Any]:
        async def every() -> list[Any]:
            return [item async for item in self._client.items(call, limit)]

        return self._runner.run(every())

    def follow(self, watch: WatchCall[Any], following: Following | None = None, count: int = 0) -> list[Any]:
        async def first() -> list[Any]:
            stream = self._client.follow(watch, following)
            found = [(await anext(stream)).value for _ in range(count)]
            await stream.aclose()
            return found

        return self._runner.run(first())

    def wait_for(self, subject: Any, state: str = "done", *, within: float) -> Any:
        return self._runner.run(self._client.wait_for(subject, state, within=within))


@contextmanager
def client_of(kind: str, url: str, key: str, ca: str | None = None) -> Iterator[AnyClient]:
    """Provide a client of the kind `sync` or `async` to a `with` block."""
    if kind == "sync":
        with Client(url, key, ca=ca) as client:
            yield _Sync(client)
        return
    with asyncio.Runner() as runner:
        asynchronous = AsyncClient(url, key, ca=ca)
        try:
            yield _Async(asynchronous, runner)
        finally:
            runner.run(asynchronous.close())
