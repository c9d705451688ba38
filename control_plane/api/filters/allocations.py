"""Filters of the list of allocations: by state and by label.

An index finds the allocations with a label. The state of an allocation is computed from its events and is not a column,
so a list that is filtered by state omits those that do not match (`scanning`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query

from control_plane.api.views.allocation_views import AllocationView
from control_plane.decisions.allocation_states import StateName
from control_plane.decisions.refusals import Malformed, Objection

States = Annotated[
    list[StateName],
    Query(
        default_factory=list,
        alias="state",
        max_length=10,
        description="List only allocations in these states.",
    ),
]
Labels = Annotated[
    list[Annotated[str, Query(max_length=400)]],
    Query(
        default_factory=list,
        alias="label",
        max_length=8,
        description="List only allocations with all of these labels, each in the form `name=value`.",
    ),
]


@dataclass(frozen=True, slots=True)
class WantedAllocations:
    """The filters of one list of allocations. Empty filters match every allocation."""

    states: frozenset[str]
    labels: frozenset[str]
    """Labels in the form `name=value`, which is compared as a whole: it cannot be split, because a name may contain
    `=`.
    """

    @property
    def condition(self) -> Callable[[AllocationView], bool] | None:
        """Condition on the view of an allocation for the filter by state; None if all states match. The filter by
        labels is a part of the database query instead.
        """
        return (lambda view: view.state in self.states) if self.states else None


def _wanted(states: States, labels: Labels) -> WantedAllocations:
    return WantedAllocations(frozenset(states), frozenset(map(_label, labels)))


def _label(raw: str) -> str:
    if "=" not in raw:
        reason = f"{raw[:64]!r} is not a label; use the form name=value"
        raise Malformed(Objection("invalid_value", reason, parameter="label"))
    return raw


Wanted = Annotated[WantedAllocations, Depends(_wanted)]
