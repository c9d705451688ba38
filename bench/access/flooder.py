"""The flooding project of the flood benchmark: one process that sends requests with one API key as fast as it can.

Every connection sends its next request as soon as the response to the last one has arrived, also if it is a refusal.
The process must use little processor time: in a deployment, no client runs on the machine of the API.
"""

import re
import selectors
import socket
import sys
import time
from typing import Final

import msgspec

TIMEOUT_SECONDS: Final = 20.0
_READ_BYTES: Final = 2**16
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]+)\r\n", re.IGNORECASE)
_END: Final = b"\r\n\r\n"
_OK: Final = b"HTTP/1.1 200 "
_REFUSED: Final = b"HTTP/1.1 429 "


class Flood(msgspec.Struct):
    """A flood: the API's port, the request to send, and the number of connections. The flood lasts until the process
    reads another line. The process writes a `Flooded` after the first refused request and at the end of the flood.
    """

    port: int
    request: str
    connections: int


class Flooded(msgspec.Struct):
    """Number of admitted and of refused requests, and the seconds that the flood has lasted so far."""

    admitted: int
    refused: int
    seconds: float


class UnexpectedResponse(Exception):
    """The API returned a status other than 200 or 429, or closed a connection."""


class _Connection:
    def __init__(self, flood: Flood) -> None:
        self.socket = socket.create_connection(("127.0.0.1", flood.port), TIMEOUT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request, self._received = flood.request.encode(), b""

    def send(self) -> None:
        self.socket.sendall(self._request)

    def receive(self) -> bool | None:
        """Read what has arrived. Return None until the response is complete, then whether it is 200.

        Raises `UnexpectedResponse`.
        """
        data = self.socket.recv(_READ_BYTES)
        self._received += data
        head, end, body = self._received.partition(_END)
        if not data or (end and not head.startswith((_OK, _REFUSED))):
            raise UnexpectedResponse(self._received[:500].decode(errors="replace"))
        length = _LENGTH.search(head + b"\r\n")
        if not end or length is None or len(body) < int(length[1]):
            return None
        self._received = b""
        return head.startswith(_OK)


def flood_until_input(flood: Flood) -> Flooded:
    """Flood the API until standard input has another line; write a `Flooded` after the first refused request."""
    done, began, selector = Flooded(0, 0, 0.0), time.monotonic(), selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    connections = [_Connection(flood) for _ in range(flood.connections)]
    for each in connections:
        selector.register(each.socket, selectors.EVENT_READ, each)
        each.send()
    ended = False
    while not ended:
        for key, _ in selector.select(TIMEOUT_SECONDS):
            if key.data is None:
                ended = True
            elif (admitted := key.data.receive()) is not None:
                done.admitted += admitted
                done.refused += not admitted
                done.seconds = time.monotonic() - began
                if not admitted and done.refused == 1:
                    _write_answer(done)
                key.data.send()
    for each in connections:
        each.socket.close()
    return done


def main() -> None:
    while line := sys.stdin.readline():
        flooded = flood_until_input(msgspec.json.decode(line, type=Flood))
        sys.stdin.readline()
        _write_answer(flooded)


def _write_answer(answer: object) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
