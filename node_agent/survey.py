"""The periodic full look: the backstop behind every order and every event.

One job looks at the node and at all slots, sharing what it reads (`one_look`); only a slot where something is
due is handed on, and goes the same road as an order, with a look of its own. `wake` makes the next look come now: a
driver calls it when it sees something end.
"""

from collections.abc import Callable

import structlog

from node_agent.accept import Acceptance
from node_agent.gate import Gate
from node_agent.halt import Halt, Halted
from node_agent.inspection import Inspection
from node_agent.looks import one_look
from node_agent.slots import Slot
from tasks.timetable import Entry, Timetable

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
        self._woken = False
        self._entry: Entry | None = None

    def start(self, timetable: Timetable) -> None:
        self._entry = timetable.enter(self._look_again, name="survey", after=self._seconds)
        if self._woken:
            self._entry.wake()

    def wake(self) -> None:
        # In this order, and the other way round in `start`: one of the two sees what the other did.
        self._woken = True
        if self._entry is not None:
            self._entry.wake()

    def stop(self, timeout: float) -> None:
        self._halt.ask()
        if self._entry is not None:
            self._entry.cancel(timeout)

    def look(self) -> None:
        """Raises `Halted`, and `OSError` when the disk refuses a report."""
        with one_look():
            self._inspection.inspect(self._halt)
            due = self._acceptance.due()
        for slot in due:
            self._look_after(slot)

    def _look_again(self) -> float:
        if self._gate.room:
            self._look_once()
        return self._seconds

    def _look_once(self) -> None:
        try:
            self.look()
        except Halted:
            return
        except OSError:
            log.exception("survey_failed")
