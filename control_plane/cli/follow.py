"""Server-sent events, followed over lost connections (WHATWG HTML, section 9.2).

After a break the stream is asked for again behind the last id that was told, which also comes without an event, when
a filter leaves much out; and what comes twice is passed over. Nothing is kept on disk: who is killed starts where they
say with --after.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from control_plane.cli.client import Client, Params
from control_plane.cli.failures import Unreachable

_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
_PROGRESS: Final = "progress"


class Message(NamedTuple):
    """What stands between two empty lines, if it is more than comments (heartbeats)."""

    id: str | None
    data: bytes | None
    event: str | None = None

    @property
    def position(self) -> int | None:
        """The ledger's position in an id, which is `<epoch>.<position>`."""
        _, _, position = (self.id or "").rpartition(".")
        return int(position) if position.isascii() and position.isdigit() else None


def messages(lines: Iterable[str]) -> Iterator[Message]:
    """The messages of a stream; one that is cut off is none."""
    told = event = None
    data: list[str] = []
    for line in lines:
        name, _, value = line.partition(":")
        if name == "id":
            told = value.removeprefix(" ")
        elif name == "event":
            event = value.removeprefix(" ")
        elif name == "data":
            data.append(value.removeprefix(" "))
        elif not line and (data or told is not None):
            yield Message(told, "\n".join(data).encode() if data else None, event)
            told, event, data = None, None, []


@dataclass
class Follower:
    """Follows one stream of events: those that `params` pick, from a place that they may name as `after`.

    `on_lost` and `on_back` tell the user about the connection. `on_progress` is given the JSON of what comes between
    events and is none: how far a node is.

    `patience` is how long, in seconds, a lost connection is tried again, the first included. With None that is for
    ever, but for the first: a control plane that was never there should be said at once.
    """

    client: Client
    path: str
    params: Params | None = None
    patience: float | None = None
    on_lost: Callable[[Unreachable], None] = lambda _: None
    on_back: Callable[[], None] = lambda: None
    on_progress: Callable[[bytes], None] = lambda _: None
    _last_id: str | None = field(default=None, init=False)
    _position: int = field(default=0, init=False)
    _pause: float = field(default=_FIRST_PAUSE, init=False)
    _lost_at: float | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[bytes]:
        """The JSON of each event, in order, each once. Raises a `Failure`."""
        connected = False
        while True:
            try:
                with self.client.stream(self.path, self.params, self._last_id) as lines:
                    connected = True
                    self._found()
                    yield from self._news(messages(lines))
            except Unreachable as lost:
                if not connected and self.patience is None:
                    raise
                self._lost(lost)
            time.sleep(self._pause)
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _news(self, told: Iterable[Message]) -> Iterator[bytes]:
        for message in told:
            position = message.position
            self._last_id = message.id if message.id is not None else self._last_id
            self._pause = _FIRST_PAUSE
            if message.event == _PROGRESS:
                self.on_progress(message.data or b"")
            elif message.data is not None and (position is None or position > self._position):
                self._position = position or self._position
                yield message.data

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
