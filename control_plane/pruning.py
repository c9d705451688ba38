"""Rows of `work` that nobody needs any more go, after a time in which people may want to look at them.

The log tells what happened for ever; a row only says it at a glance. Kept at any age are what is open, what waits for
its next try, and the newest order of each slot: that is what its node is to hold, and while the row stands the order is
not sent anew, whoever looks at its stream again. A row that is older than that one is not needed for either: an order
that is derived once more, and is older than the newest of its slot, is at its end from the start (`outbox`).

A crash leaves what the next run takes. Two dispatchers that prune at once share the rows.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from events.connection import ledger_connection

log = structlog.get_logger()
BATCH: Final = 1000
"""Rows that one transaction takes; nobody waits for more."""

_TASKS: Final = """
delete from work.task where order_id in (
  select t.order_id from work.task t
  where t.created_at < statement_timestamp() - least(%(well)s, %(badly)s)
    and t.ended_at < statement_timestamp()
      - case when t.state in ('done', 'superseded') then %(well)s else %(badly)s end
    and t.state not in ('due', 'sent', 'waiting')
    and (t.epoch is null or exists (
      select from work.task newer where newer.node_id = t.node_id and newer.slot_id = t.slot_id
        and (newer.epoch, newer.position) > (t.epoch, t.position)
    ))
  order by t.created_at limit %(batch)s for update skip locked
)
"""
_REFUSALS: Final = "delete from work.refusal where last_at < statement_timestamp() - %(badly)s"


@dataclass(frozen=True, slots=True)
class Kept:
    """For how long rows are kept after their end: of what ended `well`, and of what ended `badly` or was refused."""

    well: timedelta
    badly: timedelta


async def prune(engine: AsyncEngine, kept: Kept) -> int:
    """Delete what was kept for long enough; returns how many tasks that were."""
    values = {"well": kept.well, "badly": kept.badly, "batch": BATCH}
    pruned = 0
    while True:
        async with engine.begin() as conn:
            ledger = await ledger_connection(conn)
            found = (await ledger.execute(_TASKS, values, prepare=True)).rowcount
            if found < BATCH:
                await ledger.execute(_REFUSALS, values, prepare=True)
        pruned += found
        if found < BATCH:
            break
    if pruned:
        log.info("tasks_pruned", count=pruned)
    return pruned
