"""Filters of the list of allocations: by state, by label and by a part of the id.

Indexes find the allocations with a label, and those with a part of an id. The state of an allocation is computed from
its events and is not a column, so a list that is filtered by state omits those that do not match (`scanning`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Query
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.filters.short_ids import MOST_COMPARED, MOST_FOUND, ShortId, short_id
from control_plane.api.views.allocation_views import AllocationView
from control_plane.decisions.allocation_states import StateName
from control_plane.decisions.refusals import Malformed, Objection
from events.values import Position
from read_models.allocations import with_ids

_DIGITS: Final = 26
_BEGINNING: Final = re.compile(rf"alc-[0-9a-z]{{4,{_DIGITS}}}", re.ASCII)
_LOWEST: Final = f"alc-{'0' * _DIGITS}"
_HIGHEST: Final = f"alc-{'z' * _DIGITS}"
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
ShortIds = Annotated[
    str | None,
    Query(
        alias="id",
        max_length=64,
        description=(
            "List only allocations with an id that begins like this, or that begins and ends like this, as in"
            " `alc-06et…7m2k9a`: the newest 200 of them."
        ),
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

    short_id: ShortId | None = None

    async def positions(self, conn: AsyncConnection) -> list[Position] | None:
        """Return the positions of the requests with the part of an id; None without this filter."""
        if self.short_id is None:
            return None
        first, last, end = self.short_id.first, self.short_id.last, self.short_id.end
        return await with_ids(conn, first, last, end, compared=MOST_COMPARED, limit=MOST_FOUND)

    @property
    def condition(self) -> Callable[[AllocationView], bool] | None:
        """Condition on the view of an allocation for the filter by state; None if all states match. The filter by
        labels is a part of the database query instead.
        """
        return (lambda view: view.state in self.states) if self.states else None


def _wanted(states: States, labels: Labels, part: ShortIds = None) -> WantedAllocations:
    return WantedAllocations(
        frozenset(states), frozenset(map(_label, labels)), None if part is None else _short_id(part)
    )


def _short_id(raw: str) -> ShortId:
    return short_id(raw, "part of an allocation id", _BEGINNING, _LOWEST, _HIGHEST)


def _label(raw: str) -> str:
    if "=" not in raw:
        reason = f"{raw[:64]!r} is not a label; use the form name=value"
        raise Malformed(Objection("invalid_value", reason, parameter="label"))
    return raw


Wanted = Annotated[WantedAllocations, Depends(_wanted)]
