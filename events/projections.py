"""Facts about the maintenance of read models. Stream: `projection-<name>`."""

from events.facts import Fact
from events.values import Position


class ProjectionRebuildOrdered(Fact, frozen=True):
    """A rebuild was requested: the read model is filled again from the whole ledger, next to the live tables."""

    projection: str
    """Name of the read model."""


class ProjectionRebuilt(Fact, frozen=True):
    """The tables that a rebuild filled replaced the live tables."""

    projection: str
    """Name of the read model."""
    position: Position
    """Ledger position up to which the new tables contained every event when they replaced the live tables."""


class ProjectionEventSkipped(Fact, frozen=True):
    """An admin made the read model skip an event that it cannot process, now and in every rebuild."""

    projection: str
    """Name of the read model."""
    position: Position
    """Ledger position of the skipped event."""
    reason: str
    """Explanation that the admin gave."""


class ProjectionRetried(Fact, frozen=True):
    """An admin made the read model retry an event that had stopped it."""

    projection: str
    """Name of the read model."""
    position: Position
    """Ledger position of the retried event."""


ProjectionFact = ProjectionRebuildOrdered | ProjectionRebuilt | ProjectionEventSkipped | ProjectionRetried
