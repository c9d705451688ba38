"""The consumer that Dramatiq iterates over: it fetches orders, checks them, and passes them to worker threads.

An order leaves the queue only when it is settled: after its handler returned, or after the callback `on_dead_letter`
was called because the order will not be executed. The consumer never raises an exception when Redis is unavailable; it
waits and continues, because Dramatiq would replace a consumer that raised and pause for seconds.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from dramatiq import Message
from dramatiq.broker import Consumer, MessageProxy

from node_agent.transport.broker.in_flight import InFlight
from node_agent.transport.broker.link import QueueUnavailable, redis_backoff
from node_agent.transport.broker.queue import Delivery, NodeQueue
from tasks.wire import MalformedMessage, OrderMessage, decode_message, order_of

_ROOM_SECONDS: Final = 1.0
_STOPPING_SECONDS: Final = 0.02

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Dead letter: an order that was delivered `deliveries` times and never settled, because its workers died."""

    message: OrderMessage
    deliveries: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Dead letter: an order for which the handler raised an exception, or for which there is no handler."""

    message: OrderMessage
    error: BaseException


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Dead letter: an entry of the node's queue under the key `key` that is not a valid order."""

    key: str
    reason: str


class RequeueOrder(Exception):
    """Raised by an order's handler to requeue the order, which cannot begin now; this delivery does not count."""


DeadLetter = Poisoned | Failed | Unreadable
OnDeadLetter = Callable[[DeadLetter], None]


class Delivered(MessageProxy):
    """The Dramatiq message of an order that a worker thread executes. It stores the exception of the handler."""

    def __init__(self, message: Message[Any]) -> None:
        super().__init__(message)
        self.order = order_of(message)
        self.error: BaseException | None = None

    def stuff_exception(self, exception: BaseException) -> None:
        super().stuff_exception(exception)
        self.error = exception

    def clear_exception(self) -> None:
        super().clear_exception()
        self.error = None


class OrderConsumer(Consumer):
    """An endless iterator over the orders of one node; it yields None if no order arrived for a while."""

    def __init__(
        self,
        queue: NodeQueue,
        in_flight: InFlight,
        *,
        name: str,
        poison_after: int,
        on_dead_letter: OnDeadLetter,
    ) -> None:
        self._queue = queue
        self._in_flight = in_flight
        self._name = name
        self._poison_after = poison_after
        self._on_dead_letter = on_dead_letter
        self._fetched: deque[Delivery] = deque()
        self._backoff = redis_backoff()

    def __next__(self) -> MessageProxy | None:
        if not self._fetched:
            self._fetched.extend(self._fetch())
        while self._fetched:
            delivered = self._accept(self._fetched.popleft())
            if delivered is not None:
                return delivered
        return None

    def ack(self, message: MessageProxy) -> None:
        """Settle an order, that is, remove it from the queue, after its handler returned."""
        self._settle(message.message_id)

    def nack(self, message: MessageProxy) -> None:
        """Report and settle an order that failed in its handler or that has no handler.

        The order is reported before it is settled, so that a crash in between repeats the report and never loses it.
        """
        assert isinstance(message, Delivered)  # the only type that this consumer yields
        error = message.error or RuntimeError("the handler of the task failed without an exception")
        if isinstance(error, RequeueOrder):
            self._requeue((message.message_id,))
            self._in_flight.drop(message.message_id)
            return
        self._on_dead_letter(Failed(message.order, error))
        self._settle(message.message_id)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Requeue the given orders, which were not begun, and all orders that were fetched but not yet checked.

        Dramatiq calls this method at shutdown with the orders that were not begun, and without orders at each close.
        """
        ids = [message.message_id for message in messages]
        self._requeue([*ids, *(delivery.order_id for delivery in self._fetched)])
        self._fetched.clear()
        for order_id in ids:
            self._in_flight.drop(order_id)

    def _requeue(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        try:
            self._queue.requeue(ids)
        except QueueUnavailable as away:
            # The orders stay held by this worker, which is about to end: the task sender's script requeues them.
            log.warning("orders_not_requeued", orders=ids, reason=away.reason)

    def _fetch(self) -> tuple[Delivery, ...]:
        if self._queue.stopping.is_set():
            threading.Event().wait(_STOPPING_SECONDS)
            return ()
        room = self._in_flight.room(_ROOM_SECONDS)
        if not room:
            return ()
        try:
            deliveries = self._queue.fetch(room, self._in_flight.ids())
            # Redis responded, so an interrupted wait, as at each renewal of the node's session, is not a lasting
            # outage.
            self._backoff.reset()
            if not deliveries:
                self._queue.wait()
        except QueueUnavailable as away:
            self._pause(away)
            return ()
        self._queue.note(None)
        return deliveries

    def _pause(self, away: QueueUnavailable) -> None:
        if not self._queue.stopping.is_set():  # an interruption by our own shutdown is not an outage
            self._queue.note(away)
            self._queue.stopping.wait(self._backoff.next())

    def _accept(self, delivery: Delivery) -> Delivered | None:
        if not self._in_flight.take(delivery.order_id):
            # Redis lost the hold and the order was requeued while it is being executed here. This worker holds it again
            # now, and the end of the first run settles both deliveries.
            log.info("order_delivered_again_while_in_flight", order=delivery.order_id)
            return None
        try:
            message = self._read(delivery)
        except MalformedMessage as malformed:
            self._dead_letter(delivery, Unreadable(delivery.order_id, malformed.reason))
            return None
        if delivery.count > self._poison_after:
            self._dead_letter(delivery, Poisoned(order_of(message), delivery.count - 1))
            return None
        return Delivered(message)

    def _read(self, delivery: Delivery) -> Message[Any]:
        message = decode_message(delivery.data)
        if message.message_id != delivery.order_id:
            raise MalformedMessage(
                f"the id of the Dramatiq message, {message.message_id}, differs from its key in the queue, {delivery.order_id[:64]!r}"
            )
        if message.queue_name != self._name:
            raise MalformedMessage(
                f"the Dramatiq message names queue {message.queue_name[:64]!r}, but was in queue {self._name!r}"
            )
        return message

    def _dead_letter(self, delivery: Delivery, dead_letter: DeadLetter) -> None:
        log.error("order_dead_lettered", order=delivery.order_id, reason=type(dead_letter).__name__)
        self._on_dead_letter(dead_letter)
        self._settle(delivery.order_id)

    def _settle(self, order_id: str) -> None:
        backoff = redis_backoff()
        while True:
            try:
                if not self._queue.settle(order_id):
                    log.info("order_finished_here_was_fetched_by_another_worker", order=order_id)
                break
            except QueueUnavailable as away:
                if self._queue.stopping.is_set():
                    log.warning("finished_order_not_removed_from_queue", order=order_id, reason=away.reason)
                    break
                self._queue.note(away)
                self._queue.stopping.wait(backoff.next())
        self._in_flight.drop(order_id)
