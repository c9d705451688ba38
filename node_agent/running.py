"""Which operations run on this node, and which must not: the place where a cancel meets its target.

An operation takes one of a bounded number of places, so that threads are left for orders and for the cancel itself; the
control plane's credit keeps it from sending more. A cancel that comes before its target is remembered for as long as
the target may still come. All of it is memory: after a restart a cancelled operation that is still in the queue runs,
which harms nobody.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final
from uuid import UUID

from node_agent.halt import Halt
from tasks.broker import GivenBack
from tasks.catalogue import CATALOGUE, CREDIT
from tasks.reasons import OperationFailureCode, RefusalCode

_REMEMBERED: Final = max(type_.bounds.maximum_age for type_ in CATALOGUE.values()).total_seconds()


class CameToNothing(Exception):
    """An operation that is told as failed, with a code that its type declares or one of a refusal."""

    def __init__(self, code: OperationFailureCode | RefusalCode, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


class AlreadyRunning(Exception):
    """A copy of this very operation is at work, and will tell of both."""


class Running:
    """Thread-safe. `clock` gives monotonic seconds."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, places: int = CREDIT["operations"]
    ) -> None:
        self._clock, self._places = clock, places
        self._lock = threading.Lock()
        self._halts: dict[UUID, Halt] = {}
        self._cancelled: dict[UUID, float] = {}
        self._closing = False

    @contextmanager
    def place(self, operation_id: UUID, limit: timedelta) -> Iterator[Halt]:
        """Run meanwhile. Raises `CameToNothing`, `AlreadyRunning` and, while the agent ends, `GivenBack`."""
        with self._lock:
            self._refuse(operation_id)
            halt = self._halts[operation_id] = Halt(time.monotonic() + limit.total_seconds())
        try:
            yield halt
        finally:
            with self._lock:
                del self._halts[operation_id]

    def cancel(self, operation_id: UUID) -> bool:
        """Halt it if it runs, and let it never begin again; whether it ran."""
        with self._lock:
            self._forget_old()
            self._cancelled[operation_id] = self._clock() + _REMEMBERED
            halt = self._halts.get(operation_id)
            if halt is not None:
                halt.ask()
            return halt is not None

    def is_cancelled(self, operation_id: UUID) -> bool:
        with self._lock:
            self._forget_old()
            return operation_id in self._cancelled

    @property
    def closing(self) -> bool:
        with self._lock:
            return self._closing

    def close(self) -> None:
        """Halt all of them, and begin none any more."""
        with self._lock:
            self._closing = True
            for halt in self._halts.values():
                halt.ask()

    def _refuse(self, operation_id: UUID) -> None:
        self._forget_old()
        if operation_id in self._cancelled:
            raise CameToNothing("cancelled", "it was cancelled before it began")
        if self._closing:
            raise GivenBack
        if operation_id in self._halts:
            raise AlreadyRunning
        if len(self._halts) >= self._places:
            raise CameToNothing("busy", f"{len(self._halts)} operations run here already")

    def _forget_old(self) -> None:
        now = self._clock()
        self._cancelled = {each: until for each, until in self._cancelled.items() if until > now}
