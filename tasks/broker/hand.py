"""What a worker has in hand: the orders it fetched and is not done with."""

import threading


class Hand:
    """A bounded set of order ids, shared by the thread that fetches and the threads that finish.

    It outlives the consumer, so that a consumer made anew neither fetches past the bound nor begins an order that
    is being carried out.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._ids: set[str] = set()
        self._changed = threading.Condition()

    def ids(self) -> tuple[str, ...]:
        with self._changed:
            return tuple(self._ids)

    def take(self, order_id: str) -> bool:
        """False if it is in hand already."""
        with self._changed:
            if order_id in self._ids:
                return False
            self._ids.add(order_id)
            return True

    def drop(self, order_id: str) -> None:
        with self._changed:
            self._ids.discard(order_id)
            self._changed.notify_all()

    def room(self, patience: float) -> int:
        """How many more may be fetched, after waiting up to `patience` seconds for at least one."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ids) < self._size, patience)
            return max(0, self._size - len(self._ids))
