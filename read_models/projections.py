"""Every read model that follows from the log alone, by name: what can be rebuilt, and is held against a rebuild.

One that decisions need at once changes in the append itself (`inline`); the others are brought up by the projector,
whose checkpoint commits with their rows.
"""

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from events.allocations import AllocationRequested
from events.claims import CLAIMING
from events.facts import Fact
from read_models import allocations, holdings
from read_models.inline import KEYS, NODES, SLOTS
from read_models.rows import Inserted, Patched, Selected


@dataclass(frozen=True, slots=True)
class Projection:
    """A read model: its tables, each with what events do to it.

    Not inline, it has only tables of rows that never change, with a column `position`, so that it can be compared
    with another set of them up to any position.
    """

    name: str
    parts: tuple[Patched | Inserted | Selected, ...]
    inline: bool = False

    def concerned_by(self, fact: type[Fact]) -> bool:
        """Whether events with such a fact have to be read for it."""
        return any(issubclass(fact, part.facts) for part in self.parts)

    @property
    def tables(self) -> tuple[sa.Table, ...]:
        return tuple(part.table for part in self.parts)


PROJECTIONS: Final[dict[str, Projection]] = {
    each.name: each
    for each in (
        Projection("nodes", (NODES,), inline=True),
        Projection("slots", (SLOTS,), inline=True),
        Projection("keys", (KEYS,), inline=True),
        Projection(
            "allocations",
            (
                Inserted(allocations.allocation, (AllocationRequested,), allocations.request),
                Selected(allocations.story, allocations.CHAPTERS),
            ),
        ),
        Projection("holdings", (Inserted(holdings.holding, CLAIMING, holdings.changes),)),
    )
}
