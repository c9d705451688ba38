"""Probes of all slices of a node, sent by one thread; `node_agent.host.reachability` evaluates the answers.

A slice is probed between the calls of `Prober.watch` and `Prober.leave`. After `leave` has returned, no further probe
is sent to the slice, so that a release of the slice finds no tracked connection of a probe.

A probe that cannot be sent counts as unanswered, with the reason. If the host's routes and neighbours cannot be read
over netlink, the slice's last result stays valid.
"""

import errno
import secrets
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final

import structlog

from events.values import SlotIndex
from node_agent.aspects.gateway import NodeNetwork
from node_agent.drivers.network.neighbours import check_neighbour, view_of
from node_agent.drivers.network.segments import Segment
from node_agent.drivers.probes.probe_wires import GatewayWire, UplinkWire, Wire
from node_agent.host.reachability import Findings, HostView, Key, PathProbes, SliceProbes, paths_of
from node_agent.host.slices import Slice, SliceNetwork

log = structlog.get_logger(__name__)

_REOPEN_SECONDS: Final = 1.0
_BROKEN: Final = {errno.EBADF, errno.EBADFD, errno.EIO, errno.ENODEV}
"""Error numbers which show that the device of the probes was deleted or set down. Any other error concerns a single
probe."""
_CHUNK: Final = 4096


class _Transport:
    """A probe transport that is opened on demand, and reopened one second after a failure."""

    def __init__(self, name: str, open_: Callable[[], Wire], selector: selectors.BaseSelector) -> None:
        self.name = name
        self._open, self._selector = open_, selector
        self.wire: Wire | None = None
        self._failed_at = -_REOPEN_SECONDS

    def opened(self, now: float) -> Wire:
        """Return the open socket or device of the probes, opening it if needed. Raises `OSError`."""
        if self.wire is None:
            if now < self._failed_at + _REOPEN_SECONDS:
                raise OSError(
                    f"probe transport {self.name} could not be opened; next attempt within {_REOPEN_SECONDS:g} s"
                )
            self._failed_at = now
            self.wire = self._open()
            self._selector.register(self.wire, selectors.EVENT_READ, self)
        return self.wire

    def close(self) -> None:
        if self.wire is not None:
            self._selector.unregister(self.wire)
            self.wire.close()
            self.wire = None


class Prober:
    """Probes all slices of a node over TCP; implements `node_agent.host.host.Reachability`.

    `changed` is called when the reachability of a slice changed; it must return at once.
    """

    def __init__(self, network: NodeNetwork, changed: Callable[[], None]) -> None:
        self._network, self._changed = network, changed
        self._lock = threading.Lock()
        self._slices: dict[SlotIndex, SliceProbes] = {}
        self._hurry_requested = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.settimeout(0)
        self._wake_sender.settimeout(0)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        self._gateway = _Transport(
            "gateway", lambda: GatewayWire(network.gateway, network.bridge), self._selector
        )
        self._uplink = _Transport("uplink", UplinkWire, self._selector)
        self._thread: threading.Thread | None = None
        self._closing = False

    def watch(self, wanted: Slice, port: int) -> None:
        with self._lock:
            paths, slot, now = paths_of(wanted, port), wanted.network.index, monotonic()
            if slot in self._slices and self._slices[slot].network == wanted.network:
                self._slices[slot].update(paths, now)
            else:
                self._slices[slot] = SliceProbes(paths, now)
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="slice-probes", daemon=True)
                self._thread.start()
        self._wake()

    def leave(self, slot: SlotIndex) -> None:
        with self._lock:
            self._slices.pop(slot, None)
            # Closed at once, because a release checks for leftovers next.
            self._close_unused()

    def findings(self, wanted: Slice, port: int) -> Findings:
        # Read without the lock, so that a survey never waits for a probe. Findings are replaced, never modified.
        known = self._slices.get(wanted.network.index)
        return known.findings if known is not None and known.network == wanted.network else {}

    def hurry(self) -> None:
        """Probe all slices at once, because the host may have changed."""
        self._hurry_requested.set()
        self._wake()

    def close(self) -> None:
        self._closing = True
        self._wake()
        if self._thread is not None:
            self._thread.join()

    def _wake(self) -> None:
        # If the buffer is full, a wake-up is already pending.
        with suppress(BlockingIOError):
            self._wake_sender.send(b"!")

    def _run(self) -> None:
        try:
            while not self._closing:
                with self._lock:
                    has_changed = self._round(monotonic())
                    wait = self._until_next(monotonic())
                if has_changed:
                    self._changed()
                for key, _ in self._selector.select(wait):
                    if key.data is None:
                        _drain(self._wake_receiver)
                    else:
                        self._receive(key.data)
        finally:
            with self._lock:
                for transport in (self._gateway, self._uplink):
                    transport.close()
                self._selector.close()

    def _until_next(self, now: float) -> float | None:
        due_times = [course.due for each in self._slices.values() for course in each.all]
        return max(0.0, min(due_times) - now) if due_times else None

    def _round(self, now: float) -> bool:
        """Send due probes and evaluate all probed paths; return whether the reachability of a slice changed."""
        if self._hurry_requested.is_set():
            self._hurry_requested.clear()
            for each in self._slices.values():
                each.hurry(now)
        for each in self._slices.values():
            each.compare_hops(now)
            for course in each.all:
                if course.due <= now:
                    self._send(course, now)
        self._close_unused()
        return sum(self._evaluate(each, now) for each in self._slices.values()) > 0

    def _close_unused(self) -> None:
        if not any(each.ingresses for each in self._slices.values()):
            self._uplink.close()
        if not self._slices:
            self._gateway.close()

    def _send(self, course: PathProbes, now: float) -> None:
        before = course.sequence
        course.send(now, secrets.randbits(32))
        transport = self._transport_of(course)
        try:
            wire = transport.opened(now)
            if course.tries > 1:
                # A tracked connection keeps its translation for minutes. Deleting it makes the kernel apply the current
                # rules to the next probe.
                wire.forget(course.path, before, opened=False)
            wire.send(course.path, course.sequence)
            course.unsent = ""
        except OSError as error:
            course.unsent = error.strerror or str(error)
            log.debug("reachability_probe_not_sent", slot=course.path.network.index, reason=course.unsent)
            if error.errno in _BROKEN:
                transport.close()

    def _transport_of(self, course: PathProbes) -> _Transport:
        return self._gateway if course.path.public is None else self._uplink

    def _receive(self, transport: _Transport) -> None:
        with self._lock:
            if transport.wire is None:
                return
            try:
                for segment, link in transport.wire.received():
                    self._match_answer(transport, transport.wire, segment, link)
            except OSError as error:
                log.info("reachability_probe_transport_failed", transport=transport.name, reason=str(error))
                transport.close()

    def _match_answer(self, transport: _Transport, wire: Wire, segment: Segment, link: str) -> None:
        for each, course in self._awaiting(transport):
            if segment.source != course.path.destination or not segment.answers(course.sequence):
                continue
            course.misled = wire.misled(course.path, course.sequence, link)
            if not course.misled:
                each.answer(course, monotonic(), refused=segment.refuses)
            wire.forget(course.path, course.sequence, opened=segment.opens)

    def _awaiting(self, transport: _Transport) -> tuple[tuple[SliceProbes, PathProbes], ...]:
        courses = ((each, course) for each in self._slices.values() for course in each.all)
        return tuple(
            (each, course)
            for each, course in courses
            if course.requested_at is not None and self._transport_of(course) is transport
        )

    def _evaluate(self, each: SliceProbes, now: float) -> bool:
        own = each.gateway
        try:
            if each.is_open(now) and own.tries > 1:
                check_neighbour(each.network.ip, each.network.mac, each.network.bridge)
            found = each.judged(now, lambda: _view(each.network))
        except OSError as error:
            log.info("reachability_probe_evaluation_failed", slot=each.network.index, reason=str(error))
            return False
        if _compared_parts(found) == _compared_parts(each.findings):
            return False
        each.findings = found
        wrong = [difference.observed for difference in found.values() if difference is not None]
        log.info("slice_reachability_changed", slot=each.network.index, failures=wrong)
        return True


def _view(network: SliceNetwork) -> HostView:
    return view_of(network.ip, network.gateway, network.bridge)


def _compared_parts(findings: Findings) -> dict[Key, str | None]:
    """Return the part of each path's result that is compared with the path's previous result: all except the time
    without an answer.
    """
    return {key: each.desired if each is not None else None for key, each in findings.items()}


def _drain(receiver: socket.socket) -> None:
    with suppress(BlockingIOError):
        while receiver.recv(_CHUNK):
            pass
