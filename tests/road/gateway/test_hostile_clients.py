"""Clients of the SSH gateway that use the protocol to occupy it: asyncssh is the client, because OpenSSH does not."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.road.conftest import Site
from tests.road.gateway.test_ssh_gateway import Slices
from tests.servers.ssh_gateway import GREETING, Gateway, gateway_process

Use = Callable[[asyncssh.SSHClientConnection], Coroutine[Any, Any, None]]


@pytest.fixture
def gateway(site: Site, tmp_path: Path) -> Iterator[Gateway]:
    with gateway_process(site.plane, tmp_path) as made:
        yield made


@pytest.fixture
def slices(site: Site, gateway: Gateway, tmp_path: Path) -> Slices:
    return Slices(site, gateway, tmp_path)


def connected(slices: Slices, use: Use) -> None:
    """Call `use` with a connection that is authenticated with the key of the allocation."""

    async def run() -> None:
        async with asyncssh.connect(
            "127.0.0.1",
            slices.gateway.port,
            username=slices.allocation,
            client_keys=[str(slices.key.file)],
            known_hosts=str(slices.gateway.known_hosts),
            config=None,
            agent_path=None,
        ) as connection:
            await use(connection)

    asyncio.run(run())


def test_channel_with_packets_of_one_byte_is_refused_and_others_of_the_connection_are_not(
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


def test_channels_that_a_client_opens_at_once_are_refused_without_the_database_beyond_the_maximum(
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
