"""Calls that may hang, such as those into C libraries, each under a deadline.

Nothing can interrupt a C call, so a call runs on a thread of its own, and whoever asked stops waiting at the
deadline. The call itself goes on, and may still take effect. Calls that hang keep their places: once
`at_once` do, further ones are not even begun, so that a dead daemon costs a bounded number of threads.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")


class Overdue(Exception):
    """No answer within the deadline; whether the call has had, or will have, its effect is not known."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One that was begun; `ends` is its deadline in monotonic time, `seconds` what it was given."""

    outcome: Future[T]
    seconds: float
    ends: float

    def result(self) -> T:
        """What it returns or raises; `Overdue` once its deadline is past."""
        try:
            return self.outcome.result(timeout=max(0.0, self.ends - monotonic()))
        except TimeoutError:
            # The call's own, or the deadline's: by then it may have ended after all.
            if self.outcome.done():
                return self.outcome.result()
            raise Overdue(f"no answer within {self.seconds:g} s") from None


class Deadlines:
    def __init__(self, at_once: int = 16) -> None:
        self._room = threading.BoundedSemaphore(at_once)

    def within(self, seconds: float, call: Callable[[], T]) -> T:
        """The call's result, or its own exception; `Overdue` after `seconds`."""
        return self._begun(seconds, call, room=seconds).result()

    def begin(self, seconds: float, call: Callable[[], T]) -> Call[T]:
        """Have it run while whoever asks does something else. Raises `Overdue` where it would have to wait to begin."""
        return self._begun(seconds, call, room=0)

    def _begun(self, seconds: float, call: Callable[[], T], room: float) -> Call[T]:
        """`room`: so many seconds a place is waited for."""
        ends = monotonic() + seconds
        if not self._room.acquire(timeout=room):
            raise Overdue("too many earlier calls hang")
        outcome: Future[T] = Future()
        self._start(call, outcome)
        return Call(outcome, seconds, ends)

    def _start(self, call: Callable[[], T], outcome: Future[T]) -> None:
        # Daemonic: a call that never returns must not keep the agent from ending.
        thread = threading.Thread(target=self._run, args=(call, outcome), name="deadline", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The system has no thread left. Nobody else gives the place back.
            self._room.release()
            raise Overdue(f"not begun: {error}") from error

    def _run(self, call: Callable[[], T], outcome: Future[T]) -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - handed over, not handled: the thread that asked raises it
            outcome.set_exception(error)
        finally:
            self._room.release()
