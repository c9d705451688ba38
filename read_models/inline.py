"""The read models that decisions need at once: written in the append's own transaction, before it.

They are projections all the same: a rebuild makes the same patches of the same facts.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, get_args

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.access import ApiKeyIssued
from events.envelope import Recorded
from events.facts import Fact
from events.nodes import NodeFact
from events.orders import OrderRefused
from events.slots import SlotFact
from read_models import keys, nodes, slots
from read_models.rows import Patch, PatchOf, write


class Inline(NamedTuple):
    """A read model of rows: its table, the facts that concern it, and what each does to a row."""

    table: sa.Table
    facts: tuple[type[Fact], ...]
    patch: PatchOf

    async def apply(self, conn: AsyncConnection, batch: Sequence[Recorded[Fact]]) -> None:
        """Bring the rows up to a part of the log."""
        await self.write(conn, ((each.version, each.fact) for each in batch))

    async def write(self, conn: AsyncConnection, numbered: Iterable[tuple[int, Fact]]) -> None:
        """Bring the rows up to facts, each with its version in its stream, in order."""
        await write(conn, self.table, self.patches(numbered))

    def patches(self, numbered: Iterable[tuple[int, Fact]]) -> list[Patch]:
        facts, patch = self.facts, self.patch
        return [patch(version, fact) for version, fact in numbered if isinstance(fact, facts)]


NODES: Final = Inline(nodes.node, (*get_args(NodeFact), OrderRefused), nodes.patch)
SLOTS: Final = Inline(slots.slot, get_args(SlotFact), slots.patch)
KEYS: Final = Inline(keys.api_key, (ApiKeyIssued,), keys.patch)


async def apply(conn: AsyncConnection, facts: Iterable[tuple[int, Fact]]) -> None:
    """Bring every inline read model up to facts, each with its version in its stream."""
    numbered = list(facts)
    for each in (NODES, SLOTS, KEYS):
        await each.write(conn, numbered)
