"""Probes of all slices of a node, sent by one thread; `node_agent.reaching` evaluates the answers.

A slice is probed from `watch` to `leave`, both of which are called by the owner of the slot's work. After `leave` has
returned nothing more is sent to it, so that a release finds no tracked connection of a probe.

A probe that cannot be sent counts as unanswered, with the reason. A failed read (netlink) keeps the last finding.
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
from node_agent.drivers.neighbours import check_neighbour, view_of
from node_agent.drivers.probe_wires import GatewayWire, UplinkWire, Wire
from node_agent.drivers.segments import Segment
from node_agent.gateway import NodeNetwork
from node_agent.reaching import Course, Findings, HostView, Key, SliceCourses, paths_of
from node_agent.slices import Slice, SliceNetwork

log = structlog.get_logger(__name__)

_REOPEN_SECONDS: Final = 1.0
_BROKEN: Final = {errno.EBADF, errno.EBADFD, errno.EIO, errno.ENODEV}
"""Errors of a device that was deleted or set down; any other error concerns the probe."""
_CHUNK: Final = 4096


class _Way:
    """A wire that is opened when it is needed, and again a second after it failed."""

    def __init__(self, name: str, open_: Callable[[], Wire], selector: selectors.BaseSelector) -> None:
        self.name = name
        self._open, self._selector = open_, selector
        self.wire: Wire | None = None
        self._failed_at = -_REOPEN_SECONDS

    def opened(self, now: float) -> Wire:
        """Raises `OSError`."""
        if self.wire is None:
            if now < self._failed_at + _REOPEN_SECONDS:
                raise OSError(f"{self.name} could not be opened")
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
    """`node_agent.host.Reachability`. `changed` is called when a finding changed, and must return at once."""

    def __init__(self, network: NodeNetwork, changed: Callable[[], None]) -> None:
        self._network, self._changed = network, changed
        self._turn = threading.Lock()
        self._slices: dict[SlotIndex, SliceCourses] = {}
        self._hurried = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._bell, self._rope = socket.socketpair()
        self._bell.settimeout(0)
        self._rope.settimeout(0)
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        self._gateway = _Way("gateway", lambda: GatewayWire(network.gateway, network.bridge), self._selector)
        self._uplink = _Way("uplink", UplinkWire, self._selector)
        self._thread: threading.Thread | None = None
        self._closing = False

    def watch(self, wanted: Slice, port: int) -> None:
        with self._turn:
            paths, slot, now = paths_of(wanted, port), wanted.network.index, monotonic()
            if slot in self._slices and self._slices[slot].network == wanted.network:
                self._slices[slot].update(paths, now)
            else:
                self._slices[slot] = SliceCourses(paths, now)
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="slice-probes", daemon=True)
                self._thread.start()
        self._ring()

    def leave(self, slot: SlotIndex) -> None:
        with self._turn:
            self._slices.pop(slot, None)
            # At once: a release looks for what is left.
            self._close_unused()

    def findings(self, wanted: Slice, port: int) -> Findings:
        # Without the lock, so that no survey waits for a probe: findings are replaced and never changed.
        known = self._slices.get(wanted.network.index)
        return known.findings if known is not None and known.network == wanted.network else {}

    def hurry(self) -> None:
        """Probe at once, because something on the host may have changed."""
        self._hurried.set()
        self._ring()

    def close(self) -> None:
        self._closing = True
        self._ring()
        if self._thread is not None:
            self._thread.join()

    def _ring(self) -> None:
        # Full, it rings already.
        with suppress(BlockingIOError):
            self._rope.send(b"!")

    def _run(self) -> None:
        try:
            while not self._closing:
                with self._turn:
                    has_news = self._round(monotonic())
                    wait = self._until_next(monotonic())
                if has_news:
                    self._changed()
                for key, _ in self._selector.select(wait):
                    if key.data is None:
                        _drain(self._bell)
                    else:
                        self._receive(key.data)
        finally:
            with self._turn:
                for way in (self._gateway, self._uplink):
                    way.close()
                self._selector.close()

    def _until_next(self, now: float) -> float | None:
        moments = [course.due for each in self._slices.values() for course in each.all]
        return max(0.0, min(moments) - now) if moments else None

    def _round(self, now: float) -> bool:
        """Send due probes and evaluate all paths; return whether a finding changed."""
        if self._hurried.is_set():
            self._hurried.clear()
            for each in self._slices.values():
                each.hurry(now)
        for each in self._slices.values():
            each.compare_hops(now)
            for course in each.all:
                if course.due <= now:
                    self._send(course, now)
        self._close_unused()
        return sum(self._judge(each, now) for each in self._slices.values()) > 0

    def _close_unused(self) -> None:
        if not any(each.ingresses for each in self._slices.values()):
            self._uplink.close()
        if not self._slices:
            self._gateway.close()

    def _send(self, course: Course, now: float) -> None:
        before = course.sequence
        course.send(now, secrets.randbits(32))
        way = self._way_of(course)
        try:
            wire = way.opened(now)
            if course.tries > 1:
                # Where the host sends it is decided again: what the kernel tracks keeps an old translation for minutes.
                wire.forget(course.path, before, opened=False)
            wire.send(course.path, course.sequence)
            course.unsent = ""
        except OSError as error:
            course.unsent = error.strerror or str(error)
            log.debug("probe_not_sent", slot=course.path.network.index, reason=course.unsent)
            if error.errno in _BROKEN:
                way.close()

    def _way_of(self, course: Course) -> _Way:
        return self._gateway if course.path.public is None else self._uplink

    def _receive(self, way: _Way) -> None:
        with self._turn:
            if way.wire is None:
                return
            try:
                for segment, link in way.wire.received():
                    self._take(way, way.wire, segment, link)
            except OSError as error:
                log.info("probe_wire_failed", wire=way.name, reason=str(error))
                way.close()

    def _take(self, way: _Way, wire: Wire, segment: Segment, link: str) -> None:
        for each, course in self._awaiting(way):
            if segment.source != course.path.destination or not segment.answers(course.sequence):
                continue
            course.misled = wire.misled(course.path, course.sequence, link)
            if not course.misled:
                each.answer(course, monotonic(), refused=segment.refuses)
            wire.forget(course.path, course.sequence, opened=segment.opens)

    def _awaiting(self, way: _Way) -> tuple[tuple[SliceCourses, Course], ...]:
        courses = ((each, course) for each in self._slices.values() for course in each.all)
        return tuple(
            (each, course)
            for each, course in courses
            if course.asked_at is not None and self._way_of(course) is way
        )

    def _judge(self, each: SliceCourses, now: float) -> bool:
        own = each.gateway
        try:
            if each.is_open(now) and own.tries > 1:
                check_neighbour(each.network.ip, each.network.mac, each.network.bridge)
            found = each.judged(now, lambda: _view(each.network))
        except OSError as error:
            log.info("probe_not_judged", slot=each.network.index, reason=str(error))
            return False
        if _wanted(found) == _wanted(each.findings):
            return False
        each.findings = found
        wrong = [difference.found for difference in found.values() if difference is not None]
        log.info("reachability_changed", slot=each.network.index, found=wrong)
        return True


def _view(network: SliceNetwork) -> HostView:
    return view_of(network.ip, network.gateway, network.bridge)


def _wanted(findings: Findings) -> dict[Key, str | None]:
    """Return what distinguishes two findings, which the duration of a silence does not."""
    return {key: each.wanted if each is not None else None for key, each in findings.items()}


def _drain(bell: socket.socket) -> None:
    with suppress(BlockingIOError):
        while bell.recv(_CHUNK):
            pass
