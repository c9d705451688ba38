"""The broker itself: what Dramatiq asks of one, for one node and one queue."""

import threading
from functools import lru_cache
from typing import Any, Final

from dramatiq import Broker, Message, Middleware, Worker
from dramatiq.broker import Consumer, MessageProxy
from dramatiq.middleware import TimeLimit
from typing_extensions import override

from tasks.broker.consumer import OnGivenUp, OrderConsumer
from tasks.broker.hand import Hand
from tasks.broker.link import QueueAddress
from tasks.broker.queue import NodeQueue
from tasks.scripts import WORKER_TIMEOUT
from tasks.timetable import Timetable

POISON_AFTER: Final = 3


class NodesDoNotEnqueue(Exception):
    """A node was asked to put a message on a queue: orders come from the ledger, a retry or a delay too."""

    def __init__(self, actor: str) -> None:
        super().__init__(f"a node enqueues nothing, {actor} neither")
        self.actor = actor


class NotTheNodesQueue(Exception):
    """An actor or a worker named another queue than the node's one."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"there is no queue {queue}")
        self.queue = queue


class NodeBroker(Broker):
    """Brings one node's orders to its actors, and tells `on_given_up` of every order it will not carry out.

    Only `TimeLimit` of Dramatiq's middleware is there, because the others read options that nobody signed or the
    node's own clock. `on_given_up` runs before the order leaves the queue, in the thread that found out; it may
    be called again for the same order after a crash. `prefetch` bounds the orders fetched and not settled; with as
    many worker threads, a fetched order begins at once. `poison_after` is how many deliveries an order gets;
    `worker_timeout` (seconds) is how long a silent worker keeps what it holds. While it holds something, a job of
    `timetable` says that it lives.
    """

    def __init__(
        self,
        address: QueueAddress,
        timetable: Timetable,
        *,
        on_given_up: OnGivenUp,
        prefetch: int = 4,
        poison_after: int = POISON_AFTER,
        worker_timeout: float = WORKER_TIMEOUT,
    ) -> None:
        super().__init__(middleware=[_time_limit(), _Lifecycle()])
        self.queues: dict[str, None] = {}
        self.prefetch = prefetch
        self._name = address.queue
        self._poison_after = poison_after
        self._on_given_up = on_given_up
        self._queue = NodeQueue(address, timetable, worker_timeout=worker_timeout)
        self._hand = Hand(prefetch)

    @override
    def declare_queue(self, queue_name: str) -> None:
        """Raises `NotTheNodesQueue` for any other."""
        if queue_name != self._name:
            raise NotTheNodesQueue(queue_name)
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    @override
    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> Consumer:
        """`prefetch` and `timeout` are Dramatiq's, for brokers that poll; the broker's own bound holds."""
        if queue_name not in self.queues:
            raise NotTheNodesQueue(queue_name)
        return OrderConsumer(
            self._queue,
            self._hand,
            name=queue_name,
            poison_after=self._poison_after,
            on_given_up=self._on_given_up,
        )

    @override
    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Always raises `NodesDoNotEnqueue`."""
        raise NodesDoNotEnqueue(message.actor_name)

    def use_password(self, password: str) -> None:
        """Log in to the queue with it from now on; connections that exist go on."""
        self._queue.use_password(password)

    def believe(self, ca: str | None) -> None:
        """Believe Redis by this CA (PEM) from now on, where it is spoken to over TLS; connections that exist go on."""
        self._queue.believe(ca)

    def stop_fetching(self) -> None:
        """Take no further order; those in hand may finish."""
        self._queue.stop_waiting()

    @override
    def close(self) -> None:
        self._queue.close()


class _ProcessTimeLimit(TimeLimit):
    """Dramatiq's, whose one thread looks after the workers of all brokers of the process."""

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
    """Ties the broker to its worker's stop, and makes a handler's exception a failure.

    Without the last, Dramatiq would acknowledge an order whose handler raised: its Retries are what marks such a
    message failed, and we have none.
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
