"""Server-sent events, followed over lost connections (WHATWG HTML, section 9.2).

Every event's id is its position, so after a break the stream is asked for again from behind the last one seen,
and what comes twice is passed over. Nothing is kept on disk: who is killed starts where they say with --after.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from control_plane.cli.client import Client
from control_plane.cli.failures import Unreachable

_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0


class _Position(msgspec.Struct):
    position: int


def payloads(lines: Iterable[str]) -> Iterator[bytes]:
    """The data of each message; comments (heartbeats) and messages without data are passed over."""
    data: list[str] = []
    for line in lines:
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
        elif not line and data:
            yield "\n".join(data).encode()
            data = []


@dataclass
class Follower:
    """Follows one stream of events. `on_lost` and `on_back` tell the user about the connection.

    `patience` is how long, in seconds, a lost connection is tried again, the first included. With None that is for
    ever, but for the first: a control plane that was never there should be said at once.
    """

    client: Client
    path: str
    after: int | None = None
    patience: float | None = None
    on_lost: Callable[[Unreachable], None] = lambda _: None
    on_back: Callable[[], None] = lambda: None
    _pause: float = field(default=_FIRST_PAUSE, init=False)
    _lost_at: float | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[bytes]:
        """The JSON of each event, in order, each once. Raises a `Failure`."""
        connected = False
        while True:
            try:
                with self.client.stream(self.path, self.after) as lines:
                    connected = True
                    self._found()
                    yield from self._news(payloads(lines))
            except Unreachable as lost:
                if not connected and self.patience is None:
                    raise
                self._lost(lost)
            time.sleep(self._pause)
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _news(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        for message in messages:
            position = msgspec.json.decode(message, type=_Position).position
            if self.after is None or position > self.after:
                self.after = position
                self._pause = _FIRST_PAUSE
                yield message

    def _lost(self, lost: Unreachable) -> None:
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            self.on_lost(lost)
        elif self.patience is not None and time.monotonic() - self._lost_at > self.patience:
            raise lost

    def _found(self) -> None:
        if self._lost_at is not None:
            self._lost_at = None
            self.on_back()
