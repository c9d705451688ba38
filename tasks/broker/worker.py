"""Dramatiq's worker, made to stop at once when idle and to cost nothing while it waits."""

from queue import Empty, PriorityQueue
from typing import Any, Final

from dramatiq import Worker
from typing_extensions import override

from tasks.broker.node_broker import NodeBroker

_LOOK_UP_MILLISECONDS: Final = 30_000


class _ClosableQueue(PriorityQueue[Any]):
    """A work queue that can tell the threads waiting on it to look up.

    The stock worker's threads learn of a stop when their wait times out. A short wait makes an idle node busy, a long
    one makes it slow to stop.
    """

    closed = False

    @override
    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        with self.not_empty:
            if block:
                self.not_empty.wait_for(lambda: self.closed or self._qsize() > 0, timeout)
            if not self._qsize():
                raise Empty
            item = self._get()
            self.not_full.notify()
            return item

    def close(self) -> None:
        with self.not_empty:
            self.closed = True
            self.not_empty.notify_all()


class NodeWorker(Worker):
    """A worker with as many threads as the broker prefetches, so that what is fetched begins at once.

    `start()` returns with threads running; `stop()` lets handlers finish, puts back what was not begun, and
    returns. A stopped worker is not started again.
    """

    def __init__(self, broker: NodeBroker) -> None:
        super().__init__(broker, worker_threads=broker.prefetch, worker_timeout=_LOOK_UP_MILLISECONDS)
        self.work_queue: _ClosableQueue = _ClosableQueue()

    @override
    def start(self) -> None:
        # Dramatiq's command line sends this signal after it forked; TimeLimit starts its thread on it.
        self.broker.emit_after("process_boot")
        super().start()

    @override
    def stop(self, timeout: int = 600_000) -> None:
        """`timeout`, in milliseconds, is how long running handlers are waited for."""
        for thread in self.workers:
            thread.stop()
        self.work_queue.close()
        super().stop(timeout)
