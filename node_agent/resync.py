"""What should each slot carry? Asked at the start, and again whenever the node was cut off.

The node says what each slot holds, by digest, and gets the orders of those that should hold another thing. They go
through the same fence as every order, and then to their slots' work; slots that are as they should be are neither
written nor looked at for this. What the node holds and the control plane does not know (its ledger may have been
restored) is said, and kept.

While the control plane is away the node goes on from its own disk: that is how slices come back after a reboot
without anybody's help. It then asks again until it is answered, since an order that was lost with a queue comes by
this road alone. Only a node whose fence files were never completed must wait, because it may have forgotten a newer
token than the one it is offered.

Nothing is asked before the control plane's time is known: what it wants is signed until a certain time, and by the
clock of a host that runs ahead all of it would have expired.
"""

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from node_agent.accept import Acceptance
from node_agent.client import ControlPlane, ControlPlaneAway, TurnedAway
from node_agent.clock import NodeClock
from node_agent.fence import FenceFiles
from node_agent.halt import Halt
from node_agent.trust import proved_by
from tasks.backoff import Backoff
from tasks.orders import Order
from tasks.reading import TaskRefused, read_task
from tasks.sealed import BadCopy, Unsealed
from tasks.timetable import Timetable

log = structlog.get_logger(__name__)

_LONGEST_PAUSE: Final = 5.0
Believe = Callable[[str], Unsealed]
CarryOut = Callable[[Order], None]


class Resync:
    """`begin` asks in the caller's thread, `ask_again` soon and elsewhere.

    `carry_out` gets each order that passed the fence after `begin`, and returns at once.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        acceptance: Acceptance,
        files: FenceFiles,
        believe: Believe,
        clock: NodeClock,
        *,
        timetable: Timetable,
        carry_out: CarryOut,
    ) -> None:
        self._control_plane, self._acceptance, self._files = control_plane, acceptance, files
        self._believe, self._clock, self._carry_out = believe, clock, carry_out
        self._backoff = Backoff(cap=_LONGEST_PAUSE)
        self._entry = timetable.enter(self._ask_and_carry_out, name="resync", after=None)

    def begin(self, halt: Halt) -> bool:
        """Returns when orders may be taken, and whether the control plane answered: else the disk says what to hold.

        What is due for slots is left to the caller. Raises `Halted`, `OSError`.
        """
        backoff = Backoff(cap=_LONGEST_PAUSE)
        while self._asked() is None:
            if self._files.complete:
                log.info("resync_from_disk")
                return False
            halt.wait(backoff.next())
        return True

    def ask_again(self) -> None:
        """Soon, though a fleet does not ask in step, and until it is answered.

        Asked for while a question is under way, another one follows.
        """
        self._entry.wake(self._backoff.next())

    def stop(self, timeout: float) -> None:
        self._entry.cancel(timeout)

    def _ask_and_carry_out(self) -> float | None:
        try:
            orders = self._asked()
        except OSError as error:
            log.warning("desired_state_not_kept", reason=str(error))
            orders = None
        if orders is None:
            return self._backoff.next()
        self._backoff.reset()
        for order in orders:
            self._carry_out(order)
        return None

    def _asked(self) -> Sequence[Order] | None:
        """The orders that passed the fence; None when there was no answer. Raises `OSError`."""
        if not self._clock.learned:
            log.warning("desired_state_unknown", reason="the control plane did not say what time it is")
            return None
        held = self._acceptance.held()
        try:
            desired = self._control_plane.desired_state(held)
            # All before any: an answer of which a part is not to be believed is no answer.
            orders = [(text, order_of(self._believe(text).task)) for text in desired.orders]
        except (ControlPlaneAway, TurnedAway, BadCopy, TaskRefused) as away:
            log.warning("desired_state_unknown", reason=str(away))
            return None
        if desired.unknown:
            log.error("held_is_unknown", slots=desired.unknown, count=len(desired.unknown))
        admitted = [order for text, order in orders if self._admitted(text, order)]
        self._files.mark_complete()
        log.info("resynced", held=len(held.held), wanted=len(orders), admitted=len(admitted))
        return admitted

    def _admitted(self, text: str, order: Order) -> bool:
        with proved_by(text):
            return self._acceptance.admit(order, was_sent=False) is not None


def order_of(text: bytes) -> Order:
    """Raises `TaskRefused`, for an operation too: nobody desires one for ever."""
    task = read_task(text)
    if not isinstance(task, Order):
        raise TaskRefused("malformed", f"{task.body.kind} is no desired state")
    return task
