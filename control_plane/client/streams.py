"""Server-sent events (WHATWG HTML, section 9.2), followed across lost connections. Pure: the clients read and sleep.

After a lost connection the stream is requested again after the last id received. If a filter skips many events, the
server also sends ids without an event. Events that were received before are ignored. Nothing is stored on disk: a new
process resumes with the parameter `after`.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from control_plane.client.errors import SliceplaneError, TimedOut, is_temporary

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
QUIET_SECONDS: Final = 60.0
"""Longest time between two reads of a stream. The server's heartbeats are more frequent, so that a timeout means a dead
connection.
"""
SHORTEST_READ: Final = 0.5
HEADERS: Final = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
_PROGRESS: Final = b"progress"
# A carriage return at the end of what has arrived may be the first half of a line end.
_LINE_END: Final = re.compile(rb"\r\n|\n|\r(?!\Z)")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream. `id` is the last id of the stream; `data` is empty if the message is only an id."""

    event: bytes
    data: bytes
    id: str

    @property
    def position(self) -> int | None:
        """Ledger position in the id, which is `<epoch>.<position>`; None without one."""
        position = self.id.rpartition(".")[2]
        return int(position) if position.isascii() and position.isdigit() else None


class Messages:
    """Decoder of a stream of server-sent events, which arrives in chunks of any size."""

    def __init__(self) -> None:
        self._rest = b""
        self._id, self._has_id = "", False
        self._event = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """Yield the messages that the chunk completes."""
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        for line in lines:
            if line:
                self._field(line)
            else:
                yield from self._message()

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"id" if b"\0" not in value:
                self._id, self._has_id = value.decode(errors="replace"), True
            case b"event":
                self._event = value
            case b"data":
                self._data.append(value)
            case _:  # comments (an empty name) and fields of later versions
                pass

    def _message(self) -> Iterator[Message]:
        if self._data or self._has_id:
            yield Message(self._event, b"\n".join(self._data), self._id)
        self._event, self._data, self._has_id = b"", [], False


@dataclass
class Following:
    """The state of following one stream. Times are seconds of a monotonic clock.

    `retry_seconds` is the time for which a failed connection is retried, also the first one. With None, a lost
    connection is retried without a limit, but a failed first connection is raised at once. `deadline` is when following
    ends with `TimedOut`.

    `on_lost` and `on_back` report the state of the connection. `on_progress` gets the JSON of the progress messages
    between events.
    """

    retry_seconds: float | None = None
    deadline: float | None = None
    on_lost: Callable[[SliceplaneError], None] = lambda _: None
    on_back: Callable[[], None] = lambda: None
    on_progress: Callable[[bytes], None] = lambda _: None
    _last_id: str | None = field(default=None, init=False)
    _position: int = field(default=0, init=False)
    _pause: float = field(default=FIRST_PAUSE, init=False)
    _lost_at: float | None = field(default=None, init=False)
    _connected: bool = field(default=False, init=False)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the next request for the stream, with the last id received."""
        return HEADERS if self._last_id is None else {**HEADERS, "Last-Event-ID": self._last_id}

    def found(self) -> None:
        """Record that the stream is connected."""
        self._connected = True
        if self._lost_at is not None:
            self._lost_at = None
            self.on_back()

    def lost(self, lost: SliceplaneError, now: float) -> None:
        """Record that the connection failed. Raises the error if the connection is not to be retried."""
        if not is_temporary(lost) or (not self._connected and self.retry_seconds is None):
            raise lost
        if self._lost_at is None:
            self._lost_at = now
            self.on_lost(lost)
        elif self.retry_seconds is not None and now - self._lost_at > self.retry_seconds:
            raise lost

    def take(self, message: Message) -> bytes | None:
        """Return the JSON of an event that was not received before; None for all other messages."""
        self._last_id = message.id or self._last_id
        self._pause = FIRST_PAUSE
        position = message.position
        if message.event == _PROGRESS:
            self.on_progress(message.data)
        elif message.data and (position is None or position > self._position):
            self._position = position or self._position
            return message.data
        return None

    def pause(self, now: float) -> float:
        """Return the seconds to wait before the next connection: longer each time, until a message arrives."""
        pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE)
        return min(pause, max(0.0, self.left(now)))

    def left(self, now: float) -> float:
        """Return the seconds until the deadline. Raises `TimedOut` after it."""
        if self.deadline is None:
            return float("inf")
        if now >= self.deadline:
            raise TimedOut("the deadline for reading the event stream has passed")
        return self.deadline - now

    def read_seconds(self, now: float) -> float:
        """Return how long a read of the next connection may block.

        A blocking read cannot be shortened. With half of the time that is left, a reader reconnects a few times before
        the deadline, and is late by `SHORTEST_READ` at most.
        """
        return min(QUIET_SECONDS, max(SHORTEST_READ, self.left(now) / 2))
