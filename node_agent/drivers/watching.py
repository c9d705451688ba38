"""A watch for changes of the host: one thread receives events of the kernel and of Open vSwitch.

The content of the events is not read: an event is only a hint that a survey should read the host. A superfluous event
costs one survey, and a lost event delays the reaction until the next periodic survey. A source that ends is opened
again, which also counts as an event, because events may have been lost meanwhile. A source that cannot be opened, or
that ends immediately, is opened again once per second.
"""

import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final, Protocol

import structlog

log = structlog.get_logger(__name__)

_REOPEN_SECONDS: Final = 1.0


class OpenSource(Protocol):
    """An open source of events about changes of the host."""

    def fileno(self) -> int: ...

    def drain(self) -> bool:
        """Discard the received events without waiting; return False if the event source has ended. Raises `OSError`."""
        ...

    def close(self) -> None: ...


Source = Callable[[], OpenSource]
"""A function that opens an event source and returns at once. Raises `OSError`."""


class HostWatch:
    """A watch for changes of the host: it calls `changed` when an event source reports an event, ends, or is opened.

    `changed` must return at once.
    """

    def __init__(self, sources: Mapping[str, Source], changed: Callable[[], None]) -> None:
        self._sources, self._changed = sources, changed
        self._opened: dict[str, OpenSource] = {}
        self._tried: dict[str, float] = {}
        self._stopping, self._stop = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stopping, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._watch, name="host-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread of the watch; after the return, `changed` is not called again."""
        self._stop.close()
        self._thread.join()

    def _watch(self) -> None:
        try:
            while self._poll():
                pass
        finally:
            for source in self._opened.values():
                source.close()
            self._selector.close()
            self._stopping.close()

    def _poll(self) -> bool:
        """Open closed event sources and handle pending events; return False if the watch must stop."""
        self._open()
        closed = self._sources.keys() - self._opened.keys()
        timeout = min((self._tried[name] + _REOPEN_SECONDS - monotonic() for name in closed), default=None)
        for key, _ in self._selector.select(None if timeout is None else max(0.0, timeout)):
            if key.data is None:
                return False
            self._handle(key.data)
        return True

    def _open(self) -> None:
        for name in self._sources.keys() - self._opened.keys():
            if monotonic() < self._tried.get(name, 0.0) + _REOPEN_SECONDS:
                continue
            self._tried[name] = monotonic()
            try:
                source = self._sources[name]()
            except OSError as error:
                log.debug("host_event_source_open_failed", source=name, reason=str(error))
                continue
            self._opened[name] = source
            self._selector.register(source, selectors.EVENT_READ, name)
            self._changed()

    def _handle(self, name: str) -> None:
        source = self._opened[name]
        try:
            is_open = source.drain()
        except OSError:
            is_open = False
        if not is_open:
            log.info("host_event_source_ended", source=name)
            self._selector.unregister(source)
            source.close()
            del self._opened[name]
        self._changed()
