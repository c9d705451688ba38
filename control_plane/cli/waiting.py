"""Waiting until an allocation reaches a state, by following its events from the first one, and until another operation
ends, by polling.

The allocation or operation does not depend on the waiting client: it continues in any case. A control plane that is
temporarily unreachable is retried for `RETRY_SECONDS`.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from control_plane.cli.failures import Interrupted, NotReached, Unreachable
from control_plane.cli.progress import Progress, shown
from control_plane.cli.session import Session
from control_plane.client import calls
from control_plane.client.answers import Step, decode
from control_plane.client.errors import SliceplaneError, TimedOut, is_temporary
from control_plane.client.exchange import Call, Reply
from control_plane.client.streams import Following
from control_plane.client.timeline import Timeline

RETRY_SECONDS: Final = 120.0
"""How long a lost connection is retried: longer than a restart of the control plane."""
CONDITIONS_SECONDS: Final = 5.0
"""Interval between two reads of the conditions of the allocation: heartbeats are not events, so that a watch does not
show a node that stopped to respond.
"""
_LAST_READ_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.3
T = TypeVar("T")


def wait(
    session: Session,
    allocation: str,
    arrived: Callable[[Timeline], bool],
    *,
    since: int = 0,
    releasing: bool = False,
    timeout: float | None = None,
) -> Timeline:
    """Follow an allocation until its timeline satisfies `arrived`, and return the timeline.

    States before event version `since` are neither tested nor shown. `timeout` is in seconds; None: no limit.

    Raises `Interrupted`, `NotReached` or `Unreachable`, with a message that names the operation that continues. Its
    advice does not suggest to release the allocation if `releasing` is true, because the release was already requested.
    """
    timeline = Timeline(allocation)
    what = f"the release of {allocation}" if releasing else f"allocation {allocation}"
    watch = f"watch the allocation: sliceplane allocations watch {allocation}"
    release = f"release the allocation: sliceplane allocations release {allocation}"
    advice = (watch,) if releasing else (watch, release)
    with (
        continuing(what, *advice, doing="waiting"),
        shown(session.screen, timeline) as progress,
        _conditions_shown(session, allocation, progress),
    ):
        following = Following(
            retry_seconds=RETRY_SECONDS,
            deadline=deadline_of(timeout),
            on_lost=progress.lost,
            on_back=progress.back,
            on_progress=lambda raw: progress.step(decode(raw, Step)),
        )
        for reply in session.follow(calls.watch_allocation(allocation), following):
            timeline = timeline.then(reply.value)
            if timeline.version < since:
                continue
            progress.update(timeline.since(since))
            if arrived(timeline):
                break
        return timeline


@contextmanager
def _conditions_shown(session: Session, allocation: str, progress: Progress) -> Iterator[None]:
    """Read the conditions of an allocation periodically while the `with` block runs, in a thread of its own, because
    the block waits for the next event.
    """
    if session.as_curl:
        yield
        return
    ended = threading.Event()

    def read() -> None:
        while not ended.wait(CONDITIONS_SECONDS):
            try:
                found = session.client.run(calls.allocation(allocation))
            except SliceplaneError:
                continue  # the watch reports that the control plane does not respond
            if not ended.is_set():
                progress.conditions(found.conditions or ())

    thread = threading.Thread(target=read, name="conditions", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # The client must not be closed during a request. A request that takes longer ends with the process.
        thread.join(timeout=_LAST_READ_SECONDS)


def deadline_of(timeout: float | None) -> float | None:
    """Return the end of a wait that begins now, on the monotonic clock; None: no limit."""
    return None if timeout is None else time.monotonic() + timeout


def polled(current: Session, call: Call[T], timeout: float | None) -> Iterator[Reply[T]]:
    """Send the same call again and again, and yield each response. Raises `TimedOut` after `timeout` seconds; None: no
    limit.
    """
    lost_at: float | None = None
    deadline = deadline_of(timeout)
    while deadline is None or time.monotonic() < deadline:
        try:
            reply = current.send(call)
        except SliceplaneError as lost:
            if not is_temporary(lost):
                raise
            if lost_at is None:
                lost_at = time.monotonic()
                current.screen.note(f"connection lost, retrying: {lost.what}")
            elif time.monotonic() - lost_at > RETRY_SECONDS:
                raise
        else:
            if lost_at is not None:
                current.screen.note("reconnected")
            lost_at = None
            yield reply
        time.sleep(_POLL_SECONDS)
    raise TimedOut("the operation was not complete before the timeout of the wait")


@contextmanager
def continuing(what: str, *advice: str, doing: str = "watching") -> Iterator[None]:
    """If the user, a timeout or an outage ends the `with` block, report that the operation `what` continues."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"the command stopped {doing}; {what} continues", *advice) from None
    except TimedOut:
        raise NotReached(
            f"the command stopped {doing}, because the time of --timeout is over; {what} continues", *advice
        ) from None
    except SliceplaneError as lost:
        if not is_temporary(lost):
            raise
        raise Unreachable(f"the command stopped {doing}: {lost.what}; {what} continues", *advice) from lost
