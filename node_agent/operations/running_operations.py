"""Register of the operations that run on this node and of those that were cancelled.

The number of running operations is limited, so that threads remain for orders and for cancellations; the control plane
limits the operations that it sends at a time to the same number (credit). If a cancellation arrives before its
operation, the cancellation is stored for as long as the operation may still arrive. The register is in memory only:
after a restart, a cancelled operation that is still in the queue runs.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final
from uuid import UUID

from node_agent.runtime.halt import Halt
from node_agent.transport.broker import RequeueOrder
from tasks.catalogue import CATALOGUE, CREDIT
from tasks.reasons import OperationFailureCode, RefusalCode

_CANCEL_STORED_SECONDS: Final = max(type_.bounds.maximum_age for type_ in CATALOGUE.values()).total_seconds()


class OperationError(Exception):
    """Failure of an operation, reported with a refusal code or a code that the operation's type declares."""

    def __init__(self, code: OperationFailureCode | RefusalCode, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class AlreadyRunning(Exception):
    """Another copy of the same operation is running; its report covers both."""


class RunningOperations:
    """Register of a node's running and cancelled operations. Thread-safe. `clock` returns monotonic seconds."""

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
        """Register an operation while it runs. Yields the halt flag that ends the operation at its time `limit`.

        Raises `OperationError` if the operation was cancelled or too many operations run, `AlreadyRunning` if a copy of
        the operation runs, and `RequeueOrder` while the agent stops.
        """
        with self._lock:
            self._refuse(operation_id)
            halt = self._halts[operation_id] = Halt(time.monotonic() + limit.total_seconds())
        try:
            yield halt
        finally:
            with self._lock:
                del self._halts[operation_id]

    def cancel(self, operation_id: UUID) -> bool:
        """Cancel an operation: halt it if it runs, and never start it afterwards. Return whether it was running."""
        with self._lock:
            self._forget_old()
            self._cancelled[operation_id] = self._clock() + _CANCEL_STORED_SECONDS
            halt = self._halts.get(operation_id)
            if halt is not None:
                halt.request()
            return halt is not None

    def is_cancelled(self, operation_id: UUID) -> bool:
        """Whether the operation was cancelled, before or after its start."""
        with self._lock:
            self._forget_old()
            return operation_id in self._cancelled

    @property
    def closing(self) -> bool:
        """Whether the agent is stopping, so that it starts no more operations."""
        with self._lock:
            return self._closing

    def close(self) -> None:
        """Halt all running operations, and start no more operations."""
        with self._lock:
            self._closing = True
            for halt in self._halts.values():
                halt.request()

    def _refuse(self, operation_id: UUID) -> None:
        self._forget_old()
        if operation_id in self._cancelled:
            raise OperationError("cancelled", "the operation was cancelled before it started")
        if self._closing:
            raise RequeueOrder
        if operation_id in self._halts:
            raise AlreadyRunning
        if len(self._halts) >= self._places:
            raise OperationError(
                "busy", f"{len(self._halts)} operations already run on this node; retry later"
            )

    def _forget_old(self) -> None:
        now = self._clock()
        self._cancelled = {each: until for each, until in self._cancelled.items() if until > now}
