"""Dramatiq's worker, made to cost nothing while it waits and to stop at once when idle.

The stock worker keeps all its threads from the start. This one has a crew: an order that is fetched begins at once on
a thread that is idle or new, and a node where nothing is carried out has none of them.
"""

from collections.abc import Callable
from queue import PriorityQueue
from typing import Any, Final

from dramatiq import Worker
from dramatiq.worker import WorkerThread
from typing_extensions import override

from tasks.broker.node_broker import NodeBroker
from tasks.crew import Crew

_MILLISECOND: Final = 0.001


class _Fetched(PriorityQueue[Any]):
    """Dramatiq's work queue; each order put there has somebody called to carry it out."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._call = call

    @override
    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        self._call()


class NodeWorker(Worker):
    """A worker with up to as many threads as the broker prefetches, so that what is fetched begins at once.

    `start()` returns when orders are taken; `stop()` lets handlers finish, puts back what was not begun, and
    returns. A stopped worker is not started again. Fewer `threads` let orders wait that were fetched.
    """

    def __init__(self, broker: NodeBroker, threads: int | None = None) -> None:
        super().__init__(broker, worker_threads=0)
        self._node_broker = broker
        self._crew = Crew("orders", threads or broker.prefetch)
        self.work_queue: _Fetched = _Fetched(lambda: self._crew.run(self._carry_one_out))
        # Never started: it knows how a message is processed, whichever thread that happens in.
        self._processor = WorkerThread(
            broker=broker, consumers=self.consumers, work_queue=self.work_queue, worker_timeout=0
        )

    @override
    def start(self) -> None:
        # Dramatiq's command line sends this signal after it forked; TimeLimit starts its thread on it.
        self.broker.emit_after("process_boot")
        super().start()

    @override
    def stop(self, timeout: int = 600_000) -> None:
        """`timeout`, in milliseconds, is how long running handlers are waited for."""
        self._crew.close(0)
        self._node_broker.stop_fetching()
        self._crew.close(timeout * _MILLISECOND)
        super().stop(timeout)

    def _carry_one_out(self) -> None:
        self._processor.process_message(self.work_queue.get_nowait().message)
