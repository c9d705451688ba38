"""A Redis that ends connections while they are made is away, whatever the event loop calls that."""

import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import pytest
import uvloop
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from control_plane.redis_nodes import RedisAway, answers

TIMES: Final = 300
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: closing resets the connection (socket(7))."""


@pytest.fixture
def port() -> Iterator[int]:
    """Of somebody who takes connections and resets each."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def reset_each() -> None:
            with suppress(OSError):
                while True:
                    taken, _ = listening.accept()
                    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    taken.close()

        thread = threading.Thread(target=reset_each)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_connection_that_ends_while_it_is_made_is_a_redis_that_is_away(port: int) -> None:
    async def ask() -> Counter[type[Exception]]:
        told = Counter[type[Exception]]()
        for _ in range(TIMES):
            async with Redis(host="127.0.0.1", port=port, retry=Retry(NoBackoff(), 1)) as client:
                try:
                    await answers(client, [("PING",)])
                except Exception as error:  # noqa: BLE001 (which ones there are is the question)
                    told[type(error)] += 1
        return told

    assert uvloop.run(ask()) == {RedisAway: TIMES}
