"""The node's slots in memory: what each holds, and who works on it.

Two locks a slot. The *door* is held for moments: to judge an order against what is held, to write what is held,
and to speak for it. *Work* is held as long as the host is being changed for the slot. A newer order passes the
door at once, halts the older one's work, and then waits for work; the older one finds itself superseded at the
door and says nothing. Doors are never taken while another door is held; work is always taken before the door.

An operation that mends owns the work too; it speaks for no order, and a newer order halts it like any work.

Who finds the slot worked on and does not wait has seen something that the work may not have looked at any more. So when
the work ends, it is said that somebody was turned away.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network
from typing import Final, Literal

from events.values import NodeId, SlotId, SlotIndex, index_of, node_of, slot_of
from node_agent.fence import FenceFiles, Held, Refused, is_news, taken_up
from node_agent.gateway import NodeNetwork
from node_agent.halt import Halt
from node_agent.progress import tell_wait
from node_agent.trust import proof
from tasks.orders import ApplySlice, Order, SliceNetwork, StopSlice

Admission = Literal["news", "held", "under_way"]
"""What an order was to a slot: newer than what it holds, or just that; `under_way` while it is being carried out."""

_LOOK_UP_SECONDS: Final = 0.05


class Slot:
    """One slot. Everything it holds is on disk before it is here.

    `look_again` hears when work has ended that others were turned away from, and must return at once.
    """

    def __init__(self, slot_id: SlotId, files: FenceFiles, look_again: Callable[[], None]) -> None:
        self.slot_id = slot_id
        self._files, self._look_again = files, look_again
        self._held = files.read(slot_id)
        self._door = threading.Lock()
        self._work = threading.Lock()
        self._working: Halt | None = None
        self._is_mended = False
        self._turned_away = False
        self._closing = False

    @property
    def held(self) -> Held | None:
        with self._door:
            return self._held

    def admit(self, order: Order) -> Admission:
        """Pass the fence, and halt what is done for an older order.

        Raises `Refused`, and `OSError` when the disk does; then nothing was admitted.
        """
        with self._door:
            if is_news(self._held, order):
                self._write(taken_up(self._held, order, proof()))
                if self._working:
                    self._working.ask()
                return "news"
            return "held" if self._working is None or self._is_mended else "under_way"

    @contextmanager
    def working(self, waiting: Order | None = None) -> Iterator[Halt | None]:
        """Own the slot's host state meanwhile. None: somebody else does, or the agent ends.

        `waiting` waits until it can be had, as long as no newer order passed the door: of all that wait only the
        newest still has something to do, and each of the others would keep a thread of the agent.
        """
        if not self._acquired(waiting):
            yield None
            return
        try:
            yield self._begin(Halt())
        finally:
            self._end()

    @contextmanager
    def mending(self, halt: Halt) -> Iterator[bool]:
        """Own the slot's host state for an operation that can be halted by `halt`, while waiting for it too.

        False: the agent ends. Raises `Halted`.
        """
        self._await_work(halt)
        try:
            yield self._begin(halt, is_mended=True) is not None
        finally:
            self._end()

    @contextmanager
    def speaking_for(self, order: Order) -> Iterator[Held | None]:
        """Hold the door: what is said meanwhile is said before any newer order passes. None: superseded."""
        with self._door:
            yield self._held if self._held is not None and self._held.order.token == order.token else None

    def keep(self, held: Held, *, durable: bool = True) -> None:
        """Write down what became of the held order. Only inside `speaking_for`."""
        assert self._door.locked(), "a newer order could be overwritten"
        self._write(held, durable=durable)

    def close(self) -> None:
        """Halt the work, and begin none any more."""
        with self._door:
            self._closing = True
            if self._working:
                self._working.ask()

    def _acquired(self, waiting: Order | None) -> bool:
        if waiting is None:
            return self._acquired_at_once()
        while not self._work.acquire(timeout=_LOOK_UP_SECONDS):
            held = self.held
            if held is None or held.order.token != waiting.token:
                return False
        return True

    def _acquired_at_once(self) -> bool:
        # Behind the door, as its end: either that sees who was turned away, or nobody is.
        with self._door:
            is_ours = self._work.acquire(blocking=False)
            self._turned_away = self._turned_away or not is_ours
            return is_ours

    def _await_work(self, halt: Halt) -> None:
        if self._work.acquire(blocking=False):
            return
        tell_wait("slot.wait")
        while not self._work.acquire(timeout=_LOOK_UP_SECONDS):
            halt.check()

    def _begin(self, halt: Halt, *, is_mended: bool = False) -> Halt | None:
        with self._door:
            if self._closing:
                return None
            self._working, self._is_mended = halt, is_mended
            return halt

    def _end(self) -> None:
        with self._door:
            self._working, self._is_mended = None, False
            turned_away, self._turned_away = self._turned_away, False
            self._work.release()
        if turned_away:
            self._look_again()

    def _write(self, held: Held, *, durable: bool = True) -> None:
        self._files.write(held, durable=durable)
        self._held = held


class Slots:
    """The slots this node was configured with, on the one network that it guards."""

    def __init__(
        self,
        node_id: NodeId,
        network: NodeNetwork,
        indexes: Iterable[SlotIndex],
        files: FenceFiles,
        look_again: Callable[[], None],
    ) -> None:
        self._node_id, self._network = node_id, network
        ids = (slot_of(node_id, index) for index in indexes)
        self._slots = {slot_id: Slot(slot_id, files, look_again) for slot_id in ids}

    def of(self, order: Order) -> Slot:
        """The slot that an order is for. Raises `Refused` when that is not here."""
        if order.node_id != self._node_id or node_of(order.slot_id) != self._node_id:
            raise Refused(
                "wrong_node", f"order for {order.slot_id} on {order.node_id} came to {self._node_id}"
            )
        match order.body:
            case ApplySlice(network=wanted) | StopSlice(network=wanted) if not _is_on(self._network, wanted):
                # A slice on another bridge or address would be past everything that guards this one; and one that is
                # off keeps its reservation, which the server of this network could not serve.
                place = f"{wanted.private_ip} on {wanted.bridge}, {wanted.subnet} behind {wanted.gateway}"
                raise Refused("wrong_network", f"{place}, is not on the network of {self._node_id}")
            case _:
                pass
        try:
            return self._slots[order.slot_id]
        except KeyError:
            raise Refused("wrong_node", f"{self._node_id} has no slot {index_of(order.slot_id)}") from None

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots.values())

    def __len__(self) -> int:
        return len(self._slots)

    def close(self) -> None:
        for slot in self:
            slot.close()


def _is_on(own: NodeNetwork, wanted: SliceNetwork) -> bool:
    return (
        (wanted.bridge, wanted.subnet, wanted.gateway) == (own.bridge, own.subnet, own.gateway)
        and IPv4Address(wanted.private_ip) in IPv4Network(own.subnet)
        and wanted.private_ip != own.gateway
    )
