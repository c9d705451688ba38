"""Fetching the desired state of all slots: at the start, and again after the node was disconnected.

The node sends a digest of each slot's stored order, and receives an order for each slot for which the control plane has
a different order. The received orders are compared with the stored orders, like every order, and are then executed; the
other slots are neither written nor inspected. If the control plane has no record of a stored order (its ledger may have
been restored), the node logs that and keeps the order.

While the control plane is unreachable, the node continues with the orders on its own disk: this restores slices after a
reboot without outside help. It then repeats the request until it gets a response, because this is the only way to
recover an order that was lost with the data of a queue. Only a node with an incomplete set of fence files must wait,
because it may have lost a newer token than that of an order in its queue.

No request is sent before the control plane's time is known: signed orders expire, and a host clock that is fast
would make all of them appear expired.
"""

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from node_agent.runtime.backoff import Backoff
from node_agent.runtime.clock import NodeClock
from node_agent.runtime.halt import Halt
from node_agent.runtime.timetable import Timetable
from node_agent.slots.accept import Acceptance
from node_agent.slots.fence import FenceFiles
from node_agent.transport.client import ControlPlane, ControlPlaneUnavailable, RequestRejected
from node_agent.transport.trust import proved_by
from tasks.orders import Order
from tasks.reading import TaskRefused, read_task
from tasks.sealed import BadCopy, Unsealed

log = structlog.get_logger(__name__)

_LONGEST_PAUSE: Final = 5.0
Verify = Callable[[str], Unsealed]
CarryOut = Callable[[Order], None]


class Resync:
    """Fetcher of the desired state. `begin` works in the caller's thread, `ask_again` in a thread of the timetable.

    `begin` only stores the received orders. After `ask_again`, `carry_out` is called with each order that was stored;
    `carry_out` must start the work and return at once.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        acceptance: Acceptance,
        files: FenceFiles,
        verify: Verify,
        clock: NodeClock,
        *,
        timetable: Timetable,
        carry_out: CarryOut,
    ) -> None:
        self._control_plane, self._acceptance, self._files = control_plane, acceptance, files
        self._verify, self._clock, self._carry_out = verify, clock, carry_out
        self._backoff = Backoff(cap=_LONGEST_PAUSE)
        self._entry = timetable.enter(self._fetch_and_carry_out, name="resync", after=None)

    def begin(self, halt: Halt) -> bool:
        """Fetch the desired state, and wait until orders may be accepted.

        Return whether the control plane answered; if not, the orders stored on disk are used.

        The caller starts the work that is due for the slots. Raises `Halted`, `OSError`.
        """
        backoff = Backoff(cap=_LONGEST_PAUSE)
        while self._fetched() is None:
            if self._files.complete:
                log.info("agent_starts_with_stored_desired_state")
                return False
            halt.wait(backoff.next())
        return True

    def ask_again(self) -> None:
        """Request the desired state again after a random delay, and repeat this until there is a response.

        If a request is running, another request follows it.
        """
        self._entry.wake(self._backoff.next())

    def stop(self, timeout: float) -> None:
        self._entry.cancel(timeout)

    def _fetch_and_carry_out(self) -> float | None:
        try:
            orders = self._fetched()
        except OSError as error:
            log.warning("desired_state_not_stored_on_disk", reason=str(error))
            orders = None
        if orders is None:
            return self._backoff.next()
        self._backoff.reset()
        for order in orders:
            self._carry_out(order)
        return None

    def _fetched(self) -> Sequence[Order] | None:
        """Request the desired state. Return the received orders that were stored to be executed, or None without a
        valid response.

        Raises `OSError`.
        """
        if not self._clock.is_synchronized:
            log.warning(
                "desired_state_not_fetched", reason="the agent has not received the control plane's time yet"
            )
            return None
        held = self._acceptance.held()
        try:
            desired = self._control_plane.desired_state(held)
            # Verify all orders before admitting any: a response with one invalid order is rejected as a whole.
            orders = [(text, order_of(self._verify(text).task)) for text in desired.orders]
        except (ControlPlaneUnavailable, RequestRejected, BadCopy, TaskRefused) as away:
            log.warning("desired_state_not_fetched", reason=str(away))
            return None
        if desired.unknown:
            log.error(
                "slot_orders_unknown_to_control_plane", slots=desired.unknown, count=len(desired.unknown)
            )
        admitted = [order for text, order in orders if self._admitted(text, order)]
        self._files.mark_complete()
        log.info(
            "desired_state_fetched",
            orders_held_by_node=len(held.held),
            orders_received=len(orders),
            orders_admitted=len(admitted),
        )
        return admitted

    def _admitted(self, text: str, order: Order) -> bool:
        with proved_by(text):
            return self._acceptance.admit(order, was_sent=False) is not None


def order_of(text: bytes) -> Order:
    """Return the order in a signed task. Raises `TaskRefused`, also for an operation, which is never desired state."""
    task = read_task(text)
    if not isinstance(task, Order):
        raise TaskRefused(
            "malformed",
            f"the task of kind {task.body.kind} is an operation, not an order with a desired state",
        )
    return task
