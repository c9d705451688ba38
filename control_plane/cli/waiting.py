"""Waiting for an allocation to arrive somewhere, by following its events from the first.

Nothing depends on the waiting: the allocation goes its way whether or not somebody looks.
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
from control_plane.cli.story import Story

PATIENCE: Final = 120.0
"""Seconds for which a lost connection is tried again: a restart of the control plane takes less."""


def wait(
    session: Session,
    allocation: str,
    arrived: Callable[[Story], bool],
    *,
    since: int = 0,
    releasing: bool = False,
) -> Story:
    """The story when it first satisfies `arrived`, at its event `since` or after it; what was before is not shown.

    `releasing`: the release was already requested, and the advice does not name it. Raises `Interrupted` or
    `Unreachable`; their messages name what continues.
    """
    story = Story(allocation)
    with _going_on(allocation, releasing=releasing), shown(session.screen, story) as progress:
        follower = Follower(
            session.client,
            allocation_path(allocation, "watch"),
            patience=PATIENCE,
            on_lost=progress.lost,
            on_back=progress.back,
            on_progress=lambda told: progress.step(decode(told, Step)),
        )
        for message in follower:
            story = story.then(decode(message, Event))
            if story.version < since:
                continue
            progress.tell(story.since(since))
            if arrived(story):
                break
        return story


@contextmanager
def _going_on(allocation: str, *, releasing: bool) -> Iterator[None]:
    what = f"the release of {allocation}" if releasing else f"allocation {allocation}"
    watch = f"watch it: sliceplane allocations watch {allocation}"
    release = f"release it: sliceplane allocations release {allocation}"
    advice = (watch,) if releasing else (watch, release)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"stopped waiting; {what} goes on", *advice) from None
    except Unreachable as lost:
        raise Unreachable(f"{lost.what}; {what} goes on", *advice) from lost
