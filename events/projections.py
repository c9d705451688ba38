"""Facts about read models, as their keepers ordered them. Stream: `projection-<name>`."""

from events.facts import Fact
from events.values import Position


class ProjectionRebuildOrdered(Fact, frozen=True):
    """Somebody wants the read model filled anew from the whole log, beside the live one."""

    projection: str
    """Name of the read model."""


class ProjectionRebuilt(Fact, frozen=True):
    """The tables that a rebuild filled took the place of the live ones."""

    projection: str
    """Name of the read model."""
    position: Position
    """Everything up to here stood in them at that moment."""


class ProjectionEventSkipped(Fact, frozen=True):
    """Somebody let the read model pass over an event that it cannot deal with, now and in every rebuild."""

    projection: str
    """Name of the read model."""
    position: Position
    """Of the event that is passed over."""
    reason: str
    """What was said for skipping it."""


class ProjectionRetried(Fact, frozen=True):
    """Somebody had the read model try again an event that had stopped it."""

    projection: str
    """Name of the read model."""
    position: Position
    """Of the event that is tried again."""


ProjectionFact = ProjectionRebuildOrdered | ProjectionRebuilt | ProjectionEventSkipped | ProjectionRetried
