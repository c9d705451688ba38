"""The periodic full look: the backstop behind every order and every event.

One thread looks at the node and at all slots, sharing what it reads (`one_look`); only a slot where something is
due is handed to the pool, where it goes the same road as an order, with a look of its own. `wake` makes the next
look come now: a driver calls it when it sees something end.
"""

import threading
from collections.abc import Callable

import structlog

from node_agent.accept import Acceptance
from node_agent.gate import Gate
from node_agent.halt import Halt, Halted
from node_agent.inspection import Inspection
from node_agent.looks import one_look
from node_agent.slices import HostUnreadable
from node_agent.slots import Slot

log = structlog.get_logger(__name__)


class Survey:
    """Looks every `seconds`, from `start` on. `look_after` takes a slot where something is due, and returns at once."""

    def __init__(
        self,
        acceptance: Acceptance,
        inspection: Inspection,
        gate: Gate,
        look_after: Callable[[Slot], None],
        *,
        seconds: float,
    ) -> None:
        self._acceptance, self._inspection, self._gate = acceptance, inspection, gate
        self._look_after = look_after
        self._seconds = seconds
        self._halt = Halt()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._look_until_halted, name="survey", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self, timeout: float) -> None:
        self._halt.ask()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def look(self) -> None:
        """Raises `Halted`, and `OSError` when the disk refuses a report."""
        with one_look():
            self._inspection.inspect(self._halt)
            due = [slot for slot in self._acceptance.slots if self._is_due(slot)]
        for slot in due:
            self._look_after(slot)

    def _is_due(self, slot: Slot) -> bool:
        try:
            return self._acceptance.is_due(slot)
        except HostUnreadable as unreadable:
            log.warning("slot_unreadable", slot_id=slot.slot_id, reason=str(unreadable))
            return False

    def _look_until_halted(self) -> None:
        while not self._halt.asked:
            self._woken.wait(self._seconds)
            self._woken.clear()
            if self._gate.room:
                self._look_once()

    def _look_once(self) -> None:
        try:
            self.look()
        except Halted:
            return
        except OSError:
            log.exception("survey_failed")
