"""The survey: a periodic comparison of the whole host with its desired state, which also finds changes for which no
order or event arrived.

One job reads the node and all slots, and caches its reads of the host (`host_snapshot`). If work on a slot is due, the
survey starts the slot's own work, which reads the host again, as for an order. `wake` starts the next survey at once:
drivers call it when an event indicates that the host may have changed.

The pause after a survey is a multiple of its duration, which limits the load on a host that changes all the time. No
event is lost: an event that arrives during a survey or a pause starts another survey afterwards.

While no report can be spooled, the node's own network is repaired nevertheless, because guests renew their DHCP leases
through it.

Drift that a slot's own work finds is reported at once, without waiting for the next survey.
"""

import time
from collections.abc import Callable
from typing import Final

import structlog

from node_agent.host.snapshots import host_snapshot
from node_agent.runtime.halt import Halt, Halted
from node_agent.runtime.timetable import Entry, Rest, Timetable
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
    ) -> None:
        self._acceptance, self._inspection, self._gate = acceptance, inspection, gate
        self._look_after = reconcile_slot
        self._seconds = seconds
        self._halt = Halt()
        self._woken = False
        self._entry: Entry | None = None
        self._description_entry: Entry | None = None

    def start(self, timetable: Timetable) -> None:
        self._entry = timetable.enter(self._run, name="survey", after=self._seconds)
        self._description_entry = timetable.enter(self._describe, name="description", after=None)
        # Wake the entry only once it is set: drift that is found before is not reported otherwise.
        self._description_entry.wake()
        if self._woken:
            self._entry.wake()

    def wake(self) -> None:
        """Start the next survey at once."""
        # This sets the flag before it reads the entry, and `start` does the opposite, so no wake-up is lost.
        self._woken = True
        if self._entry is not None:
            self._entry.wake()

    def report(self) -> None:
        """Report the open drift of the node to the control plane without waiting for the next survey."""
        # Before `start` there is no entry; `start` itself reports the drift.
        if self._description_entry is not None:
            self._description_entry.wake()

    def stop(self, timeout: float) -> None:
        self._halt.request()
        for entry in (self._entry, self._description_entry):
            if entry is not None:
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
