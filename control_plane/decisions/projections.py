"""Decisions about the maintenance of read models: rebuild, skip and retry."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import assert_never

from control_plane.decisions.refusals import Objection, refuse_if
from events.envelope import Recorded
from events.projections import (
    ProjectionEventSkipped,
    ProjectionFact,
    ProjectionRebuildOrdered,
    ProjectionRebuilt,
    ProjectionRetried,
)
from events.values import Position


@dataclass(frozen=True, slots=True)
class MaintenanceState:
    """Maintenance state of a read model: the events to skip, and the requested rebuild that is not finished yet."""

    skipped: frozenset[Position] = frozenset()
    rebuild_order: Recorded[ProjectionFact] | None = None


def evolve(kept: MaintenanceState, recorded: Recorded[ProjectionFact]) -> MaintenanceState:
    match recorded.fact:
        case ProjectionEventSkipped(position=position):
            return replace(kept, skipped=kept.skipped | {position})
        case ProjectionRebuildOrdered():
            return replace(kept, rebuild_order=recorded)
        case ProjectionRebuilt():
            return replace(kept, rebuild_order=None)
        case ProjectionRetried():
            return kept
        case _:
            assert_never(recorded.fact)


def fold(history: Iterable[Recorded[ProjectionFact]]) -> MaintenanceState:
    kept = MaintenanceState()
    for recorded in history:
        kept = evolve(kept, recorded)
    return kept


def order_rebuild(projection: str, kept: MaintenanceState) -> tuple[ProjectionFact, ...]:
    """Request a rebuild of a read model; return no facts while a requested rebuild is unfinished."""
    return () if kept.rebuild_order else (ProjectionRebuildOrdered(projection),)


def skip(
    projection: str, position: Position, reason: str, stopped_at: frozenset[Position]
) -> ProjectionEventSkipped:
    """Return the fact that makes a read model skip an event. Raises `Conflict` unless this event stopped it."""
    refuse_if(against_skipping(projection, position, stopped_at))
    return ProjectionEventSkipped(projection, position, reason)


def retry(projection: str, stopped_at: frozenset[Position]) -> tuple[ProjectionRetried, ...]:
    """Return facts that make a read model retry the events that stopped its live tables or its rebuild. Raises
    `Conflict` if it is not stopped.
    """
    refuse_if(against_retrying(projection, stopped_at))
    return tuple(ProjectionRetried(projection, position) for position in sorted(stopped_at))


def against_retrying(projection: str, stopped_at: frozenset[Position]) -> list[Objection]:
    """Return the reason why a read model cannot retry an event; an empty list if an event has stopped it."""
    if stopped_at:
        return []
    return [
        Objection(
            "projection_not_stopped", f"read model {projection} is not stopped; there is no event to retry"
        )
    ]


def against_skipping(
    projection: str, position: Position | None, stopped_at: frozenset[Position]
) -> list[Objection]:
    """Return the reason why a read model cannot skip the event at `position`; None stands for any event."""
    if position in stopped_at or (position is None and stopped_at):
        return []
    reason = f"read model {projection} is not stopped; there is no event to skip"
    if stopped_at:
        where = ", ".join(map(str, sorted(stopped_at)))
        reason = f"read model {projection} is stopped at position {where}, not at position {position}; no event was skipped"
    return [Objection("not_stopped_at_position", reason, "/position")]
