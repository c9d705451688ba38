"""After a start: what does each slot have to carry, and is it so?

The control plane is asked; what it wants goes through the same fence as every order. While it is away, the node goes
on from its own disk: that is how slices come back after a reboot without anybody's help. It then asks again until it is
answered, since an order that was lost with a queue comes by this road alone. Only a node whose fence files were never
completed must wait, because it may have forgotten a newer token than the one it is offered.

Nothing is asked before the control plane's time is known: what it wants is signed until a certain time, and by the
clock of a host that runs ahead all of it would have expired.
"""

import threading
from collections.abc import Callable
from typing import Literal

import structlog

from node_agent.accept import Acceptance
from node_agent.backoff import Backoff
from node_agent.client import ControlPlane, ControlPlaneAway, TurnedAway
from node_agent.clock import NodeClock
from node_agent.fence import FenceFiles
from node_agent.halt import Halt
from node_agent.trust import proved_by
from tasks.orders import Order
from tasks.reading import TaskRefused, read_task
from tasks.sealed import BadCopy, Unsealed

log = structlog.get_logger(__name__)


Believe = Callable[[str], Unsealed]


class Resync:
    """Asks once at the start, and if need be goes on asking in a thread of its own."""

    def __init__(
        self,
        control_plane: ControlPlane,
        acceptance: Acceptance,
        files: FenceFiles,
        believe: Believe,
        clock: NodeClock,
    ) -> None:
        self._control_plane, self._acceptance, self._files = control_plane, acceptance, files
        self._believe, self._clock = believe, clock
        self._halt = Halt()
        self._thread: threading.Thread | None = None

    def begin(self, halt: Halt) -> Literal["control plane", "disk"]:
        """What the node goes on from. Returns when orders may be taken; what is due for slots is left to the caller.

        Raises `Halted`, `OSError`.
        """
        backoff = Backoff(cap=5.0)
        while not self._asked():
            if self._files.complete:
                log.info("resync_from_disk")
                return "disk"
            halt.wait(backoff.next())
        return "control plane"

    def go_on_asking(self, asked: Callable[[], None]) -> None:
        """Until it is answered; `asked` is called then, when all that is wanted passed the fence."""

        def ask() -> None:
            backoff = Backoff(cap=5.0)
            while not self._halt.rest(backoff.next()):
                try:
                    if not self._asked():
                        continue
                except OSError as error:
                    log.warning("desired_state_not_kept", reason=str(error))
                else:
                    asked()
                    break

        self._thread = threading.Thread(target=ask, name="resync", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        self._halt.ask()
        if self._thread is not None:
            self._thread.join(timeout)

    def _asked(self) -> bool:
        if not self._clock.learned:
            log.warning("desired_state_unknown", reason="the control plane did not say what time it is")
            return False
        try:
            desired = self._control_plane.desired_state()
            # All before any: an answer of which a part is not to be believed is no answer.
            orders = [(text, order_of(self._believe(text).task)) for text in desired.orders]
        except (ControlPlaneAway, TurnedAway, BadCopy, TaskRefused) as away:
            log.warning("desired_state_unknown", reason=str(away))
            return False
        for text, order in orders:
            with proved_by(text):
                self._acceptance.admit(order)
        self._files.mark_complete()
        log.info("resync_from_control_plane", orders=len(orders))
        return True


def order_of(text: bytes) -> Order:
    """Raises `TaskRefused`, for an operation too: nobody desires one for ever."""
    task = read_task(text)
    if not isinstance(task, Order):
        raise TaskRefused("malformed", f"{task.body.kind} is no desired state")
    return task
