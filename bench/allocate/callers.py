"""The callers of the allocate benchmark: one process that creates allocations over many connections.

In an open loop, each request is due at a fixed time, whether or not earlier ones are answered, and its latency counts
from that time. In a closed loop, each connection sends its next request when the last one is answered. The process must
use little processor time, because it competes with the API process for the processors.
"""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final
from uuid import uuid4

import msgspec
import uvloop

TIMEOUT_SECONDS: Final = 30.0
_KEY: Final = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV bench"
_LENGTH: Final = b"content-length"


class Callers(msgspec.Struct):
    """TCP port of the API, API keys of the callers, SKU, and number of connections: the first line of
    standard input.
    """

    port: int
    keys: list[str]
    sku: str
    connections: int


class Load(msgspec.Struct):
    """A request for `count` creations by the first `callers` keys in turn, at `rate` requests per second; a rate of 0
    requests a closed loop.
    """

    count: int
    callers: int
    rate: float


class Created(msgspec.Struct):
    """The result of a load: number of created allocations, refusals by status code, seconds from the first request to
    the last response, and latencies in milliseconds.
    """

    created: int
    refused: dict[str, int]
    seconds: float
    latencies: list[float]


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def status(self, request: bytes) -> str:
        """Send a request; return the status code of its response."""
        self._writer.write(request)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            head = await self._reader.readuntil(b"\r\n\r\n")
            lines = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:-2])
            await self._reader.readexactly(int(lines[_LENGTH]))
        return head[9:12].decode()


def _body(sku: str) -> bytes:
    wanted = {"sku": sku, "ssh_authorized_keys": [_KEY], "lease_seconds": 86_400, "labels": {"team": "bench"}}
    return json.dumps(wanted).encode()


def _requests(callers: Callers, load: Load) -> Iterator[bytes]:
    body = _body(callers.sku)
    for number in range(load.count):
        key = callers.keys[number % load.callers]
        yield (
            f"POST /v1/allocations HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
            f"Idempotency-Key: {uuid4().hex}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body


async def _create(connections: Sequence[_Connection], callers: Callers, load: Load) -> Created:
    requests = list(_requests(callers, load))
    done, began, numbers = Created(0, {}, 0.0, []), time.monotonic(), itertools.count()

    async def send_all(connection: _Connection) -> None:
        while (number := next(numbers)) < load.count:
            due = began + number / load.rate if load.rate else time.monotonic()
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            status = await connection.status(requests[number])
            done.latencies.append((time.monotonic() - due) * 1000)
            if status == "202":
                done.created += 1
            else:
                done.refused[status] = done.refused.get(status, 0) + 1

    await asyncio.gather(*map(send_all, connections))
    done.seconds = time.monotonic() - began
    return done


async def _serve() -> None:
    callers = msgspec.json.decode(sys.stdin.readline(), type=Callers)
    connections = [
        _Connection(*await asyncio.open_connection("127.0.0.1", callers.port))
        for _ in range(callers.connections)
    ]
    _write_answer(None)
    while line := await asyncio.to_thread(sys.stdin.readline):
        _write_answer(await _create(connections, callers, msgspec.json.decode(line, type=Load)))


def _write_answer(answer: object) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(_serve())
