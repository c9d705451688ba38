"""The origin of a command: its caller and request. `Origin.at` adds the time at which the command decides."""

from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from events.envelope import Cause
from events.values import ProjectId


@dataclass(frozen=True, slots=True)
class Origin:
    """The caller of a command (such as `key:admin`), its request (method, path, request id), and its correlation id."""

    actor: str
    reason: str
    correlation_id: UUID
    project: ProjectId | None = None
    trace_context: str | None = None

    def within(self, cause: Cause) -> "Origin":
        """Return a copy of this origin with the correlation id and project of `cause`."""
        return replace(self, correlation_id=cause.correlation_id, project=cause.project)

    def at(self, now: datetime) -> Cause:
        """Return the cause to record with the facts that a command of this origin decides at `now`."""
        return Cause(
            actor=self.actor,
            reason=self.reason,
            project=self.project,
            correlation_id=self.correlation_id,
            causation_id=None,
            trace_context=self.trace_context,
            observed_at=now,
        )
