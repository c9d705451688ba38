"""Tests of the WebSocket clients of the agent and the command line over TLS: one thread reads, another one writes."""

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

import pytest
from websockets.asyncio.server import ServerConnection, serve

from control_plane.cli.access import Access
from control_plane.cli.console_relay import connected
from control_plane.client.answers import ConsoleTicket
from deploy.embedded.certificates import Certificates, ensure
from events.values import new_uuid
from node_agent.settings import Settings, SlotSettings
from node_agent.transport.stream_socket import StreamSocket

CALLERS: Final = 4
CONNECTIONS: Final = 400
MESSAGES: Final = 4
MESSAGE: Final = bytes(1024)
SECONDS: Final = 30.0


class Peer:
    """A server that sends and receives `MESSAGES` messages at the same time, and then closes the connection."""

    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates
        self.url = ""
        self.complete = 0
        """Number of connections from which all messages were received."""
        self._loop, self._ready, self._end = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Peer":
        self._thread.start()
        assert self._ready.wait(SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.load_cert_chain(self.certificates.server)
        async with serve(self._answer, "127.0.0.1", 0, ssl=own, compression=None) as server:
            [socket] = server.sockets
            self.url = f"https://127.0.0.1:{socket.getsockname()[1]}"
            self._ready.set()
            await self._end.wait()

    async def _answer(self, caller: ServerConnection) -> None:
        if "console-sessions" in str(caller.request and caller.request.path):
            await caller.recv()
            await caller.send('{"state": "connected"}')
        output = asyncio.create_task(_send_output(caller))
        for _ in range(MESSAGES):
            assert await caller.recv() == MESSAGE
        await output
        self.complete += 1


async def _send_output(caller: ServerConnection) -> None:
    for _ in range(MESSAGES):
        await caller.send(MESSAGE)


class Stream(Protocol):
    """Interface that the streams of both clients (agent and command line) implement."""

    def send(self, data: bytes) -> object: ...


Opened = AbstractContextManager[tuple[Stream, Callable[[], str | bytes | None]]]
"""An open stream, and the function that receives from it; None: the stream is closed."""


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    folder = tmp_path_factory.mktemp("certificates")
    with Peer(ensure(folder, ["127.0.0.1"], datetime.now(UTC))) as running:
        yield running


class Bearer:
    """The credential of a node."""

    bearer = "n1:secret"

    def renew_if_unchanged(self, _bearer: str) -> bool:
        return False


@contextmanager
def of_agent(peer: Peer, folder: Path) -> Iterator[tuple[Stream, Callable[[], str | bytes | None]]]:
    settings = Settings(
        node_id="n1", api_url=peer.url, ca_file=peer.certificates.ca, enrolment_token_file=folder,
        state_folder=folder, run_folder=folder, images_folder=folder,
        slots=(SlotSettings(index=0, vcpus=1, memory_mib=64),),
    )  # fmt: skip
    with StreamSocket(settings, Bearer(), new_uuid()) as stream:
        yield stream, stream.receive


@contextmanager
def of_command_line(peer: Peer, _folder: Path) -> Iterator[tuple[Stream, Callable[[], str | bytes | None]]]:
    path = "/v1/console-sessions/con-1/stream"
    ticket = ConsoleTicket(
        "con-1", "alc-1", "n1/0", "n1", "serial", "key:a", datetime.now(UTC), path, "ticket"
    )
    access = Access(peer.url, "key", peer.certificates.ca.read_text())
    with connected(access, ticket) as stream:
        messages = iter(stream)
        yield stream, lambda: next(messages, None)


@pytest.mark.parametrize("opened", [of_agent, of_command_line])
def test_client_opens_many_tls_connections_and_reads_and_writes_each_in_two_threads(
    peer: Peer, tmp_path: Path, opened: Callable[[Peer, Path], Opened]
) -> None:
    # With a client that reads in one thread and writes in another one, one handshake in 400 hung.
    def use(_number: int) -> Sequence[object]:
        with opened(peer, tmp_path) as (stream, receive):
            with ThreadPoolExecutor(1) as threads:
                received = threads.submit(lambda: [*iter(receive, None)])
                for _ in range(MESSAGES):
                    stream.send(MESSAGE)
            return received.result()

    before = peer.complete
    with ThreadPoolExecutor(CALLERS) as callers:
        assert [*callers.map(use, range(CONNECTIONS))] == [[MESSAGE] * MESSAGES] * CONNECTIONS
    assert peer.complete == before + CONNECTIONS
