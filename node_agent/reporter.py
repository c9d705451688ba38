"""Reports on their way: stamped and spooled by whoever saw something, delivered by one job, in order.

Spooling is the promise, delivery only follows: whoever reports never waits for the network. The job sends the
oldest batch, forgets what is acknowledged, and tries again with growing pauses while the control plane is away or
refuses this node, and not before the time in `Retry-After`: a control plane that throttles the node's reports
accepts them later, in the same order. A crash between the answer and the forgetting sends a batch twice; intake takes
it once.
"""

from collections.abc import Callable
from uuid import UUID

import structlog

from node_agent.client import ControlPlane, ControlPlaneAway, ReportMissing, TurnedAway
from node_agent.clock import NodeClock
from node_agent.spool import Spool
from tasks.backoff import Backoff
from tasks.failpoints import failpoint
from tasks.reading import Task, id_of
from tasks.reports import ReportBatch, ReportBody
from tasks.timetable import Entry, Rest, Timetable

log = structlog.get_logger(__name__)


class Reporter:
    """`tell` from any thread; `start` once, when the node is enrolled.

    `forgotten` is called when one side turns out not to know of reports that were taken, `delivered` when some were.
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

    def tell(self, body: ReportBody, cause: Task | None = None, *, order_id: UUID | None = None) -> None:
        """Report something, as come of `cause` where there is one. Raises `OSError` when the disk refuses."""
        report = self._spool.append(
            body,
            observed_at=self._clock.now(),
            order_id=id_of(cause) if cause else order_id,
            trace_context=cause.trace_context if cause else None,
        )
        log.info("reported", kind=body.kind, sequence=report.sequence)
        if self._entry is not None:
            self._entry.wake()

    def start(self, control_plane: ControlPlane, timetable: Timetable) -> None:
        self._entry = timetable.enter(
            lambda: self._deliver_oldest(control_plane), name="reporter", after=None
        )
        # Only now: what was told before was told to nobody, or to this entry.
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
        except ControlPlaneAway as away:
            log.warning("reports_not_delivered", waiting=self._spool.waiting, reason=str(away))
            return Rest(max(away.retry_after, self._backoff.next()))
        except TurnedAway as away:
            log.warning("reports_not_delivered", waiting=self._spool.waiting, reason=str(away))
            return Rest(self._backoff.next())
        except OSError:
            # Delivered, and not written down as such: sent again after a crash, and taken once all the same.
            log.exception("delivery_not_kept", waiting=self._spool.waiting)
            return Rest(self._backoff.next())
        self._backoff.reset()
        return 0.0

    def _deliver(self, control_plane: ControlPlane, batch: ReportBatch) -> None:
        failpoint("agent.deliver.before")
        try:
            taken = control_plane.report(batch).sequence
        except ReportMissing as missing:
            # What is wanted was acknowledged once and is forgotten here: the other side lost its memory.
            self._begin_anew(str(missing))
            return
        failpoint("agent.deliver.after")
        if taken > batch.reports[-1].sequence:
            # The disk was restored or copied. To go on counting would have our next reports taken for old ones.
            self._begin_anew(f"reports up to {taken} were taken, and this disk never held them")
        else:
            self._spool.forget(taken)
            self._delivered()

    def _begin_anew(self, reason: str) -> None:
        log.error("spool_begins_anew", reason=reason)
        self._spool.begin_anew()
        self._forgotten()
