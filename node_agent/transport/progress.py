"""Progress of the work on a task, sent to the control plane while it runs: best effort, never delaying the work.

Work on a task runs inside the context manager `reporting_progress`. In this context every step reports its name, at any
call depth. Only the newest progress of each task is kept. It is sent shortly afterwards, at most five times a second,
with the progress of all other tasks in one request. Progress that could not be sent is dropped, because newer progress
or the final report follows. Progress that is not yet sent when the work ends is dropped too: for work that takes only a
moment, only the result is reported.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

import structlog

from node_agent.runtime.clock import NodeClock
from node_agent.runtime.timetable import Entry, Timetable
from node_agent.transport.client import ControlPlane, ControlPlaneUnavailable, RequestRejected
from tasks.agent_api import Progress, ProgressBatch

log = structlog.get_logger(__name__)

_PAUSE_SECONDS: Final = 0.2
_MOST: Final = 256


class ProgressListener(Protocol):
    """Receiver of the progress of tasks. Its methods are called from any thread."""

    def report(self, task_id: UUID, step: str, number: int, of: int | None) -> None:
        """Record that step `number` (from 1) of a task begins; `of` is the expected number of steps, if known."""
        ...

    def ended(self, task_id: UUID) -> None:
        """Record that the work on a task has ended; the work may be resumed later."""
        ...


class NullListener:
    """Receiver of the progress of tasks that ignores all progress."""

    def report(self, task_id: UUID, step: str, number: int, of: int | None) -> None:
        pass

    def ended(self, task_id: UUID) -> None:
        pass


NO_LISTENER: Final = NullListener()


@dataclass(slots=True)
class _Track:
    task_id: UUID
    listener: ProgressListener
    number: int = 0
    of: int | None = None


_track: Final[ContextVar[_Track | None]] = ContextVar("track", default=None)


@contextmanager
def reporting_progress(listener: ProgressListener, task_id: UUID) -> Iterator[None]:
    """Report the steps that this thread begins in the `with` block to `listener`, as the progress of a task."""
    token = _track.set(_Track(task_id, listener))
    try:
        yield
    finally:
        _track.reset(token)
        listener.ended(task_id)


def expect_steps(count: int) -> None:
    """Announce that `count` more steps are planned for the current task."""
    if (track := _track.get()) is not None:
        track.of = track.number + count


def report_step(name: str) -> None:
    """Report that a step of the current task begins."""
    if (track := _track.get()) is not None:
        track.number += 1
        # A new plan made during the work may have more steps than expected.
        of = None if track.of is None else max(track.of, track.number)
        track.listener.report(track.task_id, name, track.number, of)


def report_wait(name: str) -> None:
    """Report that the current task now waits; the number of its remaining steps is unknown from then on."""
    if (track := _track.get()) is not None:
        track.of = None
    report_step(name)


class ProgressSender:
    """Receiver of the progress of tasks that sends it to the control plane. Call `start` once."""

    def __init__(self, clock: NodeClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: dict[UUID, Progress] = {}
        self._entry: Entry | None = None

    def report(self, task_id: UUID, step: str, number: int, of: int | None) -> None:
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
        except (ControlPlaneUnavailable, RequestRejected) as away:
            log.debug("task_progress_not_sent_to_control_plane", reason=str(away))
        return _PAUSE_SECONDS

    def _take(self) -> ProgressBatch | None:
        with self._lock:
            if not self._newest:
                return None
            ids = list(self._newest)[:_MOST]
            return ProgressBatch(progress=tuple(self._newest.pop(each) for each in ids))
