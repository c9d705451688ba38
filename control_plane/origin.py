"""Where a command comes from, before its moment is known."""

from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from events.envelope import Cause
from events.values import ProjectId


@dataclass(frozen=True, slots=True)
class Origin:
    """Who asks (`key:admin`), why (method, path and request id), and what it belongs to."""

    actor: str
    why: str
    correlation_id: UUID
    project: ProjectId | None = None
    trace_context: str | None = None

    def within(self, story: Cause) -> "Origin":
        """The same caller, as to what `story` began: it belongs to that story, and is on that account."""
        return replace(self, correlation_id=story.correlation_id, project=story.project)

    def at(self, now: datetime) -> Cause:
        """The cause of facts decided at `now`, the decision's own time."""
        return Cause(
            actor=self.actor,
            why=self.why,
            project=self.project,
            correlation_id=self.correlation_id,
            causation_id=None,
            trace_context=self.trace_context,
            observed_at=now,
        )
