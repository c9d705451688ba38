"""Every read model that follows from the log alone, by name: what can be rebuilt, and is held against a rebuild.

One that decisions need at once changes in the append itself (`inline`); the others are brought up by the projector,
whose checkpoint commits with their rows.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.envelope import Recorded
from events.facts import Fact
from read_models import allocations, holdings
from read_models.inline import KEYS, NODES, SLOTS

Apply = Callable[[AsyncConnection, Sequence[Recorded[Fact]]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Projection:
    """A read model: its tables, and how a part of the log brings them up.

    Not inline, its tables have a column `position` and rows that never change, so that it can be compared with
    another set of them up to any position.
    """

    name: str
    tables: tuple[sa.Table, ...]
    apply: Apply
    inline: bool = False


PROJECTIONS: Final[dict[str, Projection]] = {
    each.name: each
    for each in (
        Projection("nodes", (NODES.table,), NODES.apply, inline=True),
        Projection("slots", (SLOTS.table,), SLOTS.apply, inline=True),
        Projection("keys", (KEYS.table,), KEYS.apply, inline=True),
        Projection("allocations", (allocations.allocation, allocations.story), allocations.apply),
        Projection("holdings", (holdings.holding,), holdings.apply),
    )
}
