"""libvirt's event loop, and a watch for domains that end, pause or start, or that change while they run.

The loop answers libvirtd's keepalives for every connection of the process; without it libvirtd closes idle connections.
There is one loop per process. It starts at first use and cannot be stopped.

Events are hints and are lost while there is no connection, so a new connection also counts as an event. Only a survey
detects every change.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any, Final

import libvirt
import structlog

log = structlog.get_logger(__name__)

# libvirt-python has no type annotations.
Connection = Any
Domain = Any

_KEEPALIVE_SECONDS: Final = 5
_KEEPALIVE_MISSES: Final = 2
_RECONNECT_SECONDS: Final = 1.0
_LIFECYCLE: Final = libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE
_CHANGES: Final = {
    libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED: "device_added",
    libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED: "device_removed",
    libvirt.VIR_DOMAIN_EVENT_ID_TUNABLE: "tuned",
    libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE: "metadata_changed",
}
"""Names of libvirt's events about changes of a running domain. libvirt sends no event when the link of a network card
is set down; only a survey detects that."""
_ENDS: Final[dict[int, str]] = {
    libvirt.VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN: "the guest shut itself down",
    libvirt.VIR_DOMAIN_EVENT_STOPPED_DESTROYED: "it was destroyed",
    libvirt.VIR_DOMAIN_EVENT_STOPPED_CRASHED: "the guest crashed",
    libvirt.VIR_DOMAIN_EVENT_STOPPED_FAILED: "qemu ended",
}


class DomainWatch:
    """A watch that calls `changed` whenever the state of a libvirt domain may have changed.

    `changed` must return at once.
    """

    def __init__(self, uri: str, changed: Callable[[], None]) -> None:
        self._uri, self._changed = uri, changed
        self._stopped, self._lost = threading.Event(), threading.Event()
        threading.Thread(target=self._watch, name="domain-watch", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._lost.set()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            with suppress(libvirt.libvirtError), ExitStack() as ends:
                self._watch_once(ends)
            self._stopped.wait(_RECONNECT_SECONDS)

    def _watch_once(self, ends: ExitStack) -> None:
        # The callbacks and the connection reference each other, so they must be removed explicitly. Each removal runs
        # even if another one fails, as it does on a connection that the server has closed.
        self._lost.clear()
        connection = libvirt.open(self._uri)
        ends.callback(connection.close)
        for event, callback in (
            (_LIFECYCLE, self._on_event),
            *((each, self._on_change) for each in _CHANGES),
        ):
            watch = connection.domainEventRegisterAny(None, event, callback, _CHANGES.get(event))
            ends.callback(connection.domainEventDeregisterAny, watch)
        connection.registerCloseCallback(lambda *_: self._lost.set(), None)
        ends.callback(connection.unregisterCloseCallback)
        # Must come last: from here on the loop may close the connection, which must not happen during a call on it.
        connection.setKeepAlive(_KEEPALIVE_SECONDS, _KEEPALIVE_MISSES)
        ends.callback(connection.setKeepAlive, 0, 0)
        log.info("libvirt_event_watch_started", uri=self._uri)
        if not self._stopped.is_set():
            self._changed()
            self._lost.wait()

    def _on_event(self, _: Connection, domain: Domain, event: int, detail: int, __: None) -> None:
        if event == libvirt.VIR_DOMAIN_EVENT_STOPPED:
            log.info(
                "libvirt_domain_ended",
                domain=domain.name(),
                reason=_ENDS.get(detail, f"libvirt detail code {detail}"),
            )
        self._changed()

    def _on_change(self, _: Connection, domain: Domain, *details: Any) -> None:
        log.info("libvirt_domain_changed", domain=domain.name(), change=details[-1])
        self._changed()


@cache
def run_event_loop() -> None:
    """Start libvirt's event loop; a repeated call does nothing.

    The first call must precede the first connection, and two threads must not call this function at the same time.
    """
    # By default libvirt also prints every error to stderr, although it raises the error as an exception.
    libvirt.registerErrorHandler(lambda *_: None, None)
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=_events, name="libvirt-events", daemon=True).start()


def _events() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()
