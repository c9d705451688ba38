"""The survey: a periodic comparison of the whole host with its desired state, which also finds changes for which no
order or event arrived.

One job reads the node and all slots, and caches its reads of the host (`host_snapshot`). If work on a slot is due, the
survey starts the slot's own work, which reads the host again, as for an order. The trigger `survey_due` starts the next
survey at once: drivers wake it when an event indicates that the host may have changed.

The pause after a survey is a multiple of its duration, which limits the load on a host that changes all the time. No
event is lost: an event that arrives during a survey or a pause starts another survey afterwards.

While no report can be spooled, the node's own network is repaired nevertheless, because guests renew their DHCP leases
through it.

Drift that a slot's own work finds is reported at once, without waiting for the next survey: the work wakes the trigger
`description_due`.
"""

import time
from collections.abc import Callable
from typing import Final

import structlog

from node_agent.host.snapshots import host_snapshot
from node_agent.runtime.halt import Halt, Halted
from node_agent.runtime.timetable import Entry, Rest, Timetable, Trigger
from node_agent.slots.accept import Acceptance
from node_agent.slots.inspection import Inspection
from node_agent.slots.slots import Slot
from node_agent.transport.gate import Gate

log = structlog.get_logger(__name__)

_PAUSE_TIMES: Final = 4.0
_LONGEST_PAUSE: Final = 1.0


class Survey:
    """Job that surveys the host every `seconds`, from `start` on.

    `reconcile_slot` starts the work on a slot if work is due, and returns at once.
    """

    def __init__(
        self,
        acceptance: Acceptance,
        inspection: Inspection,
        gate: Gate,
        reconcile_slot: Callable[[Slot], None],
        *,
        seconds: float,
        survey_due: Trigger,
        description_due: Trigger,
    ) -> None:
        self._acceptance, self._inspection, self._gate = acceptance, inspection, gate
        self._look_after = reconcile_slot
        self._seconds = seconds
        self._survey_due, self._description_due = survey_due, description_due
        self._halt = Halt()
        self._entries: tuple[Entry, ...] = ()

    def start(self, timetable: Timetable) -> None:
        survey = timetable.enter(self._run, name="survey", after=self._seconds)
        description = timetable.enter(self._describe, name="description", after=None)
        self._entries = survey, description
        self._survey_due.connect(survey)
        self._description_due.connect(description)
        # Drift that was found before the start is reported now.
        description.wake()

    def stop(self, timeout: float) -> None:
        self._halt.request()
        for entry in self._entries:
            entry.cancel(timeout)

    def survey_host(self) -> None:
        """Compare the host once with the orders of all slots.

        Raises `Halted`, and `OSError` if a report cannot be spooled.
        """
        with host_snapshot():
            found = self._inspection.prepare(self._halt)
            due, unread = self._acceptance.due()
            self._inspection.report(found, unread)
        for slot in due:
            self._look_after(slot)

    def _run(self) -> Rest:
        began = time.monotonic()
        self._survey_if_possible()
        pause = min(_PAUSE_TIMES * (time.monotonic() - began), _LONGEST_PAUSE)
        return Rest(pause, at_most=self._seconds)

    def _describe(self) -> None:
        try:
            if self._gate.room:
                self._inspection.describe()
        except OSError:
            log.exception("node_description_not_stored_on_disk")

    def _survey_if_possible(self) -> None:
        try:
            if self._gate.room:
                self.survey_host()
            else:
                with host_snapshot():
                    self._inspection.prepare(self._halt)
        except Halted:
            return
        except OSError:
            log.exception("host_survey_failed")
