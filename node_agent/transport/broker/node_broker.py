"""The Dramatiq broker for one node and one queue."""

import threading
from functools import lru_cache
from typing import Any, Final

from dramatiq import Broker, Message, Middleware, Worker
from dramatiq.broker import Consumer, MessageProxy
from dramatiq.middleware import TimeLimit
from typing_extensions import override

from node_agent.runtime.timetable import Timetable
from node_agent.transport.broker.consumer import OnDeadLetter, OrderConsumer
from node_agent.transport.broker.in_flight import InFlight
from node_agent.transport.broker.link import QueueAddress
from node_agent.transport.broker.queue import NodeQueue
from tasks.scripts import WORKER_TIMEOUT

POISON_AFTER: Final = 3


class NodeCannotEnqueue(Exception):
    """A node tried to enqueue a message: all orders come from the ledger, including retries and delayed ones."""

    def __init__(self, actor: str) -> None:
        super().__init__(f"a node cannot enqueue task {actor}; request the task from the control plane")
        self.actor = actor


class WrongQueue(Exception):
    """An actor or a worker named a queue other than the node's queue."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"unknown queue {queue!r}; use the node's queue")
        self.queue = queue


class NodeBroker(Broker):
    """A broker that passes one node's orders to actors, and calls `on_dead_letter` for orders that cannot be executed.

    Of Dramatiq's middleware only `TimeLimit` is used, because the others read unsigned options or the node's own clock.
    `on_dead_letter` runs before the order leaves the queue, in the thread that detected the problem; it may be called
    again for the same order after a crash. `prefetch` limits the orders in flight; with `prefetch` worker threads, a
    fetched order begins at once. `poison_after` is the maximum number of deliveries of an order; after `worker_timeout`
    seconds without a heartbeat, a worker loses the orders that it fetched. While the worker has orders, a job of
    `timetable` sends heartbeats.
    """

    def __init__(
        self,
        address: QueueAddress,
        timetable: Timetable,
        *,
        on_dead_letter: OnDeadLetter,
        prefetch: int = 4,
        poison_after: int = POISON_AFTER,
        worker_timeout: float = WORKER_TIMEOUT,
    ) -> None:
        super().__init__(middleware=[_time_limit(), _Lifecycle()])
        self.queues: dict[str, None] = {}
        self.prefetch = prefetch
        self._name = address.queue
        self._poison_after = poison_after
        self._on_dead_letter = on_dead_letter
        self._queue = NodeQueue(address, timetable, worker_timeout=worker_timeout)
        self._in_flight = InFlight(prefetch)

    @override
    def declare_queue(self, queue_name: str) -> None:
        """Declare the node's queue. Raises `WrongQueue` for any other queue."""
        if queue_name != self._name:
            raise WrongQueue(queue_name)
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    @override
    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> Consumer:
        """Return a consumer of the node's queue.

        `prefetch` and `timeout` are meant for polling brokers and ignored; the broker's own `prefetch` applies.
        """
        if queue_name not in self.queues:
            raise WrongQueue(queue_name)
        return OrderConsumer(
            self._queue,
            self._in_flight,
            name=queue_name,
            poison_after=self._poison_after,
            on_dead_letter=self._on_dead_letter,
        )

    @override
    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Raise `NodeCannotEnqueue`, because a node only receives tasks."""
        raise NodeCannotEnqueue(message.actor_name)

    def use_password(self, password: str) -> None:
        """Use a new Redis password from the next connection on; open connections continue."""
        self._queue.use_password(password)

    def trust_ca(self, ca: str | None) -> None:
        """Trust this CA (PEM) for TLS connections to Redis from the next connection on; open connections continue."""
        self._queue.trust_ca(ca)

    def stop_fetching(self) -> None:
        """Stop fetching orders from the node's queue; orders in flight may finish."""
        self._queue.stop_waiting()

    @override
    def close(self) -> None:
        self._queue.close()


class _ProcessTimeLimit(TimeLimit):
    """Dramatiq's time limit for handlers, with one thread for the workers of all brokers of the process."""

    def __init__(self) -> None:
        super().__init__()
        self._starting = threading.Lock()
        self._started = False

    @override
    def after_process_boot(self, broker: Broker) -> None:
        with self._starting:
            if not self._started:
                self.manager.start()
            self._started = True


@lru_cache(maxsize=1)
def _time_limit() -> TimeLimit:
    return _ProcessTimeLimit()


class _Lifecycle(Middleware):
    """Middleware that stops fetching before the worker shuts down, and marks an order as failed if its handler raised.

    Without the mark, Dramatiq would acknowledge such an order. In other applications Dramatiq's Retries middleware sets
    the mark, but the agent does not use that middleware.
    """

    @override
    def before_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        assert isinstance(broker, NodeBroker)
        broker.stop_fetching()

    @override
    def after_process_message(
        self,
        broker: Broker,
        message: MessageProxy,
        *,
        result: object = None,
        exception: BaseException | None = None,
    ) -> None:
        if exception is not None:
            message.fail()
