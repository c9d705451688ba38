"""Relay of TCP ports: `python -m node_agent.lab.nested.relay HOST PORT ...`.

It listens on each port of 127.0.0.1 and passes every connection on to the same port of HOST. So a nested lab host
reaches servers that listen on the loopback interface of this machine under the same addresses.
"""

import asyncio
import contextlib
import sys
from functools import partial
from typing import Final

_PIECE: Final = 65536


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()


async def main(host: str, ports: list[int]) -> None:
    """Relay the ports until the process is ended."""

    async def relay(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            other_reader, other_writer = await asyncio.open_connection(host, port)
            await asyncio.gather(_pass_on(reader, other_writer), _pass_on(other_reader, writer))

    async with contextlib.AsyncExitStack() as servers:
        for port in ports:
            server = await asyncio.start_server(partial(relay, port), "127.0.0.1", port)
            await servers.enter_async_context(server)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], [int(port) for port in sys.argv[2:]]))
