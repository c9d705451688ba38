"""The client of the access benchmark: many connections to an API process, each with one request in progress.

The process must use little processor time, because it competes with the API process for the processors.
"""

import re
import selectors
import socket
import sys
import time
from typing import Final

import msgspec

HEADER: Final = "bench-side"
"""Header that names the side of a request (`bench.access.sides`)."""
TIMEOUT_SECONDS: Final = 20.0
_READ_BYTES: Final = 2**16
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]+)\r\n", re.IGNORECASE)
_END: Final = b"\r\n\r\n"
_OK: Final = b"HTTP/1.1 200 "


class ClientSettings(msgspec.Struct):
    """Host and TCP port of the API, number of connections, API key and path: the first line of the process's standard
    input.
    """

    host: str
    port: int
    connections: int
    key: str
    path: str


class Turn(msgspec.Struct):
    """A request to send as many requests of one side as possible for some seconds; the answer is the rate in requests
    per second.
    """

    side: str
    seconds: float


class UnexpectedResponse(Exception):
    """The API refused a request of the benchmark or closed a connection."""


class _Connection:
    def __init__(self, host: str, port: int, request: bytes) -> None:
        self.socket = socket.create_connection((host, port), TIMEOUT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request, self._received = request, b""

    def send(self) -> None:
        self.socket.sendall(self._request)

    def receive(self) -> bool:
        """Read what has arrived; return whether a response is complete. Raises `UnexpectedResponse`."""
        data = self.socket.recv(_READ_BYTES)
        self._received += data
        head, end, body = self._received.partition(_END)
        if not data or (end and not head.startswith(_OK)):
            raise UnexpectedResponse(self._received[:500].decode(errors="replace"))
        length = _LENGTH.search(head + b"\r\n")
        if not end or length is None or len(body) < int(length[1]):
            return False
        self._received = b""
        return True


def rate(settings: ClientSettings, turn: Turn) -> float:
    """Return the number of responses per second while every connection has one request in progress."""
    request = (
        f"GET {settings.path} HTTP/1.1\r\nHost: {settings.host}\r\nAuthorization: Bearer {settings.key}\r\n"
        f"{HEADER}: {turn.side}\r\n\r\n"
    ).encode()
    connections = [_Connection(settings.host, settings.port, request) for _ in range(settings.connections)]
    selector, count, began = selectors.DefaultSelector(), 0, time.monotonic()
    for each in connections:
        selector.register(each.socket, selectors.EVENT_READ, each)
        each.send()
    while time.monotonic() < began + turn.seconds:
        for key, _ in selector.select(TIMEOUT_SECONDS):
            if key.data.receive():
                count += 1
                key.data.send()
    took = time.monotonic() - began
    for each in connections:
        each.socket.close()
    return count / took


def main() -> None:
    settings = msgspec.json.decode(sys.stdin.readline(), type=ClientSettings)
    _write_answer(None)
    while line := sys.stdin.readline():
        _write_answer(rate(settings, msgspec.json.decode(line, type=Turn)))


def _write_answer(answer: object) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
