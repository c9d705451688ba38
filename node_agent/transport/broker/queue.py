"""The node's operations on its queue: fetch, settle, requeue, heartbeat. Each operation is one Redis script and can be
repeated safely.

A job sends heartbeats to Redis, so that a worker that executes a long order does not count as dead. Heartbeats are sent
three times within the worker timeout. A fetch counts as a heartbeat as well, and a worker that holds no order needs no
heartbeats: an idle node sends nothing between two fetches, and its job does not run.
"""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, cast
from uuid import uuid4

import structlog

from node_agent.runtime.timetable import Timetable
from node_agent.transport.broker.link import Line, QueueAddress, QueueUnavailable, redis_backoff
from tasks.failpoints import failpoint
from tasks.scripts import BEAT, FETCH, LEAVE, REQUEUE, SETTLE

_BLOCK_SECONDS: Final = 15
_BEATS_IN_TIMEOUT: Final = 3
_OUTAGE_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 10.0
"""Maximum time in seconds that `NodeQueue.close` waits for a running heartbeat. Within this time, Redis has either
responded to the heartbeat or timed out."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A fetched order as bytes; `count` is the number of deliveries of the order, including this delivery."""

    order_id: str
    data: bytes
    count: int


class NodeQueue:
    """One worker's access to its node's queue. `worker_timeout` is in seconds."""

    def __init__(self, address: QueueAddress, timetable: Timetable, *, worker_timeout: float) -> None:
        self.keys = address.keys
        self.worker_id = uuid4().hex
        self.stopping = threading.Event()
        self._timeout = worker_timeout
        self._commands = Line(address, name=f"{address.username}-commands")
        self._waiter = Line(
            address,
            name=f"{address.username}-waiter",
            answer_seconds=_BLOCK_SECONDS + 2,
        )
        self._beats = timetable.enter(self._beat, name="queue-heartbeat", after=None, urgent=True)
        self._backoff = redis_backoff()
        self._since: float | None = None
        self._logged: str | None = None
        self._held: set[str] = set()

    def fetch(self, room: int, known: Iterable[str]) -> tuple[Delivery, ...]:
        """Fetch up to `room` waiting orders, and the orders of an earlier fetch if this worker did not receive its
        reply.

        `known` are the ids of the orders that this worker has. Raises `QueueUnavailable`.
        """
        failpoint("queue.fetch.before")
        answer = self._commands.run(FETCH, self.keys, self.worker_id, room, *known)
        given = cast(list[tuple[bytes, bytes, int]], answer)
        if given:
            failpoint("queue.fetched")
        deliveries = tuple(Delivery(order_id.decode(), data, count) for order_id, data, count in given)
        if deliveries:
            self._held.update(each.order_id for each in deliveries)
            self._beats.wake(within=self._between_beats)
        return deliveries

    def wait(self) -> None:
        """Wait until the queue has an entry, or for a few seconds. Raises `QueueUnavailable`.

        The wait is a BLMOVE of the queue's first entry to the position that it already has: it changes nothing, needs
        no second key, and returns as soon as the queue has an entry.
        """
        waiting = self.keys.waiting
        self._waiter.call("BLMOVE", waiting, waiting, "LEFT", "LEFT", _BLOCK_SECONDS)

    def settle(self, order_id: str) -> bool:
        """Remove a finished order from the queue. Return False if another worker holds the order by now.

        Raises `QueueUnavailable`.
        """
        failpoint("queue.handled")
        settled = self._commands.run(SETTLE, self.keys, self.worker_id, order_id) == 1
        failpoint("queue.settled")
        self._held.discard(order_id)
        return settled

    def requeue(self, order_ids: Iterable[str]) -> None:
        """Requeue orders of which the execution has not begun, the oldest first. Raises `QueueUnavailable`."""
        ids = list(order_ids)
        failpoint("queue.requeue.before")
        self._commands.run(REQUEUE, self.keys, self.worker_id, *ids)
        failpoint("queue.requeue.after")
        self._held.difference_update(ids)

    def use_password(self, password: str) -> None:
        """Use a new Redis password for every connection that is opened from now on."""
        self._commands.use_password(password)
        self._waiter.use_password(password)

    def trust_ca(self, ca: str | None) -> None:
        """Trust this CA for every TLS connection to Redis that is opened from now on."""
        self._commands.trust_ca(ca)
        self._waiter.trust_ca(ca)

    def stop_waiting(self) -> None:
        """Stop fetching orders; a thread that waits for the node's queue returns at once."""
        self.stopping.set()
        self._waiter.end()

    def close(self) -> None:
        """Unregister the worker from its queue. Orders that it still holds may be given to another worker at once."""
        self.stop_waiting()
        self._beats.cancel(_CLOSE_SECONDS)
        try:
            self._commands.run(LEAVE, self.keys, self.worker_id)
        except QueueUnavailable as away:
            log.info(
                "worker_unregistration_from_task_queue_failed", queue=self.keys.waiting, reason=away.reason
            )
        self._commands.close()
        self._waiter.close()

    def note(self, away: QueueUnavailable | None) -> None:
        """Log once when the node's queue becomes unavailable or available, and again when the reason changes.

        Redis closes a node's connections at each renewal of its session, so an interruption below one second is not
        logged.
        """
        if away is None:
            if self._logged is not None:
                log.info("task_queue_reachable", queue=self.keys.waiting)
            self._since = self._logged = None
            return
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since >= _OUTAGE_SECONDS and away.reason != self._logged:
            log.warning("task_queue_unreachable", queue=self.keys.waiting, reason=away.reason)
            self._logged = away.reason

    @property
    def _between_beats(self) -> float:
        return self._timeout / _BEATS_IN_TIMEOUT

    def _beat(self) -> float | None:
        if not self._held:
            return None
        try:
            self._commands.run(BEAT, self.keys, self.worker_id)
        except QueueUnavailable:
            # The next fetch or settle logs the outage. Retry sooner than the next heartbeat: otherwise a short outage
            # would let the orders go to another worker.
            return self._backoff.next()
        self._backoff.reset()
        return self._between_beats
