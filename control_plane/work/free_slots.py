"""`work.free_slots`: how many usable free slots a node has, of each class and in total.

Placement reads the nodes in the order of the total from an index, so that the cost of finding the fullest or emptiest
node does not grow with the fleet. The projector counts the slots of a node again after each event of one of them. So
the table may be a moment older than the slots: placement reads the slots of the nodes that it finds here, and decides
by them.
"""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.work.placeable import SLOT, all_hold
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.tables import metadata
from events.slot_states import Free, slot_state_name
from events.slots import SlotFact
from events.values import NodeId, node_of
from read_models import slots

FOLLOWER = "free_slots"
"""Name of the checkpoint of the follower that keeps the table up to date."""
free_slots = sa.Table(
    "free_slots",
    metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("class", sa.Text, primary_key=True),
    sa.Column("free", sa.Integer, nullable=False),
    sa.Column("free_on_node", sa.Integer, nullable=False),
    sa.Index("free_slots_by_number", "class", "free_on_node", "node_id"),
    schema="work",
)


async def changed_nodes(batch: Sequence[Recorded[Fact]], _now: datetime) -> frozenset[NodeId]:
    """Return the nodes of all slots that these events concern."""
    return frozenset(node_of(each.fact.slot_id) for each in batch if isinstance(each.fact, SlotFact))


async def count_again(conn: AsyncConnection, changed: frozenset[NodeId]) -> None:
    """Count the usable free slots of these nodes, and store the numbers."""
    if not changed:
        return
    slot, among = slots.slot, sorted(changed)
    of_class = sa.func.count()
    on_node = sa.cast(sa.func.sum(of_class).over(partition_by=slot.c.node_id), sa.Integer)
    counted = (
        sa.select(slot.c.node_id, slot.c["class"], of_class, on_node)
        .where(slot.c.node_id.in_(among), slot.c.state == slot_state_name(Free()), all_hold(SLOT))
        .group_by(slot.c["class"], slot.c.node_id)
    )
    await conn.execute(sa.delete(free_slots).where(free_slots.c.node_id.in_(among)))
    await conn.execute(insert(free_slots).from_select([*free_slots.c], counted))
