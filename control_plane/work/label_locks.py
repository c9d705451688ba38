"""Labels that keep allocations apart: on which nodes a project has allocations with a label, and a lock on the label.

Two requests that keep apart from the same label take turns. Otherwise both could choose the same node, because neither
sees the slots that the other has not committed yet. The application's role may take no advisory locks, so the lock is
that of a row.
"""

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.work.tables import label_lock
from events.allocations import AllocationRequested
from events.ledger.search import EVENT_COLUMNS
from events.ledger.store import events_of, refuse_unreadable
from events.ledger.tables import event
from events.values import NodeId, ProjectId
from read_models import slots


async def lock_labels(conn: AsyncConnection, project: ProjectId, labels: Mapping[str, str]) -> None:
    """Lock labels of a project until the transaction ends: wait for other requests that have locked one of them, and
    make later requests wait. Labels are locked in their order, before rows of slots.

    The rows are deleted at once, so that none remains: until the transaction ends, a row with the same key cannot be
    inserted.
    """
    for label, value in sorted(labels.items()):
        row = {"project": project, "label": label, "value": value}
        await conn.execute(insert(label_lock).values(row).on_conflict_do_nothing())
        await conn.execute(sa.delete(label_lock).filter_by(**row))


async def nodes_with_labels(
    conn: AsyncConnection,
    project: ProjectId,
    labels: Mapping[str, str],
    slot: sa.FromClause = slots.slot,
) -> frozenset[NodeId]:
    """Return the nodes with a slot that an allocation of the project with one of these labels holds. A slot that is
    being released is still held. `slot` is the table of slots, or a query with its columns.
    """
    if not labels:
        return frozenset()
    stream = sa.literal("allocation-") + slot.c.allocation_id
    first = sa.and_(event.c.stream_id == stream, event.c.version == 1, event.c.project == project)
    query = (
        sa.select(slot.c.node_id, *EVENT_COLUMNS)
        .select_from(sa.join(slot, event, first))
        .where(slot.c.allocation_id.is_not(None))
    )
    # Labels are encrypted in the ledger, and the read model that lists them follows later.
    rows = (await conn.execute(query)).all()
    requests = refuse_unreadable(events_of([row[1:] for row in rows]))
    return frozenset(
        NodeId(row.node_id)
        for row, each in zip(rows, requests, strict=True)
        if isinstance(each.fact, AllocationRequested) and labels.items() & each.fact.labels.items()
    )
