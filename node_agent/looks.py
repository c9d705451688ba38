"""One look at the host, shared by everybody who asks the same question while it lasts.

Every read of a driver is fresh, because a repair acts on what is and not on what was. A survey asks the same of
each of its slots, though, and one answer for all of them is as fresh as eight; and what plans a slot's steps asks
again after each. So they open a look; what is read within it, on this thread, is read once. A driver that changes the
host ends what was seen of it so far, or all that was seen where others show the change too: nobody plans on a picture
from before his own change.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar, cast

from node_agent.slices import HostUnreadable

T = TypeVar("T")

Question = tuple[object, ...]
"""A driver, and what it is asked."""

_seen: Final[ContextVar[dict[Question, object] | None]] = ContextVar("seen", default=None)


@contextmanager
def one_look() -> Iterator[None]:
    """While this lasts, equal reads on this thread (or task) share one answer."""
    token = _seen.set({})
    try:
        yield
    finally:
        _seen.reset(token)


def look(question: Question, read: Callable[[], T]) -> T:
    """The answer to `question`: this look's, or a fresh one outside of any look."""
    seen = _seen.get()
    if seen is None:
        return read()
    if question not in seen:
        seen[question] = _answer(read)
    answer = seen[question]
    if isinstance(answer, HostUnreadable):
        raise answer
    return cast(T, answer)


def _answer(read: Callable[[], object]) -> object:
    """Or that there is none: a daemon that hangs is not waited for once a slot."""
    try:
        return read()
    except HostUnreadable as unreadable:
        return unreadable


def look_again(driver: object = None) -> None:
    """The host was just changed: forget what this look has seen by `driver`, or all of it where others show it too."""
    seen = _seen.get()
    if seen is None:
        return
    for question in [each for each in seen if driver in {None, each[0]}]:
        del seen[question]
