"""The periodic full look: the backstop behind every order and every event.

One job looks at the node and at all slots, sharing what it reads (`one_look`); only a slot where something is
due is handed on, and goes the same road as an order, with a look of its own. `wake` makes the next look come now:
drivers call it when they hear that something may have changed.

Between two looks there is a pause of some times as long as the last one took, so that a host on which things change
all the time is looked at as often as it can afford, and no hint is lost: one that comes meanwhile waits.

While nothing can be reported, the node's own part is made good all the same: guests renew their leases by it.

What a slot's own work finds open is said at once, and not at the end of that pause: it is known by then.
"""

import time
from collections.abc import Callable
from typing import Final

import structlog

from node_agent.accept import Acceptance
from node_agent.gate import Gate
from node_agent.halt import Halt, Halted
from node_agent.inspection import Inspection
from node_agent.looks import one_look
from node_agent.slots import Slot
from tasks.timetable import Entry, Rest, Timetable

log = structlog.get_logger(__name__)

_PAUSE_TIMES: Final = 4.0
_LONGEST_PAUSE: Final = 1.0


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
        self._telling: Entry | None = None

    def start(self, timetable: Timetable) -> None:
        self._entry = timetable.enter(self._look_again, name="survey", after=self._seconds)
        self._telling = timetable.enter(self._tell, name="description", after=None)
        # Not at its entry, or what comes up between its run and this line would be told to nobody.
        self._telling.wake()
        if self._woken:
            self._entry.wake()

    def wake(self) -> None:
        # In this order, and the other way round in `start`: one of the two sees what the other did.
        self._woken = True
        if self._entry is not None:
            self._entry.wake()

    def tell(self) -> None:
        """Say what is open now."""
        # Before the start nobody hears; the start says it.
        if self._telling is not None:
            self._telling.wake()

    def stop(self, timeout: float) -> None:
        self._halt.ask()
        for entry in (self._entry, self._telling):
            if entry is not None:
                entry.cancel(timeout)

    def look(self) -> None:
        """Raises `Halted`, and `OSError` when the disk refuses a report."""
        with one_look():
            found = self._inspection.prepare(self._halt)
            due, unread = self._acceptance.due()
            self._inspection.tell(found, unread)
        for slot in due:
            self._look_after(slot)

    def _look_again(self) -> Rest:
        began = time.monotonic()
        self._look_once()
        pause = min(_PAUSE_TIMES * (time.monotonic() - began), _LONGEST_PAUSE)
        return Rest(pause, at_most=self._seconds)

    def _tell(self) -> None:
        try:
            if self._gate.room:
                self._inspection.describe()
        except OSError:
            log.exception("description_failed")

    def _look_once(self) -> None:
        try:
            if self._gate.room:
                self.look()
            else:
                with one_look():
                    self._inspection.prepare(self._halt)
        except Halted:
            return
        except OSError:
            log.exception("survey_failed")
