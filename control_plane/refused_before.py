"""What was refused before, in `work.refusal`: recorded as a fact once, and only counted from then on.

Whoever is refused tends to try again at once, and the ledger is no place for a thousand of the same sentence.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane import work
from events.values import NodeId


@dataclass(frozen=True, slots=True)
class Refusal:
    """Which node, what it was about (an id, or `session:7`), and why, as a code."""

    node_id: NodeId
    about: str
    code: str


async def is_first(conn: AsyncConnection, refusal: Refusal, now: datetime) -> bool:
    """Count it; whether nobody had to before."""
    row = work.refusal
    key = {"node_id": refusal.node_id, "about": refusal.about, "code": refusal.code}
    statement = (
        insert(row)
        .values(**key, first_at=now, last_at=now, times=1)
        .on_conflict_do_update(index_elements=list(key), set_={"last_at": now, "times": row.c.times + 1})
        .returning(row.c.times)
    )
    times: int = (await conn.execute(statement)).scalar_one()
    return times == 1
