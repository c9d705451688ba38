"""Waiting until an allocation reaches a state, by following its events from the first one.

The allocation does not depend on the waiting client: it continues in any case.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from control_plane.cli.answers import Event, Step, decode
from control_plane.cli.failures import Interrupted, Unreachable
from control_plane.cli.follow import Follower
from control_plane.cli.paths import allocation_path
from control_plane.cli.progress import shown
from control_plane.cli.session import Session
from control_plane.cli.timeline import Timeline

RETRY_SECONDS: Final = 120.0
"""How long a lost connection is retried: longer than a restart of the control plane."""


def wait(
    session: Session,
    allocation: str,
    arrived: Callable[[Timeline], bool],
    *,
    since: int = 0,
    releasing: bool = False,
) -> Timeline:
    """Follow an allocation until its timeline satisfies `arrived`, and return the timeline.

    States before event version `since` are neither tested nor shown.

    Raises `Interrupted` or `Unreachable`, with a message that names the operation that continues. Its advice does not
    suggest to release the allocation if `releasing` is true, because the release was already requested.
    """
    timeline = Timeline(allocation)
    with _continuing(allocation, releasing=releasing), shown(session.screen, timeline) as progress:
        follower = Follower(
            session.client,
            allocation_path(allocation, "watch"),
            retry_seconds=RETRY_SECONDS,
            on_lost=progress.lost,
            on_back=progress.back,
            on_progress=lambda raw: progress.step(decode(raw, Step)),
        )
        for message in follower:
            timeline = timeline.then(decode(message, Event))
            if timeline.version < since:
                continue
            progress.update(timeline.since(since))
            if arrived(timeline):
                break
        return timeline


@contextmanager
def _continuing(allocation: str, *, releasing: bool) -> Iterator[None]:
    what = f"the release of {allocation}" if releasing else f"allocation {allocation}"
    watch = f"watch the allocation: sliceplane allocations watch {allocation}"
    release = f"release the allocation: sliceplane allocations release {allocation}"
    advice = (watch,) if releasing else (watch, release)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"stopped waiting; {what} continues", *advice) from None
    except Unreachable as lost:
        raise Unreachable(f"{lost.what}; {what} continues", *advice) from lost
