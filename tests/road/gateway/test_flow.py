"""Flow control of channels of the SSH gateway, over SSH connections on the loopback interface."""

import asyncio
from asyncio import selector_events, sslproto
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import asyncssh
import pytest
from asyncssh.constants import MSG_GLOBAL_REQUEST
from asyncssh.packet import Boolean, String
from sqlalchemy.ext.asyncio import create_async_engine

from control_plane.ssh_gateway.authorisation import Authorisation
from control_plane.ssh_gateway.channel import ChannelCaller
from control_plane.ssh_gateway.flow import MOST_DEFERRED, READ_BYTES, Flow, read_in_small_parts
from events.values import allocation_id

BLOCK: Final = b"\0" * 65_536
BLOCKS: Final = 1024
MOST_BUFFERED: Final = 1 << 20
UNLIMITED: Final = (1 << 32) - 1
ALLOCATION: Final = allocation_id("alc-" + "0" * 26)


class Server(asyncssh.SSHServer):
    """SSH server for one connection; each channel of the connection has a `ChannelCaller` of the SSH gateway."""

    connection: asyncssh.SSHServerConnection
    flow: Flow
    caller: ChannelCaller
    is_lost = False

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.connection, self.flow = conn, Flow(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self.flow.close()
        self.is_lost = True

    def begin_auth(self, username: str) -> bool:
        return False

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> tuple[asyncssh.SSHTCPChannel[bytes], ChannelCaller]:
        # This engine is never connected, because the tests do not call `verify`.
        authorisation = Authorisation(create_async_engine("postgresql+psycopg://"), ALLOCATION)
        self.caller = ChannelCaller("key:test", authorisation, self.flow)
        return self.connection.create_tcp_channel(), self.caller

    def buffered(self) -> int:
        """Return the number of bytes that are buffered for the client in this process."""
        transport = self.connection._transport
        deferred = sum(len(part) for _, parts in self.connection._deferred_packets for part in parts)
        return deferred + (transport.get_write_buffer_size() if transport else 0)


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """Provide an SSH client that is connected to the given server."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    listener = await asyncssh.listen("127.0.0.1", 0, server_factory=lambda: server, server_host_keys=[key])
    async with listener, asyncssh.connect(
        "127.0.0.1", listener.get_port(), known_hosts=None, config=None, client_keys=None, agent_path=None
    ) as client:  # fmt: skip
        yield client


def exchange_keys(connection: asyncssh.SSHClientConnection) -> None:
    """Begin a key exchange, which needs answers of both sides."""
    connection._send_kexinit()
    connection._kexinit_sent = True


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(lambda _: None, id="client does not read"),
        pytest.param(exchange_keys, id="client does not finish a key exchange"),
    ],
)
async def test_output_for_an_ssh_client_that_reads_nothing_is_held_back_and_arrives_completely_afterwards(
    begin: Callable[[asyncssh.SSHClientConnection], None],
) -> None:
    server = Server()
    async with connected(server) as client:
        reader, _ = await client.open_connection("slice", 22, encoding=None, window=UNLIMITED)
        transport = client._transport
        assert transport is not None
        begin(client)
        transport.pause_reading()
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(BLOCKS):
                await server.caller.send(BLOCK)
                sent += len(BLOCK)
                await asyncio.sleep(0)

        sender = asyncio.create_task(send())
        while not server.flow.is_full and not sender.done():
            await asyncio.sleep(0)
        assert server.buffered() < MOST_BUFFERED
        assert not sender.done()
        transport.resume_reading()
        assert await reader.readexactly(BLOCKS * len(BLOCK)) == BLOCK * BLOCKS
        await sender
        assert sent == BLOCKS * len(BLOCK)


async def test_connection_that_sends_many_requests_during_an_unfinished_key_exchange_is_closed() -> None:
    server = Server()
    async with connected(server) as client:
        exchange_keys(client)
        assert client._transport is not None
        client._transport.pause_reading()
        requests = 0
        while not server.is_lost and requests < 10 * MOST_DEFERRED:
            requests += 1
            # A client that keeps to the protocol sends nothing else during a key exchange.
            client._kex_complete = True
            client.send_packet(MSG_GLOBAL_REQUEST, String("a"), Boolean(True))
            client._kex_complete = False
            await asyncio.sleep(0)
        assert MOST_DEFERRED < requests < 10 * MOST_DEFERRED


async def test_event_loop_of_the_ssh_gateway_reads_a_limited_number_of_bytes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, name in ((selector_events, "_SelectorSocketTransport"), (sslproto, "SSLProtocol")):
        owner = getattr(module, name)
        monkeypatch.setattr(owner, "max_size", owner.max_size)  # restored after the test
    read_in_small_parts()
    sizes, ended = list[int](), asyncio.Event()

    class Protocol(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            sizes.append(len(data))

        def connection_lost(self, exc: Exception | None) -> None:
            ended.set()

    listener = await asyncio.get_running_loop().create_server(Protocol, "127.0.0.1", 0)
    async with listener:
        _, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        writer.write(BLOCK * 10)
        writer.close()
        await asyncio.wait_for(ended.wait(), 10)
    assert sum(sizes) == 10 * len(BLOCK)
    assert max(sizes) == READ_BYTES


async def test_sender_that_waits_for_an_ssh_client_continues_when_the_connection_is_lost() -> None:
    server = Server()
    async with connected(server) as client:
        await client.open_connection("slice", 22, encoding=None, window=UNLIMITED)
        assert client._transport is not None
        client._transport.pause_reading()
        for _ in range(BLOCKS):
            if server.flow.is_full:
                break
            await server.caller.send(BLOCK)
        waiting = asyncio.create_task(server.flow.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        client.abort()
        await asyncio.wait_for(waiting, 10)
