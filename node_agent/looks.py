"""One look at the host, shared by everybody who asks the same question while it lasts.

Every read of a driver is fresh, because a repair acts on what is and not on what was. A survey asks the same of
each of its slots, though, and one answer for all of them is as fresh as eight; and what plans a slot's steps asks
again after each. So they open a look; what is read within it, on this thread, is read once. A driver that changes the
host ends what was seen of it so far, or all that was seen where others show the change too: nobody plans on a picture
from before his own change.

Who knows what will be asked, and that the answer takes its time (of programs most of it is their start), has it begun
ahead.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, cast

from node_agent.slices import HostUnreadable

T = TypeVar("T")

Question = tuple[object, ...]
"""A driver, and what it is asked."""

_seen: Final[ContextVar[dict[Question, object] | None]] = ContextVar("seen", default=None)


class Begun(Protocol):
    """An answer on its way."""

    def answer(self) -> object:
        """Wait for it. Raises `HostUnreadable`."""
        ...

    def end(self) -> None:
        """Nobody asks any more."""
        ...


@dataclass(frozen=True, slots=True)
class _Ahead:
    """In the place of the answer that it is to be."""

    begun: Begun


@contextmanager
def one_look() -> Iterator[None]:
    """While this lasts, equal reads on this thread (or task) share one answer."""
    token = _seen.set({})
    try:
        yield
    finally:
        look_again()
        _seen.reset(token)


def look(question: Question, read: Callable[[], T]) -> T:
    """The answer to `question`: this look's, or a fresh one outside of any look."""
    seen = _seen.get()
    if seen is None:
        return read()
    if question not in seen:
        seen[question] = _answer(read)
    answer = seen[question]
    if isinstance(answer, _Ahead):
        seen[question] = answer = _answer(answer.begun.answer)
    if isinstance(answer, HostUnreadable):
        raise answer
    return cast(T, answer)


def look_ahead(question: Question, begin: Callable[[], Begun]) -> None:
    """Begin to read the answer to `question`, which somebody will ask; outside of any look nothing."""
    seen = _seen.get()
    if seen is not None and question not in seen:
        seen[question] = _answer(lambda: _Ahead(begin()))


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
        answer = seen.pop(question)
        if isinstance(answer, _Ahead):
            answer.begun.end()
