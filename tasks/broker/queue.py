"""The node's end of its queue: fetch, settle, put back, beat; each one script, each safe to repeat.

A job tells Redis that the worker lives, because a worker busy with a long order is not dead. Beats come three times
within the time after which silence counts as death. Fetching is a beat as well, and whoever holds nothing need not be
known to live: an idle node says nothing between two fetches, and its job does not run.
"""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, cast
from uuid import uuid4

import structlog

from tasks.broker.link import Line, QueueAddress, QueueAway, patience
from tasks.failpoints import failpoint
from tasks.scripts import BEAT, FETCH, LEAVE, PUT_BACK, SETTLE
from tasks.timetable import Timetable

_BLOCK_SECONDS: Final = 15
_BEATS_IN_TIMEOUT: Final = 3
_MOMENT_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 10.0
"""More than a beat under way takes: Redis either answers it or is given up by then."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Delivery:
    """An order's bytes as fetched; `count` is how often they were given out, this time included."""

    order_id: str
    data: bytes
    count: int


class NodeQueue:
    """One worker's dealings with its node's queue. `worker_timeout` is in seconds."""

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
        self._backoff = patience()
        self._since: float | None = None
        self._told: str | None = None
        self._held: set[str] = set()

    def fetch(self, room: int, known: Iterable[str]) -> tuple[Delivery, ...]:
        """Up to `room` waiting orders, and any held for this worker that it does not know of. Raises `QueueAway`."""
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
        """Until something waits in the queue, some seconds at most. Raises `QueueAway`.

        A move of the list's head onto itself changes nothing, needs no second key, and returns the moment there
        is a head.
        """
        waiting = self.keys.waiting
        self._waiter.call("BLMOVE", waiting, waiting, "LEFT", "LEFT", _BLOCK_SECONDS)

    def settle(self, order_id: str) -> bool:
        """Be done with an order. False: another worker has it by now. Raises `QueueAway`."""
        failpoint("queue.handled")
        settled = self._commands.run(SETTLE, self.keys, self.worker_id, order_id) == 1
        failpoint("queue.settled")
        self._held.discard(order_id)
        return settled

    def put_back(self, order_ids: Iterable[str]) -> None:
        """Return orders that were not begun, oldest first. Raises `QueueAway`."""
        ids = list(order_ids)
        failpoint("queue.put_back.before")
        self._commands.run(PUT_BACK, self.keys, self.worker_id, *ids)
        failpoint("queue.put_back.after")
        self._held.difference_update(ids)

    def use_password(self, password: str) -> None:
        """Log in with it from now on, whenever a connection is made."""
        self._commands.use_password(password)
        self._waiter.use_password(password)

    def believe(self, ca: str | None) -> None:
        """Believe Redis by this CA from now on, whenever a connection is made."""
        self._commands.believe(ca)
        self._waiter.believe(ca)

    def stop_waiting(self) -> None:
        """Fetch nothing more; whoever waits for the queue returns at once."""
        self.stopping.set()
        self._waiter.end()

    def close(self) -> None:
        """Leave. What is still held may be given to another worker at once."""
        self.stop_waiting()
        self._beats.cancel(_CLOSE_SECONDS)
        try:
            self._commands.run(LEAVE, self.keys, self.worker_id)
        except QueueAway as away:
            log.info("queue_left_unsaid", queue=self.keys.waiting, reason=away.reason)
        self._commands.close()
        self._waiter.close()

    def note(self, away: QueueAway | None) -> None:
        """Log the queue's going and coming back, once each, and why it stays away when that changes.

        Redis ends a node's connections at each renewal of its session: what is back in a moment was not away.
        """
        if away is None:
            if self._told is not None:
                log.info("queue_back", queue=self.keys.waiting)
            self._since = self._told = None
            return
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since >= _MOMENT_SECONDS and away.reason != self._told:
            log.warning("queue_away", queue=self.keys.waiting, reason=away.reason)
            self._told = away.reason

    @property
    def _between_beats(self) -> float:
        return self._timeout / _BEATS_IN_TIMEOUT

    def _beat(self) -> float | None:
        if not self._held:
            return None
        try:
            self._commands.run(BEAT, self.keys, self.worker_id)
        except QueueAway:
            # Whoever fetches or settles logs it; sooner than a beat, or a short outage would cost the hold.
            return self._backoff.next()
        self._backoff.reset()
        return self._between_beats
