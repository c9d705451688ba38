"""libvirt's event loop, and a watch for domains that end, pause or come up, or are changed while they run.

The loop answers libvirtd's keepalives for every connection of the process; without it libvirtd hangs up on an
idle one. There is one loop per process, and no way to stop it: it starts at first use and stays.

Events are a hint and are lost while there is no connection, so a new connection counts as an event too. The survey is
what finds everything.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any, Final

import libvirt
import structlog

log = structlog.get_logger(__name__)

# libvirt-python carries no types.
Connection = Any
Domain = Any

_KEEPALIVE_SECONDS: Final = 5
_KEEPALIVE_MISSES: Final = 2
_AGAIN_SECONDS: Final = 1.0
_LIFECYCLE: Final = libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE
_CHANGES: Final = {
    libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED: "device_added",
    libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED: "device_removed",
    libvirt.VIR_DOMAIN_EVENT_ID_TUNABLE: "tuned",
    libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE: "marked",
}
"""Of a domain that runs, besides. libvirt tells of no link that is cut: the survey finds that."""
_ENDS: Final[dict[int, str]] = {
    libvirt.VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN: "the guest shut itself down",
    libvirt.VIR_DOMAIN_EVENT_STOPPED_DESTROYED: "it was destroyed",
    libvirt.VIR_DOMAIN_EVENT_STOPPED_CRASHED: "the guest crashed",
    libvirt.VIR_DOMAIN_EVENT_STOPPED_FAILED: "qemu ended",
}


class DomainWatch:
    """Calls `changed`, which must return at once, when a domain may be in another state, ordered or not."""

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
            self._stopped.wait(_AGAIN_SECONDS)

    def _watch_once(self, ends: ExitStack) -> None:
        # The callbacks hold the connection, and the connection the callbacks: nothing else would ever free them. Each
        # is undone even where another could not be, as on a connection whose other end is gone.
        self._lost.clear()
        connection = libvirt.open(self._uri)
        ends.callback(connection.close)
        for event, heard in ((_LIFECYCLE, self._on_event), *((each, self._on_change) for each in _CHANGES)):
            watch = connection.domainEventRegisterAny(None, event, heard, _CHANGES.get(event))
            ends.callback(connection.domainEventDeregisterAny, watch)
        connection.registerCloseCallback(lambda *_: self._lost.set(), None)
        ends.callback(connection.unregisterCloseCallback)
        # Last, because from here on the loop may close the connection, which must not meet a call on it.
        connection.setKeepAlive(_KEEPALIVE_SECONDS, _KEEPALIVE_MISSES)
        ends.callback(connection.setKeepAlive, 0, 0)
        log.info("libvirt_watched", uri=self._uri)
        if not self._stopped.is_set():
            self._changed()
            self._lost.wait()

    def _on_event(self, _: Connection, domain: Domain, event: int, detail: int, __: None) -> None:
        if event == libvirt.VIR_DOMAIN_EVENT_STOPPED:
            log.info(
                "domain_ended", domain=domain.name(), why=_ENDS.get(detail, f"libvirt's reason {detail}")
            )
        self._changed()

    def _on_change(self, _: Connection, domain: Domain, *told: Any) -> None:
        log.info("domain_changed", domain=domain.name(), what=told[-1])
        self._changed()


@cache
def run_event_loop() -> None:
    """Have the loop running; comes before the first connection, and not from two threads at once."""
    # By default libvirt prints every error to stderr, though each is raised as well.
    libvirt.registerErrorHandler(lambda *_: None, None)
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=_events, name="libvirt-events", daemon=True).start()


def _events() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()
