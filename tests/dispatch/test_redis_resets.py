"""Tests of a Redis server that resets connections while they are opened: the client reports it as unavailable, with
every implementation of the event loop.
"""

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

from control_plane.queues.redis_nodes import RedisUnavailable, answers

TIMES: Final = 300
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with a timeout of 0: closing resets the connection (socket(7))."""


@pytest.fixture
def port() -> Iterator[int]:
    """Port of a TCP server that accepts connections and resets each of them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def reset_each() -> None:
            with suppress(OSError):
                while True:
                    accepted, _ = listening.accept()
                    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    accepted.close()

        thread = threading.Thread(target=reset_each)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_redis_connection_reset_while_it_is_opened_is_reported_as_redis_unavailable(port: int) -> None:
    async def count_errors() -> Counter[type[Exception]]:
        errors = Counter[type[Exception]]()
        for _ in range(TIMES):
            async with Redis(host="127.0.0.1", port=port, retry=Retry(NoBackoff(), 1)) as client:
                try:
                    await answers(client, [("PING",)])
                except Exception as error:  # noqa: BLE001 (the test counts all types of errors)
                    errors[type(error)] += 1
        return errors

    assert uvloop.run(count_errors()) == {RedisUnavailable: TIMES}
