"""Deletion of rows in `work` that are no longer needed, after a time in which operators may want to read them.

The ledger keeps every event permanently; a row is only a quick summary. These rows are kept at any age: open tasks,
tasks that wait for a next attempt, and the newest order of each slot. If the row of the newest order were deleted, the
next evaluation of its stream would insert the order again and send it. Older orders of the slot are not needed: if one
is derived again, it is inserted as superseded (`outbox`).

After a crash, the next run deletes the rest. Two dispatchers that prune at once share the rows.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from events.ledger.connection import ledger_connection

log = structlog.get_logger()
BATCH: Final = 1000
"""Number of rows deleted per transaction, so that no other transaction waits long."""

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
    """How long rows of ended tasks are kept: for `well` if the task succeeded or was superseded, for `badly` if it
    failed or was refused.
    """

    well: timedelta
    badly: timedelta


async def prune(engine: AsyncEngine, kept: Kept) -> int:
    """Delete the rows of tasks and refusals after their retention; return the number of deleted tasks."""
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
        log.info("rows_of_ended_tasks_deleted", count=pruned)
    return pruned
