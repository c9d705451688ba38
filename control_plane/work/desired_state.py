"""Comparison of the orders that a node holds with the orders it should hold, in one database query.

The newest order of each slot is at the end of the index `task_of_slot`, however many orders preceded it. The query
compares digests inside the database, so a node on which nothing changed costs neither a transferred row nor a
signature. Orders to empty a slot are compared too: a node that lost its disk gets them again, and then refuses older
orders by their fence tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.values import NodeId, SlotIndex
from tasks.agent_api import HeldOrder

DIFFERENCES: Final = sa.text("""
with held as (
  select * from unnest(cast(:indexes as int4[]), cast(:epochs as int4[]), cast(:positions as int8[]),
    cast(:digests as text[])) as h(slot_index, epoch, position, sha256)
), newest as (
  select s.slot_index, t.kind, t.epoch, t.position, t."order"
  from read.slot s cross join lateral (
    select kind, epoch, position, "order" from work.task
    where node_id = s.node_id and slot_id = s.slot_id and epoch is not null
    order by epoch desc, position desc limit 1
  ) t
  where s.node_id = :node
)
select slot_index, n.kind, n."order", n.epoch is null or (h.epoch, h.position) > (n.epoch, n.position) as unknown
from newest n full join held h using (slot_index)
where h.sha256 is distinct from encode(sha256(convert_to(n."order", 'UTF8')), 'hex')
order by slot_index
""")


@dataclass(frozen=True, slots=True)
class MissingOrder:
    """Newest order of a slot. Its node has not stored this order yet."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Differences:
    """Slots with an order on the node that differs from their newest order in the control plane.

    `wanted` are the newest orders that the node lacks. `unknown` lists slots for which the node holds an order that is
    newer than every order of the control plane.
    """

    wanted: tuple[MissingOrder, ...]
    unknown: tuple[SlotIndex, ...]


async def differences(conn: AsyncConnection, node: NodeId, held: Sequence[HeldOrder]) -> Differences:
    """Compare the orders that a node holds with the newest orders of its slots, and return the differences."""
    digests = {
        "indexes": [each.index for each in held],
        "epochs": [each.epoch for each in held],
        "positions": [each.position for each in held],
        "digests": [each.sha256 for each in held],
    }
    rows = (await conn.execute(DIFFERENCES, {"node": node, **digests})).all()
    return Differences(
        wanted=tuple(MissingOrder(row.kind, row.order) for row in rows if not row.unknown),
        unknown=tuple(SlotIndex(row.slot_index) for row in rows if row.unknown),
    )
