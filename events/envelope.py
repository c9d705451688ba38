"""The envelope of a fact: its actor, reason and times, and its position in the ledger (LED-5).

A `Cause` is made once for a command and shared by all facts of its append. `leads_to` makes the cause of the facts
that follow from a recorded fact, so that every event can be traced to the request that began it.
"""

from datetime import datetime
from typing import Generic, TypeVar
from uuid import UUID

import msgspec

from events.facts import Fact
from events.traces import continued
from events.values import Epoch, Position, ProjectId, StreamId

F = TypeVar("F", bound=Fact, covariant=True)


class Cause(msgspec.Struct, frozen=True, gc=False):
    """Actor, reason and time of facts that are about to be recorded.

    `actor` is the acting principal or program (`caller:alice`, `node:lab-a`, `process:allocations`), `why` the request
    id or a one-word reason, `observed_at` the time of the event (with a zone), `trace_context` a W3C `traceparent`.
    """

    actor: str
    reason: str
    correlation_id: UUID
    observed_at: datetime
    project: ProjectId | None = None
    causation_id: UUID | None = None
    trace_context: str | None = None


class Recorded(msgspec.Struct, Generic[F], frozen=True, gc=False):
    """A fact as stored in the ledger. `recorded_at` is the database's clock at append."""

    position: Position
    event_id: UUID
    stream: StreamId
    version: int
    fact: F
    cause: Cause
    recorded_at: datetime
    epoch: Epoch

    def leads_to(self, *, actor: str, reason: str, observed_at: datetime) -> Cause:
        """Return the cause for facts that `actor` records as a consequence of this fact."""
        return Cause(
            actor=actor,
            reason=reason,
            correlation_id=self.cause.correlation_id,
            observed_at=observed_at,
            project=self.cause.project,
            causation_id=self.event_id,
            trace_context=continued(self.cause.trace_context, self.event_id),
        )
