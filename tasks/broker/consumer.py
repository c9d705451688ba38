"""What Dramatiq's consumer thread iterates over: orders fetched, checked, and handed to worker threads.

An order leaves the queue only when it is settled: after its handler returned, or after somebody was told that it
will not be carried out. The consumer never raises because Redis is away; it waits and goes on, since an exception
would make Dramatiq throw it away and pause for seconds.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from dramatiq import Message
from dramatiq.broker import Consumer, MessageProxy

from tasks.broker.hand import Hand
from tasks.broker.link import QueueAway, patience
from tasks.broker.queue import Delivery, NodeQueue
from tasks.wire import MalformedMessage, OrderMessage, decode_message, order_of

_ROOM_SECONDS: Final = 1.0
_STOPPING_SECONDS: Final = 0.02

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Poisoned:
    """An order that was given out `deliveries` times and never settled: its workers died of it, or with it."""

    message: OrderMessage
    deliveries: int


@dataclass(frozen=True, slots=True)
class Failed:
    """An order whose handler raised, or that no handler listens to."""

    message: OrderMessage
    error: BaseException


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Bytes under `key` in the queue that are no order."""

    key: str
    reason: str


class GivenBack(Exception):
    """Raised by a handler that gives its order back to the queue: it cannot be begun now, and is to count as never
    fetched.
    """


GivenUp = Poisoned | Failed | Unreadable
OnGivenUp = Callable[[GivenUp], None]


class Delivered(MessageProxy):
    """A message in the hands of a worker thread; it keeps why its handler failed, until it is settled."""

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
    """Iterates over one node's orders for ever; yields None when there was none for a while."""

    def __init__(
        self, queue: NodeQueue, hand: Hand, *, name: str, poison_after: int, on_given_up: OnGivenUp
    ) -> None:
        self._queue = queue
        self._hand = hand
        self._name = name
        self._poison_after = poison_after
        self._on_given_up = on_given_up
        self._fetched: deque[Delivery] = deque()
        self._backoff = patience()

    def __next__(self) -> MessageProxy | None:
        if not self._fetched:
            self._fetched.extend(self._fetch())
        while self._fetched:
            delivered = self._accept(self._fetched.popleft())
            if delivered is not None:
                return delivered
        return None

    def ack(self, message: MessageProxy) -> None:
        """The handler returned."""
        self._settle(message.message_id)

    def nack(self, message: MessageProxy) -> None:
        """The handler raised, or there is none. Told first, settled after: a crash between tells twice."""
        assert isinstance(message, Delivered)  # all that this consumer yields
        error = message.error or RuntimeError("failed without an exception")
        if isinstance(error, GivenBack):
            self._put_back((message.message_id,))
            self._hand.drop(message.message_id)
            return
        self._on_given_up(Failed(message.order, error))
        self._settle(message.message_id)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Called at shutdown with what was not begun, if anything, and before each close with nothing.

        What was fetched and not even looked at goes back behind it.
        """
        ids = [message.message_id for message in messages]
        self._put_back([*ids, *(delivery.order_id for delivery in self._fetched)])
        self._fetched.clear()
        for order_id in ids:
            self._hand.drop(order_id)

    def _put_back(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        try:
            self._queue.put_back(ids)
        except QueueAway as away:
            # They stay held by this worker, which is about to be dead: the sweeper's script returns them.
            log.warning("orders_not_put_back", orders=ids, reason=away.reason)

    def _fetch(self) -> tuple[Delivery, ...]:
        if self._queue.stopping.is_set():
            threading.Event().wait(_STOPPING_SECONDS)
            return ()
        room = self._hand.room(_ROOM_SECONDS)
        if not room:
            return ()
        try:
            deliveries = self._queue.fetch(room, self._hand.ids())
            # Redis answers: a wait that is broken off, as at each renewal of the node's session, is no outage that
            # lasts.
            self._backoff.reset()
            if not deliveries:
                self._queue.wait()
        except QueueAway as away:
            self._pause(away)
            return ()
        self._queue.note(None)
        return deliveries

    def _pause(self, away: QueueAway) -> None:
        if not self._queue.stopping.is_set():  # a waiter broken off by us is no news
            self._queue.note(away)
            self._queue.stopping.wait(self._backoff.next())

    def _accept(self, delivery: Delivery) -> Delivered | None:
        if not self._hand.take(delivery.order_id):
            # Redis lost the hold and the order was queued anew while it is being carried out here. It is held for
            # us again now, and the first run settles both.
            log.info("order_already_in_hand", order=delivery.order_id)
            return None
        try:
            message = self._read(delivery)
        except MalformedMessage as malformed:
            self._give_up(delivery, Unreadable(delivery.order_id, malformed.reason))
            return None
        if delivery.count > self._poison_after:
            self._give_up(delivery, Poisoned(order_of(message), delivery.count - 1))
            return None
        return Delivered(message)

    def _read(self, delivery: Delivery) -> Message[Any]:
        message = decode_message(delivery.data)
        if message.message_id != delivery.order_id:
            raise MalformedMessage("its id is not the one it is queued under")
        if message.queue_name != self._name:
            raise MalformedMessage("it names another queue")
        return message

    def _give_up(self, delivery: Delivery, given_up: GivenUp) -> None:
        log.error("order_given_up", order=delivery.order_id, why=type(given_up).__name__)
        self._on_given_up(given_up)
        self._settle(delivery.order_id)

    def _settle(self, order_id: str) -> None:
        backoff = patience()
        while True:
            try:
                if not self._queue.settle(order_id):
                    log.info("order_settled_elsewhere", order=order_id)
                break
            except QueueAway as away:
                if self._queue.stopping.is_set():
                    log.warning("order_not_settled", order=order_id, reason=away.reason)
                    break
                self._queue.note(away)
                self._queue.stopping.wait(backoff.next())
        self._hand.drop(order_id)
