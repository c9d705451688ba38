"""Deadlines for calls that may hang, such as calls into C libraries.

A C call cannot be interrupted, so each call runs in its own thread, and the caller stops waiting at the deadline. The
call itself continues and may still take effect. A hung call counts as running until it returns. When the maximum number
of calls is running, no further call is started, so that an unresponsive daemon occupies a bounded number of threads.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")


class DeadlineExceeded(Exception):
    """A call did not return before its deadline; it may have taken effect or may still take effect."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A started call. Its deadline is the monotonic time `ends`, which is `seconds` after the start."""

    outcome: Future[T]
    seconds: float
    ends: float

    def result(self) -> T:
        """Return the result of the call or raise its exception. Raises `DeadlineExceeded` if the deadline passes
        first."""
        try:
            return self.outcome.result(timeout=max(0.0, self.ends - monotonic()))
        except TimeoutError:
            # Either the call itself raised it, or the deadline passed; in both cases the call may have returned
            # meanwhile.
            if self.outcome.done():
                return self.outcome.result()
            raise DeadlineExceeded(f"the call to the host did not return within {self.seconds:g} s") from None


class Deadlines:
    """Runs calls with a deadline in separate threads. At most `max_concurrent` calls run at the same time."""

    def __init__(self, max_concurrent: int = 16) -> None:
        self._slots = threading.BoundedSemaphore(max_concurrent)

    def within(self, seconds: float, call: Callable[[], T]) -> T:
        """Execute the call and return its result or raise its exception. Raises `DeadlineExceeded` after `seconds`."""
        return self._start_call(seconds, call, slot_timeout=seconds).result()

    def begin(self, seconds: float, call: Callable[[], T]) -> Call[T]:
        """Start the call and return at once. Raises `DeadlineExceeded` if `max_concurrent` calls are running."""
        return self._start_call(seconds, call, slot_timeout=0)

    def _start_call(self, seconds: float, call: Callable[[], T], slot_timeout: float) -> Call[T]:
        """Start the call. Wait at most `slot_timeout` seconds until fewer than `max_concurrent` calls are running."""
        ends = monotonic() + seconds
        if not self._slots.acquire(timeout=slot_timeout):
            raise DeadlineExceeded(
                "too many earlier calls to host programs have not returned; restart the program that does not answer"
            )
        outcome: Future[T] = Future()
        self._start(call, outcome)
        return Call(outcome, seconds, ends)

    def _start(self, call: Callable[[], T], outcome: Future[T]) -> None:
        # A daemon thread, so that a call that never returns does not keep the agent from exiting.
        thread = threading.Thread(target=self._run, args=(call, outcome), name="deadline", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The system cannot start another thread, so `_run` will not release the slot.
            self._slots.release()
            raise DeadlineExceeded(
                f"no thread could be started for the call to a host program: {error}"
            ) from error

    def _run(self, call: Callable[[], T], outcome: Future[T]) -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the exception is raised in the caller's thread
            outcome.set_exception(error)
        finally:
            self._slots.release()
