"""Worker of a node for tests: it records the begun orders in `begun`, and `gate` blocks the handlers of its orders."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID, uuid4

import dramatiq
from redis.asyncio import Redis

from control_plane.queues.relay import Relay, Requeued
from events.values import NodeId
from node_agent.runtime.timetable import Timetable
from node_agent.transport.broker import DeadLetter, NodeBroker, NodeWorker, QueueAddress
from tasks.wire import OrderMessage, encode_order
from tests.servers.redis import Depth, queue_depth
from tests.waiting import until

WORKER_TIMEOUT = 1.5
TIMEOUT_SECONDS = 10.0


def message(order_id: UUID, order: str = "{}", actor: str = "slice.apply") -> bytes:
    return encode_order(OrderMessage(order_id, actor, order), sent_at=datetime.now(UTC))


def order_ids(count: int) -> list[UUID]:
    return [uuid4() for _ in range(count)]


def eventually(condition: Callable[[], object], within: float = TIMEOUT_SECONDS) -> None:
    """Return as soon as `condition()` is true. Raises `AssertionError` after `within` seconds."""
    until(lambda: bool(condition()), "the condition holds", within)


async def settled(control: Redis, node_id: NodeId, within: float = TIMEOUT_SECONDS) -> None:
    """Return as soon as the node's queue contains no waiting order and no order in flight. Raises `AssertionError`
    after `within` seconds.
    """
    deadline = time.monotonic() + within
    while await queue_depth(control, node_id) != Depth(0, 0):
        assert time.monotonic() < deadline, "the queue still has orders"
        await asyncio.sleep(0.005)


async def requeued(relay: Relay, node_id: NodeId, order_id: UUID, data: bytes) -> float:
    """Enqueue an order that a dead worker holds, repeatedly as the task sender does, until the order is requeued.
    Return the seconds that this took.
    """
    began = time.monotonic()
    while not isinstance(await relay.enqueue(node_id, order_id, data), Requeued):
        assert time.monotonic() - began < TIMEOUT_SECONDS, "its worker is still considered alive"
        await asyncio.sleep(0.01)
    return time.monotonic() - began


class Node:
    """Queue broker of a node with a running worker. Its handler of `slice.apply` records each order and its time, and
    waits until `gate` is set.
    """

    def __init__(
        self, address: QueueAddress, *, prefetch: int = 2, poison_after: int = 3, threads: int = 2
    ) -> None:
        self.begun: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()
        self.dead_letters: queue.SimpleQueue[DeadLetter] = queue.SimpleQueue()
        self.done = 0
        self.gate = threading.Event()
        self.gate.set()
        self._timetable = Timetable()
        self.broker = NodeBroker(
            address,
            self._timetable,
            on_dead_letter=self.dead_letters.put,
            prefetch=prefetch,
            poison_after=poison_after,
            worker_timeout=WORKER_TIMEOUT,
        )
        dramatiq.actor(broker=self.broker, actor_name="slice.apply", queue_name="slices")(self._apply)
        dramatiq.actor(broker=self.broker, actor_name="slice.fail", queue_name="slices")(self._fail)
        self.worker = NodeWorker(self.broker, threads=min(threads, prefetch))
        self.worker.start()
        self._stopped = False

    @property
    def stopping(self) -> threading.Event:
        """Event that is set once the node's worker takes no further orders."""
        return self.broker._queue.stopping

    def _apply(self, order: str) -> None:
        self.begun.put((order, time.perf_counter()))
        assert self.gate.wait(TIMEOUT_SECONDS)
        self.done += 1

    def _fail(self, order: str) -> None:
        raise OSError(f"no such bridge: {order}")

    def next_order(self) -> str:
        return self.begun.get(timeout=TIMEOUT_SECONDS)[0]

    def next_begin(self) -> float:
        """Wait until the handler of the next order begins, and return the time at which it began (`perf_counter`)."""
        return self.begun.get(timeout=TIMEOUT_SECONDS)[1]

    def next_dead_letter(self) -> DeadLetter:
        return self.dead_letters.get(timeout=TIMEOUT_SECONDS)

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.gate.set()
            self.worker.stop()
            self.broker.close()
            self._timetable.close()
