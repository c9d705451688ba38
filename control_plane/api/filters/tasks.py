"""Filters of the task list: validated query parameters.

A parameter that is given several times matches tasks with any of its values. A task is listed if it matches every
parameter.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal
from uuid import UUID

import sqlalchemy as sa
from fastapi import Depends, Query
from pydantic import AfterValidator
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.filters.short_ids import ShortId, short_id
from control_plane.api.views.task_views import STATE
from control_plane.histories import allocation_placements
from control_plane.work.tables import task
from events.allocations import AllocationPlaced, AllocationReplaced
from events.values import AllocationId, InvalidValue, NodeId, SlotId, allocation_id, node_id, node_of, slot_id
from tasks.catalogue import CATALOGUE

_BEGINNING: Final = re.compile(
    r"[0-9a-f]{8}(-?|-[0-9a-f]{1,4}(-?|-[0-9a-f]{1,4}(-?|-[0-9a-f]{1,4}(-?|-[0-9a-f]{1,12}))))", re.ASCII
)
_LOWEST: Final = str(UUID(int=0))
_HIGHEST: Final = str(UUID(int=2**128 - 1))
State = Literal[
    "due", "sent", "waiting", "done", "refused", "failed", "poisoned", "superseded", "cancelled", "expired"
]


def _if_given(check: Callable[[str], str]) -> AfterValidator:
    return AfterValidator(lambda raw: None if raw is None else check(raw))


def _kind(raw: str) -> str:
    if raw not in CATALOGUE:
        raise InvalidValue("kind of task", raw[:64], f"choose one of {', '.join(CATALOGUE)}")
    return raw


Node = Annotated[
    str | None, Query(max_length=64, description="List only tasks of this node."), _if_given(node_id)
]
Slot = Annotated[
    str | None, Query(max_length=64, description="List only tasks of this slot."), _if_given(slot_id)
]
Of = Annotated[
    str | None,
    Query(max_length=64, description="List only tasks of this allocation."),
    _if_given(allocation_id),
]
ShortIds = Annotated[
    str | None,
    Query(
        alias="id",
        max_length=64,
        description=(
            "List only tasks with an id that begins like this, or that begins and ends like this, as in"
            " `019ad1f2…4b7c`; the beginning has at least 8 characters."
        ),
    ),
]
States = Annotated[
    list[State],
    Query(default_factory=list, alias="state", max_length=10, description="List only tasks in these states."),
]
Kinds = Annotated[
    list[Annotated[str, AfterValidator(_kind)]],
    Query(default_factory=list, alias="kind", max_length=20, description="List only tasks of these kinds."),
]


@dataclass(frozen=True, slots=True)
class WantedTasks:
    """The filters of one task list."""

    node: NodeId | None
    slot: SlotId | None
    allocation: AllocationId | None
    states: tuple[str, ...]
    kinds: tuple[str, ...]
    short_id: ShortId | None = None

    async def conditions(self, conn: AsyncConnection) -> list[sa.ColumnElement[bool]]:
        """Return the filters as SQL conditions on the task list query, `task_views.ROWS`."""
        found = [*self._plain()]
        if self.allocation is not None:
            # Filter by its slots, all on one node: they have an index, so that allocations need no index of their own.
            its_own = await _slots(conn, self.allocation)
            found += [task.c.slot_id.in_(its_own), task.c.node_id.in_({node_of(slot) for slot in its_own})]
        return found

    def _plain(self) -> Iterator[sa.ColumnElement[bool]]:
        if self.node is not None:
            yield task.c.node_id == self.node
        if self.slot is not None:
            yield task.c.slot_id == self.slot
            yield task.c.node_id == node_of(self.slot)
        if self.allocation is not None:
            yield task.c.allocation_id == self.allocation
        if self.states:
            # The row of a due task may have the state `sent`. The stored state has an index, the derived `STATE` has
            # not.
            stored = (*self.states, "sent") if "due" in self.states else self.states
            yield task.c.state.in_(stored)
            yield STATE.in_(self.states)
        if self.kinds:
            yield task.c.kind.in_(self.kinds)
        if self.short_id is not None:
            first, last, end = UUID(self.short_id.first), UUID(self.short_id.last), self.short_id.end
            yield sa.or_(task.c.order_id.between(first, last), task.c.task_id.between(first, last))
            shown = sa.func.coalesce(task.c.task_id, task.c.order_id)
            yield shown.between(first, last)
            yield sa.func.right(sa.cast(shown, sa.Text), len(end)) == end


async def _slots(conn: AsyncConnection, allocation: AllocationId) -> list[SlotId]:
    """Return the current slots of an allocation: those of its newest placement."""
    placements = (each.fact for each in reversed(await allocation_placements(conn, allocation)))
    placed = next(
        (each for each in placements if isinstance(each, AllocationPlaced | AllocationReplaced)), None
    )
    return [] if placed is None else [slot.slot_id for slot in placed.slots]


def _wanted(
    states: States,
    kinds: Kinds,
    *,
    node: Node = None,
    slot: Slot = None,
    allocation: Of = None,
    part: ShortIds = None,
) -> WantedTasks:
    return WantedTasks(
        NodeId(node) if node else None,
        SlotId(slot) if slot else None,
        AllocationId(allocation) if allocation else None,
        tuple(states),
        tuple(kinds),
        None if part is None else _short_id(part),
    )


def _short_id(raw: str) -> ShortId:
    return short_id(raw, "part of a task id", _BEGINNING, _LOWEST, _HIGHEST)


Wanted = Annotated[WantedTasks, Depends(_wanted)]
