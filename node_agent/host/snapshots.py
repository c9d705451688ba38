"""Snapshots of the host: within a snapshot, equal reads on the same thread share one result.

Outside a snapshot every read of a driver is fresh, because a repair must act on the present state. But a survey needs
the same state for each of its slots, and a repair computes the plan of its slot again after each step. Both open a
snapshot: each state of the host is then read once on this thread. A driver that changes the host invalidates its own
results, or the results of all drivers if they read the changed state too. So no plan uses state from before a change by
the same thread.

A slow read that is certain to be needed can be started ahead of time, because starting a program takes most of its
time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, cast

from node_agent.host.slices import HostUnreadable

T = TypeVar("T")

Key = tuple[object, ...]
"""Identifier of a read of the host within a snapshot: the driver, and the name and parameters of the state that is
read."""

_results: Final[ContextVar[dict[Key, object] | None]] = ContextVar("results", default=None)
"""Results of the reads in the current host snapshot, by key; None outside a snapshot."""


class StartedRead(Protocol):
    """A read of the host, such as a list of domains, that was started and is not finished yet."""

    def answer(self) -> object:
        """Wait for the result of the started read and return it. Raises `HostUnreadable`."""
        ...

    def end(self) -> None:
        """Cancel the started read, because its result is not needed any more."""
        ...


@dataclass(frozen=True, slots=True)
class _Pending:
    """Placeholder in a snapshot for the result of a started read."""

    begun: StartedRead


@contextmanager
def host_snapshot() -> Iterator[None]:
    """Open a host snapshot: until it ends, equal reads of the host on this thread (or task) share one result."""
    token = _results.set({})
    try:
        yield
    finally:
        invalidate_reads()
        _results.reset(token)


def look(key: Key, read: Callable[[], T]) -> T:
    """Return the result of the host read `key` from the current snapshot. If the snapshot has no result, or there is no
    snapshot, call `read`.

    Raises `HostUnreadable`; within a snapshot, the error is stored like a result and raised again by equal reads.
    """
    results = _results.get()
    if results is None:
        return read()
    if key not in results:
        results[key] = _result_of(read)
    answer = results[key]
    if isinstance(answer, _Pending):
        results[key] = answer = _result_of(answer.begun.answer)
    if isinstance(answer, HostUnreadable):
        raise answer
    return cast(T, answer)


def start_reading(key: Key, begin: Callable[[], StartedRead]) -> None:
    """Start a read of the host ahead of time, as the snapshot's entry `key`; do nothing outside a snapshot."""
    results = _results.get()
    if results is not None and key not in results:
        results[key] = _result_of(lambda: _Pending(begin()))


def _result_of(read: Callable[[], object]) -> object:
    """Return the result of a read of the host, or the `HostUnreadable` that it raised.

    The snapshot stores errors too, so that a survey waits for a hung daemon once, and not once per slot.
    """
    try:
        return read()
    except HostUnreadable as unreadable:
        return unreadable


def invalidate_reads(driver: object = None) -> None:
    """Invalidate the snapshot's results of `driver`, or of all drivers (None), because the host was just changed."""
    results = _results.get()
    if results is None:
        return
    for key in [each for each in results if driver in {None, each[0]}]:
        answer = results.pop(key)
        if isinstance(answer, _Pending):
            answer.begun.end()
