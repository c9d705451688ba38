"""Reports on their way: stamped and spooled by whoever saw something, delivered by one thread, in order.

Spooling is the promise, delivery only follows: whoever reports never waits for the network. The thread sends the
oldest batch, forgets what is acknowledged, and tries again with growing pauses while the control plane is away or
will not have us. A crash between the answer and the forgetting sends a batch twice; intake takes it once.
"""

import threading
from uuid import UUID

import structlog

from node_agent.backoff import Backoff
from node_agent.client import ControlPlane, ControlPlaneAway, ReportMissing, TurnedAway
from node_agent.clock import NodeClock
from node_agent.halt import Halt
from node_agent.spool import Spool
from tasks.failpoints import failpoint
from tasks.reading import Task, id_of
from tasks.reports import ReportBatch, ReportBody

log = structlog.get_logger(__name__)

_PATIENCE = 1.0


class Reporter:
    """`tell` from any thread; `start` once, when the node is enrolled."""

    def __init__(self, spool: Spool, clock: NodeClock) -> None:
        self._spool, self._clock = spool, clock
        self._halt = Halt()
        self._thread: threading.Thread | None = None

    def tell(self, body: ReportBody, cause: Task | None = None, *, order_id: UUID | None = None) -> None:
        """Report something, as come of `cause` where there is one. Raises `OSError` when the disk refuses."""
        report = self._spool.append(
            body,
            observed_at=self._clock.now(),
            order_id=id_of(cause) if cause else order_id,
            trace_context=cause.trace_context if cause else None,
        )
        log.info("reported", kind=body.kind, sequence=report.sequence)

    def start(self, control_plane: ControlPlane) -> None:
        self._thread = threading.Thread(
            target=self._deliver_until_halted, args=(control_plane,), name="reporter", daemon=True
        )
        self._thread.start()

    def stop(self, timeout: float) -> None:
        self._halt.ask()
        if self._thread is not None:
            self._thread.join(timeout)

    def _deliver_until_halted(self, control_plane: ControlPlane) -> None:
        backoff = Backoff()
        while not self._halt.asked:
            batch = self._spool.oldest(patience=_PATIENCE)
            if batch is None:
                continue
            try:
                self._deliver(control_plane, batch)
                backoff.reset()
            except (ControlPlaneAway, TurnedAway) as away:
                log.warning("reports_not_delivered", waiting=self._spool.waiting, reason=str(away))
                self._halt.rest(backoff.next())
            except OSError:
                # Delivered, and not written down as such: sent again after a crash, and taken once all the same.
                log.exception("delivery_not_kept", waiting=self._spool.waiting)
                self._halt.rest(backoff.next())

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

    def _begin_anew(self, reason: str) -> None:
        log.error("spool_begins_anew", reason=reason)
        self._spool.begin_anew()
