"""A node's worker as a test sees it: orders come out of `handled`, and `gate` holds handlers back."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID, uuid4

import dramatiq
from redis.asyncio import Redis

from control_plane.relay import Relay, Requeued
from events.values import NodeId
from tasks.broker import GivenUp, NodeBroker, NodeWorker, QueueAddress
from tasks.timetable import Timetable
from tasks.wire import OrderMessage, encode_order
from tests.servers.redis import Depth, queue_depth
from tests.waiting import until

WORKER_TIMEOUT = 1.5
PATIENCE = 10.0


def message(order_id: UUID, order: str = "{}", actor: str = "slice.apply") -> bytes:
    return encode_order(OrderMessage(order_id, actor, order), sent_at=datetime.now(UTC))


def order_ids(count: int) -> list[UUID]:
    return [uuid4() for _ in range(count)]


def eventually(true: Callable[[], object], within: float = PATIENCE) -> None:
    """Return as soon as `true()` is; fail after `within` seconds."""
    until(lambda: bool(true()), "it is so", within)


async def settled(control: Redis, node_id: NodeId, within: float = PATIENCE) -> None:
    """Return as soon as the node's queue has nothing waiting and nothing in flight."""
    deadline = time.monotonic() + within
    while await queue_depth(control, node_id) != Depth(0, 0):
        assert time.monotonic() < deadline, "orders are left in the queue"
        await asyncio.sleep(0.005)


async def requeued(relay: Relay, node_id: NodeId, order_id: UUID, data: bytes) -> float:
    """Ask after an order, as the sweeper does, until it is back on the queue; the seconds that took."""
    began = time.monotonic()
    while not isinstance(await relay.enqueue(node_id, order_id, data), Requeued):
        assert time.monotonic() - began < PATIENCE, "its worker is still taken for alive"
        await asyncio.sleep(0.01)
    return time.monotonic() - began


class Node:
    """A broker and a running worker whose `slice.apply` says what it got, and when, and waits at the gate."""

    def __init__(
        self, address: QueueAddress, *, prefetch: int = 2, poison_after: int = 3, threads: int = 2
    ) -> None:
        self.begun: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()
        self.given_up: queue.SimpleQueue[GivenUp] = queue.SimpleQueue()
        self.done = 0
        self.gate = threading.Event()
        self.gate.set()
        self._timetable = Timetable()
        self.broker = NodeBroker(
            address,
            self._timetable,
            on_given_up=self.given_up.put,
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
        """Set once no further order is taken."""
        return self.broker._queue.stopping

    def _apply(self, order: str) -> None:
        self.begun.put((order, time.perf_counter()))
        assert self.gate.wait(PATIENCE)
        self.done += 1

    def _fail(self, order: str) -> None:
        raise OSError(f"no such bridge: {order}")

    def next_order(self) -> str:
        return self.begun.get(timeout=PATIENCE)[0]

    def next_begin(self) -> float:
        """The moment (`perf_counter`) at which the next handler began."""
        return self.begun.get(timeout=PATIENCE)[1]

    def next_given_up(self) -> GivenUp:
        return self.given_up.get(timeout=PATIENCE)

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.gate.set()
            self.worker.stop()
            self.broker.close()
            self._timetable.close()
