"""Tests of terminals with a hostile SSH server in the slice, or a hostile browser.

The SSH server is asyncssh on the loopback interface; `Slice` passes bytes as a session does.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncssh
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.ext.asyncio import create_async_engine
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

from control_plane.api.consoles.callers import SessionOver
from control_plane.ssh_gateway.authorisation import Authorisation
from control_plane.ssh_gateway.terminal import Login, Size, TerminalCaller
from events.values import allocation_id

SIZES: Final = 2000
LAST: Final = (132, 50)


class Server(asyncssh.SSHServer):
    """An SSH server that accepts each user without a key."""

    def begin_auth(self, username: str) -> bool:
        return False


class Slice:
    """A slice with an SSH server, and the terminals that are connected to this server."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []
        self._port = 0

    async def run_shell(self, process: asyncssh.SSHServerProcess[str]) -> None:
        """Append each new size of the terminal to `sizes`, until the terminal is closed."""
        while True:
            try:
                if not await process.stdin.read(1):
                    break
            except asyncssh.TerminalSizeChanged as changed:
                self.sizes.append((changed.width, changed.height))

    async def join(self, browser: ServerConnection) -> None:
        """Pass bytes between a terminal and the SSH server, and send the code of the reason when the terminal ends."""
        authorisation = Authorisation(
            create_async_engine("postgresql+psycopg://"), allocation_id("alc-" + "0" * 26)
        )
        login = Login("root", Ed25519PrivateKey.generate())
        caller = TerminalCaller(browser, "key:test", authorisation, login, Size())
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        await caller.connected()

        async def receive() -> None:
            while True:
                writer.write(await caller.receive())
                await writer.drain()

        async def send() -> None:
            while data := await reader.read(65_536):
                await caller.send(data)
            await asyncio.Event().wait()

        sender = asyncio.create_task(send())
        try:
            await receive()
        except SessionOver as over:
            await browser.send(json.dumps({"code": over.reason.code, "message": over.reason.message}))
        finally:
            sender.cancel()
            writer.close()
            await caller.close()

    @asynccontextmanager
    async def terminal(self, **options: Any) -> AsyncIterator[ClientConnection]:
        """Provide the WebSocket of a terminal. `options` are those of the SSH server."""
        key = asyncssh.generate_private_key("ssh-ed25519")
        listener = await asyncssh.listen(
            "127.0.0.1", 0, server_factory=Server, server_host_keys=[key], process_factory=self.run_shell, **options
        )  # fmt: skip
        self._port = listener.get_port()
        async with listener, serve(self.join, "127.0.0.1", 0) as gateway:
            [listening] = gateway.sockets
            async with connect(f"ws://127.0.0.1:{listening.getsockname()[1]}") as browser:
                yield browser


async def received(browser: ClientConnection) -> dict[str, str]:
    found: dict[str, str] = json.loads(await asyncio.wait_for(browser.recv(), 20))
    return found


async def test_terminal_ends_if_the_ssh_server_takes_packets_of_one_byte_only() -> None:
    async with Slice().terminal(max_pktsize=1) as browser:
        message = "the SSH server of the slice accepts only packets smaller than 1024 bytes; configure at least 1024"
        assert await received(browser) == {"code": "ssh_login_failed", "message": message}


async def test_frequent_size_changes_of_a_terminal_are_merged_and_end_with_the_newest_size() -> None:
    slice_ = Slice()
    async with slice_.terminal() as browser:
        assert await received(browser) == {"state": "connected"}
        for number in range(SIZES):
            await browser.send(json.dumps({"columns": 80 + number % 20, "rows": 24}))
        columns, rows = LAST
        await browser.send(json.dumps({"columns": columns, "rows": rows}))
        async with asyncio.timeout(20):
            while slice_.sizes[-1:] != [LAST]:
                await asyncio.sleep(0.01)
        assert len(slice_.sizes) < SIZES / 4


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("no JSON", id="not JSON"),
        pytest.param('{"columns": "a"}', id="not a number"),
        pytest.param('{"other": ' + "[" * 50_000, id="nested too deep"),
    ],
)
async def test_terminal_ends_when_the_browser_sends_a_text_that_is_not_a_terminal_size(text: str) -> None:
    async with Slice().terminal() as browser:
        assert await received(browser) == {"state": "connected"}
        await browser.send(text)
        assert (await received(browser))["code"] == "invalid_message"
