"""Delivery of reports: any thread can add a report to the spool on disk, and one job delivers all reports in order.

A spooled report is never lost, so a thread that reports does not wait for the network. The job sends the oldest batch
and deletes the reports that the control plane acknowledged. While the control plane is unreachable or refuses this
node, the job retries with growing pauses, and not before the time in `Retry-After`: a control plane that throttles
reports accepts them later, in the same order. After a crash between the acknowledgement and the deletion, the node
sends the batch twice, and the control plane records it once.
"""

from collections.abc import Callable
from uuid import UUID

import structlog

from events.traces import continued
from node_agent.runtime.backoff import Backoff
from node_agent.runtime.clock import NodeClock
from node_agent.runtime.timetable import Entry, Rest, Timetable
from node_agent.transport.client import ControlPlane, ControlPlaneUnavailable, ReportMissing, RequestRejected
from node_agent.transport.spool import Spool
from tasks.failpoints import failpoint
from tasks.reading import Task, id_of
from tasks.reports import ReportBatch, ReportBody

log = structlog.get_logger(__name__)


class Reporter:
    """Sender of a node's reports. Any thread may report; call `start` once, when the node is enrolled.

    `forgotten` is called if the control plane or this node's disk has lost reports that the control plane had accepted;
    `delivered` is called after each accepted batch.
    """

    def __init__(
        self,
        spool: Spool,
        clock: NodeClock,
        forgotten: Callable[[], None] = lambda: None,
        delivered: Callable[[], None] = lambda: None,
    ) -> None:
        self._spool, self._clock, self._forgotten = spool, clock, forgotten
        self._delivered = delivered
        self._backoff = Backoff()
        self._entry: Entry | None = None

    def report(self, body: ReportBody, cause: Task | None = None, *, order_id: UUID | None = None) -> None:
        """Spool a report for delivery; the task `cause` led to the report. Raises `OSError` if the disk fails."""
        report = self._spool.append(
            body,
            observed_at=self._clock.now(),
            order_id=id_of(cause) if cause else order_id,
            trace_context=continued(cause.trace_context, id_of(cause)) if cause else None,
        )
        log.info("report_spooled", report_kind=body.kind, sequence=report.sequence)
        if self._entry is not None:
            self._entry.wake()

    def start(self, control_plane: ControlPlane, timetable: Timetable) -> None:
        self._entry = timetable.enter(
            lambda: self._deliver_oldest(control_plane), name="reporter", after=None
        )
        # Wake the job once the entry is set, for reports that were spooled before.
        self._entry.wake()

    def stop(self, timeout: float) -> None:
        if self._entry is not None:
            self._entry.cancel(timeout)

    def _deliver_oldest(self, control_plane: ControlPlane) -> float | Rest | None:
        batch = self._spool.oldest()
        if batch is None:
            return None
        try:
            self._deliver(control_plane, batch)
        except ControlPlaneUnavailable as away:
            log.warning(
                "reports_not_delivered_to_control_plane",
                undelivered_reports=self._spool.waiting,
                reason=str(away),
            )
            return Rest(max(away.retry_after, self._backoff.next()))
        except RequestRejected as away:
            log.warning(
                "reports_not_delivered_to_control_plane",
                undelivered_reports=self._spool.waiting,
                reason=str(away),
            )
            return Rest(self._backoff.next())
        except OSError:
            # The batch was delivered, but that is not stored: it is sent again after a crash, and accepted only once.
            log.exception("delivery_of_reports_not_recorded_on_disk", undelivered_reports=self._spool.waiting)
            return Rest(self._backoff.next())
        self._backoff.reset()
        return 0.0

    def _deliver(self, control_plane: ControlPlane, batch: ReportBatch) -> None:
        failpoint("agent.deliver.before")
        try:
            taken = control_plane.report(batch).sequence
        except ReportMissing as missing:
            # The missing reports were acknowledged once and are deleted here: the control plane has lost data.
            self._start_new_incarnation(str(missing))
            return
        failpoint("agent.deliver.after")
        if taken > batch.reports[-1].sequence:
            # The disk was restored or copied. With continued numbering, the next reports would be taken for old ones.
            self._start_new_incarnation(
                f"the control plane accepted reports up to sequence {taken}, but this disk never stored such reports"
            )
        else:
            self._spool.forget(taken)
            self._delivered()

    def _start_new_incarnation(self, reason: str) -> None:
        log.error("report_spool_numbering_restarted", reason=reason)
        self._spool.start_new_incarnation()
        self._forgotten()
