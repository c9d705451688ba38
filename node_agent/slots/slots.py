"""The node's slots in memory: the newest order that each slot stores, and the locks for work on the slot.

Each slot has two locks. The *state lock* is held for moments: to compare an order with the stored one, to store an
order, and to report on it. The *work lock* is held as long as the host is being changed for the slot. The thread of a
newer order takes the state lock at once, halts the work for the older order, and then waits for the work lock; the
older order is then superseded, and nothing is reported about it. No thread holds two state locks; the work lock is
always taken before the state lock.

A repair operation holds the work lock too; it makes no report about an order, and a newer order halts it like other
work.

A caller that does not wait for a taken work lock, such as the survey, may have observed a change of the host that
happened after the running work read the host. Therefore `wake_survey` is called when that work ends.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network
from typing import Final, Literal

from events.values import NodeId, SlotId, SlotIndex, index_of, node_of, slot_of
from node_agent.aspects.gateway import NodeNetwork
from node_agent.runtime.halt import Halt
from node_agent.slots.fence import FenceEntry, FenceFiles, Refused, entry_for, is_newer_order
from node_agent.transport.progress import report_wait
from node_agent.transport.trust import proof
from tasks.orders import ApplySlice, Order, SliceNetwork, StopSlice

Admission = Literal["news", "held", "under_way"]
"""Result of the comparison of a received order with the slot's stored order: the received order is newer (`news`), both
are the same order (`held`), or both are the same order and it is being executed now (`under_way`)."""

_LOCK_POLL_SECONDS: Final = 0.05


class Slot:
    """One slot of the node, with its newest order and its locks. A new order is written to disk before it is stored in
    memory.

    `wake_survey` is called when work ends during which another caller did not get the work lock. The function must not
    block.
    """

    def __init__(self, slot_id: SlotId, files: FenceFiles, wake_survey: Callable[[], None]) -> None:
        self.slot_id = slot_id
        self._files, self._wake_survey = files, wake_survey
        self._held = files.read(slot_id)
        self._state_lock = threading.Lock()
        self._work_lock = threading.Lock()
        self._working: Halt | None = None
        self._under_repair = False
        self._wake_survey_due = False
        self._closing = False

    @property
    def held(self) -> FenceEntry | None:
        """The slot's newest order, with its outcome; None before the first order."""
        with self._state_lock:
            return self._held

    def admit(self, order: Order) -> Admission:
        """Compare an order with the slot's stored order; store it if it is newer, and halt the work for the older
        order.

        Raises `Refused`, and `OSError` if the disk fails. In both cases the order is not stored.
        """
        with self._state_lock:
            if is_newer_order(self._held, order):
                self._write(entry_for(self._held, order, proof()))
                if self._working:
                    self._working.request()
                return "news"
            return "held" if self._working is None or self._under_repair else "under_way"

    @contextmanager
    def working(self, waiting: Order | None = None) -> Iterator[Halt | None]:
        """Hold the slot's work lock, and yield the halt flag of the work; None if the lock is taken or the agent stops.

        With an order `waiting`, wait for the lock, but stop waiting when that order is superseded: a superseded order
        has nothing to do and would occupy a thread of the agent.
        """
        if not self._acquired(waiting):
            yield None
            return
        try:
            yield self._begin(Halt())
        finally:
            self._end()

    @contextmanager
    def repairing(self, halt: Halt) -> Iterator[bool]:
        """Hold the slot's work lock for a repair operation. `halt` ends the repair, and also the wait for the lock.

        Yields True, or False if the agent stops. Raises `Halted`.
        """
        self._await_work_lock(halt)
        try:
            yield self._begin(halt, under_repair=True) is not None
        finally:
            self._end()

    @contextmanager
    def while_current(self, order: Order) -> Iterator[FenceEntry | None]:
        """Hold the slot's state lock, so that no newer order is stored during a report on `order`.

        Yields None if `order` is superseded already.
        """
        with self._state_lock:
            yield self._held if self._held is not None and self._held.order.token == order.token else None

    def keep(self, held: FenceEntry, *, durable: bool = True) -> None:
        """Store the changed outcome or progress of the slot's order. May be called only inside `while_current`."""
        assert self._state_lock.locked(), "the caller does not hold the slot's state lock; use while_current"
        self._write(held, durable=durable)

    def close(self) -> None:
        """Halt the work on this slot, and start no more work."""
        with self._state_lock:
            self._closing = True
            if self._working:
                self._working.request()

    def _acquired(self, waiting: Order | None) -> bool:
        if waiting is None:
            return self._acquired_at_once()
        while not self._work_lock.acquire(timeout=_LOCK_POLL_SECONDS):
            held = self.held
            if held is None or held.order.token != waiting.token:
                return False
        return True

    def _acquired_at_once(self) -> bool:
        # The end of work takes the state lock too, so it either sees this failed attempt, or the attempt succeeds.
        with self._state_lock:
            acquired = self._work_lock.acquire(blocking=False)
            self._wake_survey_due = self._wake_survey_due or not acquired
            return acquired

    def _await_work_lock(self, halt: Halt) -> None:
        if self._work_lock.acquire(blocking=False):
            return
        report_wait("slot.wait")
        while not self._work_lock.acquire(timeout=_LOCK_POLL_SECONDS):
            halt.check()

    def _begin(self, halt: Halt, *, under_repair: bool = False) -> Halt | None:
        with self._state_lock:
            if self._closing:
                return None
            self._working, self._under_repair = halt, under_repair
            return halt

    def _end(self) -> None:
        with self._state_lock:
            self._working, self._under_repair = None, False
            wake_survey_due, self._wake_survey_due = self._wake_survey_due, False
            self._work_lock.release()
        if wake_survey_due:
            self._wake_survey()

    def _write(self, held: FenceEntry, *, durable: bool = True) -> None:
        self._files.write(held, durable=durable)
        self._held = held


class Slots:
    """Configured slots of this node. Their slices are all on the same network."""

    def __init__(
        self,
        node_id: NodeId,
        network: NodeNetwork,
        indexes: Iterable[SlotIndex],
        files: FenceFiles,
        wake_survey: Callable[[], None],
    ) -> None:
        self._node_id, self._network = node_id, network
        ids = (slot_of(node_id, index) for index in indexes)
        self._slots = {slot_id: Slot(slot_id, files, wake_survey) for slot_id in ids}

    def of(self, order: Order) -> Slot:
        """Return the slot of an order. Raises `Refused` if the order is for another node, or for a slot or a network
        that this node does not have.
        """
        if order.node_id != self._node_id or node_of(order.slot_id) != self._node_id:
            raise Refused(
                "wrong_node",
                f"an order for slot {order.slot_id} of node {order.node_id} was sent to node {self._node_id}",
            )
        match order.body:
            case ApplySlice(network=wanted) | StopSlice(network=wanted) if not _is_on(self._network, wanted):
                # A slice on another bridge or address would bypass the filters of this one. A stopped slice keeps its
                # DHCP reservation, which the server of this network could not serve.
                place = (
                    f"{wanted.private_ip} on {wanted.bridge}, {wanted.subnet} with gateway {wanted.gateway}"
                )
                raise Refused(
                    "wrong_network",
                    f"the order's slice network ({place}) differs from the network of node {self._node_id}",
                )
            case _:
                pass
        try:
            return self._slots[order.slot_id]
        except KeyError:
            raise Refused(
                "wrong_node", f"node {self._node_id} has no slot with index {index_of(order.slot_id)}"
            ) from None

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots.values())

    def __len__(self) -> int:
        return len(self._slots)

    def close(self) -> None:
        """Halt the work on all slots, and start no more work."""
        for slot in self:
            slot.close()


def _is_on(own: NodeNetwork, wanted: SliceNetwork) -> bool:
    return (
        (wanted.bridge, wanted.subnet, wanted.gateway) == (own.bridge, own.subnet, own.gateway)
        and IPv4Address(wanted.private_ip) in IPv4Network(own.subnet)
        and wanted.private_ip != own.gateway
    )
