"""Who tells at once that something on the host may have changed: the kernel and the daemons, heard by one thread.

Nothing that they say is read: it is a hint that a look is worth while, and the look reads the host afresh. A hint too
many costs a look, and one that was lost the wait until the next survey. A source that ends is opened again, and that
counts as a hint, since nobody knows what it would have said meanwhile; one that cannot be opened, or ends at once, is
tried again once a second.
"""

import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final, Protocol

import structlog

log = structlog.get_logger(__name__)

_AGAIN_SECONDS: Final = 1.0


class Listening(Protocol):
    """A source that is open."""

    def fileno(self) -> int: ...

    def drain(self) -> bool:
        """Take what has come, without waiting; False when it has ended. Raises `OSError`."""
        ...

    def close(self) -> None: ...


Source = Callable[[], Listening]
"""Opens it, and does not wait long. Raises `OSError`."""


class HostWatch:
    """Calls `changed`, which must return at once, when a source says something, ends, or is open again."""

    def __init__(self, sources: Mapping[str, Source], changed: Callable[[], None]) -> None:
        self._sources, self._changed = sources, changed
        self._opened: dict[str, Listening] = {}
        self._tried: dict[str, float] = {}
        self._stopping, self._stop = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stopping, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._watch, name="host-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when nothing is heard any more."""
        self._stop.close()
        self._thread.join()

    def _watch(self) -> None:
        try:
            while self._listen():
                pass
        finally:
            for listening in self._opened.values():
                listening.close()
            self._selector.close()
            self._stopping.close()

    def _listen(self) -> bool:
        """Open what is closed and hear what there is; False when it is to stop."""
        self._open()
        closed = self._sources.keys() - self._opened.keys()
        patience = min((self._tried[name] + _AGAIN_SECONDS - monotonic() for name in closed), default=None)
        for key, _ in self._selector.select(None if patience is None else max(0.0, patience)):
            if key.data is None:
                return False
            self._hear(key.data)
        return True

    def _open(self) -> None:
        for name in self._sources.keys() - self._opened.keys():
            if monotonic() < self._tried.get(name, 0.0) + _AGAIN_SECONDS:
                continue
            self._tried[name] = monotonic()
            try:
                listening = self._sources[name]()
            except OSError as why:
                log.debug("source_not_there", source=name, reason=str(why))
                continue
            self._opened[name] = listening
            self._selector.register(listening, selectors.EVENT_READ, name)
            self._changed()

    def _hear(self, name: str) -> None:
        listening = self._opened[name]
        try:
            goes_on = listening.drain()
        except OSError:
            goes_on = False
        if not goes_on:
            log.info("source_ended", source=name)
            self._selector.unregister(listening)
            listening.close()
            del self._opened[name]
        self._changed()
