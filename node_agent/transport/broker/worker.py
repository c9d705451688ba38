"""A Dramatiq worker that has no threads while it is idle, and that stops immediately.

Dramatiq's own worker keeps all its threads from the start. This worker uses a thread pool: a fetched order begins at
once on an idle or a new thread, and an idle node has no worker thread.
"""

from collections.abc import Callable
from queue import PriorityQueue
from typing import Any, Final

from dramatiq import Worker
from dramatiq.worker import WorkerThread
from typing_extensions import override

from node_agent.runtime.thread_pool import ThreadPool
from node_agent.transport.broker.node_broker import NodeBroker

_MILLISECOND: Final = 0.001


class _Fetched(PriorityQueue[Any]):
    """Work queue of fetched orders for Dramatiq. `call` is called once for each entry that is added, to execute one
    entry.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._call = call

    @override
    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        self._call()


class NodeWorker(Worker):
    """A worker with up to as many threads as the broker prefetches orders, so that a fetched order begins at once.

    `start()` returns when orders are being taken; `stop()` lets handlers finish, requeues orders not begun, and
    returns. A stopped worker cannot be started again. If `threads` is lower than the broker's
    `prefetch`, fetched orders may wait.
    """

    def __init__(self, broker: NodeBroker, threads: int | None = None) -> None:
        super().__init__(broker, worker_threads=0)
        self._node_broker = broker
        self._pool = ThreadPool("orders", threads or broker.prefetch)
        self.work_queue: _Fetched = _Fetched(lambda: self._pool.run(self._execute_one))
        # Never started: it only provides `process_message`, which any thread may call.
        self._processor = WorkerThread(
            broker=broker, consumers=self.consumers, work_queue=self.work_queue, worker_timeout=0
        )

    @override
    def start(self) -> None:
        # Dramatiq's command line emits this signal after forking; TimeLimit starts its thread on it.
        self.broker.emit_after("process_boot")
        super().start()

    @override
    def stop(self, timeout: int = 600_000) -> None:
        """Stop the worker. `timeout`, in milliseconds, limits the wait for running handlers of orders."""
        self._pool.close(0)
        self._node_broker.stop_fetching()
        self._pool.close(timeout * _MILLISECOND)
        super().stop(timeout)

    def _execute_one(self) -> None:
        self._processor.process_message(self.work_queue.get_nowait().message)
