"""How far the work on a task is, told while it goes on: best effort, and never at the work's expense.

Whoever works on a task does so `telling` somebody; below it, every step names itself, as deep as it is called. What
is told is kept only until it is sent: the newest of each task, a moment later, five times a second at most, in one
request. What could not be sent is forgotten, because a newer one follows or the report of the end does; and so is what
was not sent when the work ended: of work that takes a moment, only the end is told.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

import structlog

from node_agent.client import ControlPlane, ControlPlaneAway, TurnedAway
from node_agent.clock import NodeClock
from tasks.agent_api import Progress, ProgressBatch
from tasks.timetable import Entry, Timetable

log = structlog.get_logger(__name__)

_PAUSE_SECONDS: Final = 0.2
_MOST: Final = 256


class Listener(Protocol):
    """Hears of work under way, from any thread."""

    def tell(self, task_id: UUID, step: str, number: int, of: int | None) -> None:
        """A step begins: its number, of how many."""
        ...

    def ended(self, task_id: UUID) -> None:
        """The work on the task is over, for now at least."""
        ...


class Nobody:
    """Listens to nothing."""

    def tell(self, task_id: UUID, step: str, number: int, of: int | None) -> None:
        pass

    def ended(self, task_id: UUID) -> None:
        pass


NOBODY: Final = Nobody()


@dataclass(slots=True)
class _Track:
    task_id: UUID
    listener: Listener
    number: int = 0
    of: int | None = None


_track: Final[ContextVar[_Track | None]] = ContextVar("track", default=None)


@contextmanager
def telling(listener: Listener, task_id: UUID) -> Iterator[None]:
    """While this lasts, the steps that this thread takes are steps of this task."""
    token = _track.set(_Track(task_id, listener))
    try:
        yield
    finally:
        _track.reset(token)
        listener.ended(task_id)


def expect_steps(count: int) -> None:
    """So many more are planned."""
    if (track := _track.get()) is not None:
        track.of = track.number + count


def tell_step(name: str) -> None:
    """A step begins."""
    if (track := _track.get()) is not None:
        track.number += 1
        # A plan made anew on the way may have grown past what was expected.
        of = None if track.of is None else max(track.of, track.number)
        track.listener.tell(track.task_id, name, track.number, of)


def tell_wait(name: str) -> None:
    """From now on something is waited for that cannot be counted."""
    if (track := _track.get()) is not None:
        track.of = None
    tell_step(name)


class ProgressSender:
    """A listener that tells the control plane; `start` it once."""

    def __init__(self, clock: NodeClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: dict[UUID, Progress] = {}
        self._entry: Entry | None = None

    def tell(self, task_id: UUID, step: str, number: int, of: int | None) -> None:
        progress = Progress(order_id=task_id, step=step, number=number, of=of, at=self._clock.now())
        with self._lock:
            self._newest[task_id] = progress
        if self._entry is not None:
            self._entry.wake(within=_PAUSE_SECONDS)

    def ended(self, task_id: UUID) -> None:
        with self._lock:
            self._newest.pop(task_id, None)

    def start(self, control_plane: ControlPlane, timetable: Timetable) -> None:
        self._entry = timetable.enter(lambda: self._send_newest(control_plane), name="progress", after=None)
        self._entry.wake()

    def stop(self, timeout: float) -> None:
        if self._entry is not None:
            self._entry.cancel(timeout)

    def _send_newest(self, control_plane: ControlPlane) -> float | None:
        batch = self._take()
        if batch is None:
            return None
        try:
            control_plane.progress(batch)
        except (ControlPlaneAway, TurnedAway) as away:
            log.debug("progress_not_told", reason=str(away))
        return _PAUSE_SECONDS

    def _take(self) -> ProgressBatch | None:
        with self._lock:
            if not self._newest:
                return None
            ids = list(self._newest)[:_MOST]
            return ProgressBatch(progress=tuple(self._newest.pop(each) for each in ids))
