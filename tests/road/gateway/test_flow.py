"""Flow control of channels of the SSH gateway, over SSH connections on the loopback interface."""

import asyncio
from collections.abc import Callable
from typing import Final

import asyncssh
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from control_plane.ssh_gateway.authorisation import Authorisation
from control_plane.ssh_gateway.channel import ChannelCaller
from control_plane.ssh_gateway.flow import Flow
from events.values import allocation_id

BLOCK: Final = b"\0" * 65_536
BLOCKS: Final = 1024
MOST_BUFFERED: Final = 1 << 20
UNLIMITED: Final = (1 << 32) - 1
ALLOCATION: Final = allocation_id("alc-" + "0" * 26)


class Server(asyncssh.SSHServer):
    """A server of one connection, of which each channel has a `ChannelCaller`."""

    connection: asyncssh.SSHServerConnection
    flow: Flow
    caller: ChannelCaller

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.connection, self.flow = conn, Flow(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self.flow.close()

    def begin_auth(self, username: str) -> bool:
        return False

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> tuple[asyncssh.SSHTCPChannel[bytes], ChannelCaller]:
        # Not connected: what the caller is authorised for is not read.
        authorisation = Authorisation(create_async_engine("postgresql+psycopg://"), ALLOCATION)
        self.caller = ChannelCaller("key:test", authorisation, self.flow)
        return self.connection.create_tcp_channel(), self.caller

    def buffered(self) -> int:
        """Return the number of bytes that are buffered for the client in this process."""
        transport = self.connection._transport
        deferred = sum(len(part) for _, parts in self.connection._deferred_packets for part in parts)
        return deferred + (transport.get_write_buffer_size() if transport else 0)


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
async def test_output_waits_for_a_client_that_does_not_take_it_and_arrives_complete_afterwards(
    begin: Callable[[asyncssh.SSHClientConnection], None],
) -> None:
    server = Server()
    listener = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=lambda: server,
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
    )
    async with listener, asyncssh.connect(
        "127.0.0.1", listener.get_port(), known_hosts=None, config=None, client_keys=None, agent_path=None
    ) as client:  # fmt: skip
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


async def test_sender_does_not_wait_for_a_client_of_which_the_connection_is_lost() -> None:
    server = Server()
    listener = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=lambda: server,
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
    )
    async with listener, asyncssh.connect(
        "127.0.0.1", listener.get_port(), known_hosts=None, config=None, client_keys=None, agent_path=None
    ) as client:  # fmt: skip
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
