"""Orders in flight: orders that a worker has fetched and not settled yet."""

import threading


class InFlight:
    """A bounded set of the ids of orders in flight, shared by the threads that fetch orders and that finish orders.

    The set outlives the consumer of the queue, so that a new consumer neither fetches more orders than the bound nor
    begins an order that is already being executed.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._ids: set[str] = set()
        self._changed = threading.Condition()

    def ids(self) -> tuple[str, ...]:
        with self._changed:
            return tuple(self._ids)

    def take(self, order_id: str) -> bool:
        """Add an order to the orders in flight and return True, or return False if it is in flight already."""
        with self._changed:
            if order_id in self._ids:
                return False
            self._ids.add(order_id)
            return True

    def drop(self, order_id: str) -> None:
        with self._changed:
            self._ids.discard(order_id)
            self._changed.notify_all()

    def room(self, timeout: float) -> int:
        """Return how many more orders may be fetched, after waiting up to `timeout` seconds for at least one."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ids) < self._size, timeout)
            return max(0, self._size - len(self._ids))
