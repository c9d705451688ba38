"""Tests of SSH clients that try to exhaust the gateway. They use asyncssh: OpenSSH does not send such requests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from control_plane.ssh_gateway.connection import MOST_REFUSALS, UNUSED_SECONDS
from control_plane.ssh_gateway.limits import MOST_OF_ALLOCATION
from tests.road.conftest import Site
from tests.road.gateway.test_ssh_gateway import Slices
from tests.servers.ssh_gateway import GREETING, Gateway

Use = Callable[[asyncssh.SSHClientConnection], Coroutine[Any, Any, None]]


@pytest.fixture
def slices(site: Site, gateway: Gateway, tmp_path: Path) -> Slices:
    return Slices(site, gateway, tmp_path)


def connected(slices: Slices, use: Use) -> None:
    """Call `use` with a connection that is authenticated with the key of the allocation."""

    async def run() -> None:
        async with connection_of(slices) as connection:
            await use(connection)

    asyncio.run(run())


@asynccontextmanager
async def connection_of(slices: Slices) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """Provide a connection that is authenticated with the key of the allocation."""
    async with asyncssh.connect(
        "127.0.0.1",
        slices.gateway.port,
        username=slices.allocation,
        client_keys=[str(slices.key.file)],
        known_hosts=str(slices.gateway.known_hosts),
        config=None,
        agent_path=None,
    ) as connection:
        yield connection


def test_ssh_channel_with_packets_of_one_byte_is_refused_and_other_channels_of_the_connection_stay_usable(
    slices: Slices,
) -> None:
    async def use(connection: asyncssh.SSHClientConnection) -> None:
        with pytest.raises(
            asyncssh.ChannelOpenError, match="packet size of the channel is less than 1024 bytes"
        ):
            await connection.open_connection("slice", 22, max_pktsize=1)
        reader, writer = await connection.open_connection("slice", 22, encoding=None)
        assert await reader.readexactly(len(GREETING)) == GREETING
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"

    connected(slices, use)
    slices.await_end()
    assert [kind for kind, _ in slices.events()].count("console.requested") == 1


def test_channels_opened_concurrently_beyond_the_maximum_are_refused(
    slices: Slices,
) -> None:
    count = 200

    async def use(connection: asyncssh.SSHClientConnection) -> None:
        opens = [connection.open_connection("slice", 22, encoding=None) for _ in range(count)]
        ends = await asyncio.gather(*opens, return_exceptions=True)
        refused = [str(each) for each in ends if isinstance(each, asyncssh.ChannelOpenError)]
        message = "8 connections to the slices of the allocation are being opened; try again later"
        assert refused.count(message) >= count // 2, refused
        assert 1 <= count - len(refused) <= 8

    connected(slices, use)
    slices.await_end()


def test_sessions_of_a_client_that_disconnects_while_its_channels_are_opened_end(slices: Slices) -> None:
    async def disconnect_after(turns: int) -> None:
        async with connection_of(slices) as connection:
            opens = [
                asyncio.ensure_future(connection.open_connection("slice", 22, encoding=None))
                for _ in range(3)
            ]
            await asyncio.wait(opens, timeout=turns * 0.004)
            connection.abort()
            await asyncio.gather(*opens, return_exceptions=True)

    async def disconnect_at_different_times() -> None:
        for turns in range(1, 13):
            await disconnect_after(turns)

    asyncio.run(disconnect_at_different_times())
    slices.await_end()
    with slices.connection() as client:
        assert client.read(len(GREETING)) == GREETING, client.errors()


def test_connection_with_many_refused_requests_is_closed_and_its_log_is_bounded(slices: Slices) -> None:
    async def use(connection: asyncssh.SSHClientConnection) -> None:
        opens = [connection.open_connection("other", 22) for _ in range(10 * MOST_REFUSALS)]
        await asyncio.gather(*opens, return_exceptions=True)
        # Before a connection without a channel is closed.
        await asyncio.wait_for(connection.wait_closed(), UNUSED_SECONDS / 2)

    connected(slices, use)
    assert slices.gateway.child.log.read_text().count("ssh_request_refused") == MOST_REFUSALS


def test_gateway_process_accepts_at_most_ten_authenticated_connections_for_an_allocation(
    slices: Slices,
) -> None:
    async def connect_too_often() -> None:
        async with AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(connection_of(slices)) for _ in range(MOST_OF_ALLOCATION)
            ]
            async with connection_of(slices) as refused:
                await refused.wait_closed()
            reader, _ = await opened[0].open_connection("slice", 22, encoding=None)
            assert await reader.readexactly(len(GREETING)) == GREETING

    asyncio.run(connect_too_often())
    with slices.connection() as client:
        assert client.read(len(GREETING)) == GREETING, client.errors()
