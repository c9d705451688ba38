"""The read models that decisions need at once: written in the append's own transaction, before it.

They are projections all the same: rebuilding them from the ledger gives the same rows, because both ways run
the same `apply` functions.
"""

from collections.abc import Iterable
from typing import get_args

from sqlalchemy.ext.asyncio import AsyncConnection

from events.access import ApiKeyIssued
from events.facts import Fact
from events.nodes import NodeFact
from events.orders import OrderRefused
from events.slots import SlotFact
from read_models import keys, nodes, slots

_NODE = (*get_args(NodeFact), OrderRefused)
_SLOT = get_args(SlotFact)


async def apply(conn: AsyncConnection, facts: Iterable[tuple[int, Fact]]) -> None:
    """Bring every inline read model up to facts, each with its version in its stream."""
    numbered = list(facts)
    await nodes.apply(conn, [(version, fact) for version, fact in numbered if isinstance(fact, _NODE)])
    await slots.apply(conn, [(version, fact) for version, fact in numbered if isinstance(fact, _SLOT)])
    await keys.apply(conn, [(version, fact) for version, fact in numbered if isinstance(fact, ApiKeyIssued)])
