"""Counts of repeated refusals, in `work.refusal`: a refusal is recorded as a fact once, and only counted after that.

A refused node tends to retry at once, and the ledger should not hold a thousand copies of the same refusal.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.work import tables
from events.values import NodeId


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal that concerns a node: the node, its subject (such as an order id, or `session:7` for session number 7),
    and the reason code.
    """

    node_id: NodeId
    about: str
    code: str


async def is_first(conn: AsyncConnection, refusal: Refusal, now: datetime) -> bool:
    """Count a refusal; return whether it is the first refusal with this node, subject and code."""
    row = tables.refusal
    key = {"node_id": refusal.node_id, "about": refusal.about, "code": refusal.code}
    statement = (
        insert(row)
        .values(**key, first_at=now, last_at=now, times=1)
        .on_conflict_do_update(index_elements=list(key), set_={"last_at": now, "times": row.c.times + 1})
        .returning(row.c.times)
    )
    times: int = (await conn.execute(statement)).scalar_one()
    return times == 1
