"""Filters of the list of allocations: by state and by label.

An index finds the allocations with a label. The state of an allocation is computed from its events and is not a column,
so a list that is filtered by state reads allocations in the order of the list and omits those that do not match. One
request reads at most `MOST_READ` allocations, so that a filter that matches few of them cannot occupy the server; the
cursor of its page continues there.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

from fastapi import Depends, Query

from control_plane.api.requests.pages import Page
from control_plane.api.views.allocation_views import AllocationView
from control_plane.decisions.allocation_states import StateName
from control_plane.decisions.refusals import Malformed, Objection
from events.values import AllocationId, Position
from read_models.allocations import Requested

MOST_READ: Final = 500
"""Maximum number of allocations that one request with a filter by state reads."""
_CHUNK: Final = 100
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
    """Labels in the form `name=value`. A name may contain `=`, so the form cannot be parsed."""

    def matches(self, view: AllocationView) -> bool:
        """Return whether an allocation with the wanted labels has a wanted state."""
        return not self.states or view.state in self.states


def _wanted(states: States, labels: Labels) -> WantedAllocations:
    return WantedAllocations(frozenset(states), frozenset(map(_label, labels)))


def _label(raw: str) -> str:
    if "=" not in raw:
        reason = f"{raw[:64]!r} is not a label; use the form name=value"
        raise Malformed(Objection("invalid_value", reason, parameter="label"))
    return raw


Wanted = Annotated[WantedAllocations, Depends(_wanted)]


class ReadPage(Protocol):
    """Function that reads the next allocation requests of a list."""

    async def __call__(self, *, after: Position | None, limit: int) -> list[Requested]: ...


async def filtered(
    read: ReadPage,
    view: Callable[[Sequence[Requested]], Awaitable[list[AllocationView]]],
    wanted: WantedAllocations,
    after: Position | None,
    limit: int,
) -> Page[AllocationView]:
    """Return a page of the allocations with a wanted state. `read` returns only requests with the wanted labels, and
    `view` the views of requests, in their order.
    """
    items: list[AllocationView] = []
    left = MOST_READ
    while True:
        size = min(max(limit, _CHUNK), left) if wanted.states else limit
        requests = await read(after=after, limit=size)
        places = {each.allocation_id: each.position for each in requests}
        left -= len(requests)
        for each in await view(requests):
            if wanted.matches(each):
                items.append(each)
                if len(items) == limit and each.id != requests[-1].allocation_id:
                    return Page(items=items, next_cursor=str(places[AllocationId(each.id)]))
        if len(requests) < size:
            return Page(items=items, next_cursor=None)
        after = requests[-1].position
        if len(items) == limit or not wanted.states or left <= 0:
            return Page(items=items, next_cursor=str(after))
