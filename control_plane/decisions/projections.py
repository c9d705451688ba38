"""The keeping of read models: what may be ordered of one, and what its stream says is still to be done."""

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
class Kept:
    """A read model as its stream tells: events it passes over, and the order of a rebuild that is still to be done."""

    skipped: frozenset[Position] = frozenset()
    rebuild_order: Recorded[ProjectionFact] | None = None


def evolve(kept: Kept, recorded: Recorded[ProjectionFact]) -> Kept:
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


def fold(history: Iterable[Recorded[ProjectionFact]]) -> Kept:
    kept = Kept()
    for recorded in history:
        kept = evolve(kept, recorded)
    return kept


def order_rebuild(projection: str, kept: Kept) -> tuple[ProjectionFact, ...]:
    """Ordered twice, it is done once."""
    return () if kept.rebuild_order else (ProjectionRebuildOrdered(projection),)


def skip(
    projection: str, position: Position, reason: str, stopped_at: frozenset[Position]
) -> ProjectionEventSkipped:
    """Only what stops a read model may be passed over. Raises `Conflict`."""
    _refuse_unless_stopped(projection, position, stopped_at)
    return ProjectionEventSkipped(projection, position, reason)


def retry(projection: str, stopped_at: frozenset[Position]) -> tuple[ProjectionRetried, ...]:
    """Try again whatever stops the live tables or a rebuild. Raises `Conflict`."""
    if not stopped_at:
        raise Conflict(Objection("not_stopped", f"projection {projection} is not stopped"))
    return tuple(ProjectionRetried(projection, position) for position in sorted(stopped_at))


def _refuse_unless_stopped(projection: str, position: Position, stopped_at: frozenset[Position]) -> None:
    if position in stopped_at:
        return
    where = ", ".join(map(str, sorted(stopped_at)))
    state = f"stopped at position {where}" if stopped_at else "not stopped"
    raise Conflict(
        Objection("not_stopped_there", f"projection {projection} is {state}; nothing is skipped", "/position")
    )
