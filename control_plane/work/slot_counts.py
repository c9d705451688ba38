"""`work.slot_counts`: how many slots of each class a node has, and how many of them are fit for placement and free.

Placement reads the nodes in the order of their free slots from an index, so that the cost of finding the fullest or
emptiest node does not grow with the fleet. The explanation of a placement reads one row for each class of a node
instead of all slots. The projector counts the slots of a node again after each event of one of them. So the table may
be a moment older than the slots: `counts_now` counts the slots of the nodes with later events itself.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.work.placeable import all_hold, of_slot
from control_plane.work.tables import slot_counts
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.tables import event
from events.slot_states import SlotStateName
from events.slots import SlotFact
from events.values import NodeId, node_of
from read_models import slots
from read_models.checkpoints import checkpoint
from read_models.compiled import CompiledQuery, run_together

FOLLOWER = "slot_counts"
"""Name of the checkpoint of the follower that keeps the table up to date."""
_NUMBERS = ("slots", "fit", "idle", "free")
_FREE: Final[SlotStateName] = "free"
_QUARANTINED: Final[SlotStateName] = "quarantined"
_RETIRED: Final[SlotStateName] = "retired"


async def changed_nodes(batch: Sequence[Recorded[Fact]], _now: datetime) -> frozenset[NodeId]:
    """Return the nodes of all slots that these events concern."""
    return frozenset(node_of(each.fact.slot_id) for each in batch if isinstance(each.fact, SlotFact))


async def count_again(conn: AsyncConnection, changed: frozenset[NodeId]) -> None:
    """Count the slots of these nodes, and store the numbers."""
    if changed:
        await run_together(conn, [_FORGET, _COUNT], {"nodes": sorted(changed)})


def counts_now() -> sa.Subquery:
    """Return the query for the numbers of all nodes by class, as they are in the snapshot of the statement: those of
    the table, except for nodes of slots with events behind the checkpoint of the table, which are counted.
    """
    node = sa.func.split_part(sa.func.substr(event.c.stream_id, len("slot-") + 1), "/", 1)
    later = event.c.position > counted_to()
    changed = sa.select(node).where(later, event.c.stream_id.like("slot-%"))
    return sa.union_all(
        _stored().where(slot_counts.c.node_id.not_in(changed)),
        _counted(slots.slot, slots.slot.c.node_id.in_(changed)),
    ).subquery("counts_now")


def counted_to() -> sa.Function[int]:
    """Return the SQL expression for the position of the ledger up to which `work.slot_counts` is up to date."""
    known = sa.select(checkpoint.c.position).where(checkpoint.c.name == FOLLOWER)
    return sa.func.coalesce(known.scalar_subquery(), 0)


def counts_with(slot: sa.FromClause, recounted: Collection[NodeId]) -> sa.Subquery:
    """Return the query for the numbers of all nodes by class: those of the table, except for the nodes `recounted`.
    The slots of these nodes are counted in `slot`, a query with columns of the table of slots.
    """
    return sa.union_all(
        _stored().where(slot_counts.c.node_id.not_in(recounted)),
        _counted(slot, slot.c.node_id.in_(recounted)),
    ).subquery("counts_with")


def _stored() -> sa.Select[tuple[Any, ...]]:
    return sa.select(*(slot_counts.c[name] for name in ("node_id", "class", *_NUMBERS)))


def _counted(slot: sa.FromClause, which: sa.ColumnElement[bool]) -> sa.Select[tuple[Any, ...]]:
    """Return the query with one row for each class of slots of a node, for the slots with the condition `which`: the
    number of slots that are not retired (`slots`), of those that are fit for placement and not quarantined (`fit`), of
    those that no allocation holds (`idle`), and of those to which both applies (`free`).
    """
    count = sa.func.count()
    idle, not_retired = slot.c.state == _FREE, slot.c.state != _RETIRED
    fit = sa.and_(all_hold(of_slot(slot)), not_retired, slot.c.state != _QUARANTINED)
    return (
        sa.select(
            slot.c.node_id,
            slot.c["class"],
            count.filter(not_retired).label("slots"),
            count.filter(fit).label("fit"),
            count.filter(idle).label("idle"),
            count.filter(sa.and_(fit, idle)).label("free"),
        )
        .where(which)
        .group_by(slot.c.node_id, slot.c["class"])
    )


def _count() -> sa.Insert:
    """Return the statement that counts the slots of the nodes in its parameter `nodes`, and stores the numbers."""
    counted = _counted(slots.slot, _among_nodes(slots.slot)).subquery()
    on_node = sa.cast(sa.func.sum(counted.c.free).over(partition_by=counted.c.node_id), sa.Integer)
    return sa.insert(slot_counts).from_select([*slot_counts.c], sa.select(*counted.c, on_node))


def _among_nodes(table: sa.FromClause) -> sa.ColumnElement[bool]:
    return table.c.node_id == sa.any_(sa.bindparam("nodes", type_=ARRAY(sa.Text)))


_FORGET: Final = CompiledQuery(sa.delete(slot_counts).where(_among_nodes(slot_counts)))
_COUNT: Final = CompiledQuery(_count())
