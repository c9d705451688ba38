"""Filters of the task list: validated query parameters.

A parameter that is given several times matches tasks with any of its values. A task is listed if it matches every
parameter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import sqlalchemy as sa
from fastapi import Depends, Query
from pydantic import AfterValidator
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.views.task_views import STATE
from control_plane.histories import allocation_placements
from control_plane.work.tables import task
from events.allocations import AllocationPlaced, AllocationReplaced
from events.values import AllocationId, InvalidValue, NodeId, SlotId, allocation_id, node_id, node_of, slot_id
from tasks.catalogue import CATALOGUE

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


async def _slots(conn: AsyncConnection, allocation: AllocationId) -> list[SlotId]:
    """Return the current slots of an allocation: those of its newest placement."""
    placements = (each.fact for each in reversed(await allocation_placements(conn, allocation)))
    placed = next(
        (each for each in placements if isinstance(each, AllocationPlaced | AllocationReplaced)), None
    )
    return [] if placed is None else [slot.slot_id for slot in placed.slots]


def _wanted(
    states: States, kinds: Kinds, node: Node = None, slot: Slot = None, allocation: Of = None
) -> WantedTasks:
    return WantedTasks(
        NodeId(node) if node else None,
        SlotId(slot) if slot else None,
        AllocationId(allocation) if allocation else None,
        tuple(states),
        tuple(kinds),
    )


Wanted = Annotated[WantedTasks, Depends(_wanted)]
