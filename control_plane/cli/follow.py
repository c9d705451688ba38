"""Server-sent events, followed across lost connections (WHATWG HTML, section 9.2).

After a lost connection the stream is requested again after the last id received. The server also sends ids without an
event, if a filter skips many events. Repeated events are ignored. Nothing is stored on disk: a killed client resumes
with --after.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from httpx_sse import ServerSentEvent

from control_plane.cli.client import Client, Params
from control_plane.cli.failures import Unreachable

_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
_PROGRESS: Final = "progress"


def position_of(message: ServerSentEvent) -> int | None:
    """Return the ledger position in the id of a message, which is `<epoch>.<position>`; None without one."""
    position = message.id.rpartition(".")[2]
    return int(position) if position.isascii() and position.isdigit() else None


@dataclass
class Follower:
    """Iterator over one stream of events, filtered by `params`, which may contain the start position as `after`.

    `on_lost` and `on_back` report the state of the connection. `on_progress` gets the JSON of the progress messages
    between events.

    `retry_seconds` is the time for which a failed connection is retried, also the first one. With None, a lost
    connection is retried without a limit, but a failed first connection is reported at once.
    """

    client: Client
    path: str
    params: Params | None = None
    retry_seconds: float | None = None
    on_lost: Callable[[Unreachable], None] = lambda _: None
    on_back: Callable[[], None] = lambda: None
    on_progress: Callable[[bytes], None] = lambda _: None
    _last_id: str | None = field(default=None, init=False)
    _position: int = field(default=0, init=False)
    _pause: float = field(default=_FIRST_PAUSE, init=False)
    _lost_at: float | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the JSON of each event once, in order. Raises a `Failure`."""
        connected = False
        while True:
            try:
                with self.client.stream(self.path, self.params, self._last_id) as messages:
                    connected = True
                    self._found()
                    yield from self._news(messages)
            except Unreachable as lost:
                if not connected and self.retry_seconds is None:
                    raise
                self._lost(lost)
            time.sleep(self._pause)
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _news(self, received: Iterable[ServerSentEvent]) -> Iterator[bytes]:
        for message in received:
            position = position_of(message)
            self._last_id = message.id or self._last_id
            self._pause = _FIRST_PAUSE
            if message.event == _PROGRESS:
                self.on_progress(message.data.encode())
            elif message.data and (position is None or position > self._position):
                self._position = position or self._position
                yield message.data.encode()

    def _lost(self, lost: Unreachable) -> None:
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            self.on_lost(lost)
        elif self.retry_seconds is not None and time.monotonic() - self._lost_at > self.retry_seconds:
            raise lost

    def _found(self) -> None:
        if self._lost_at is not None:
            self._lost_at = None
            self.on_back()
