"""Decisions about the maintenance of read models: rebuild, skip and retry."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import assert_never

from control_plane.decisions.refusals import Conflict, Objection
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
    _refuse_unless_stopped(projection, position, stopped_at)
    return ProjectionEventSkipped(projection, position, reason)


def retry(projection: str, stopped_at: frozenset[Position]) -> tuple[ProjectionRetried, ...]:
    """Return facts that make a read model retry the events that stopped its live tables or its rebuild. Raises
    `Conflict` if it is not stopped.
    """
    if not stopped_at:
        raise Conflict(
            Objection("projection_not_stopped", f"read model {projection} is not stopped; nothing to retry")
        )
    return tuple(ProjectionRetried(projection, position) for position in sorted(stopped_at))


def _refuse_unless_stopped(projection: str, position: Position, stopped_at: frozenset[Position]) -> None:
    if position in stopped_at:
        return
    state = f"read model {projection} is not stopped"
    if stopped_at:
        where = ", ".join(map(str, sorted(stopped_at)))
        state = f"read model {projection} is stopped at position {where}, not at position {position}"
    raise Conflict(
        Objection(
            "not_stopped_at_position",
            f"{state}; no event was skipped",
            "/position",
        )
    )
