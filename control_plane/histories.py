"""Typed reads of streams: one allocation or task, or the histories of many streams in one query."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final, cast
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from events.allocations import AllocationFact
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.connection import ledger_connection
from events.ledger.store import COLUMNS, read_stream, recorded
from events.tasks import TaskFact
from events.values import AllocationId, StreamId, stream_of_allocation, stream_of_task

History = tuple[Recorded[Fact], ...]
_MANY: Final = f"select {COLUMNS} from ledger.event where stream_id = any(%s) order by stream_id, version"  # noqa: S608 (constants)


async def allocation_history(
    conn: AsyncConnection, allocation: AllocationId
) -> tuple[Recorded[AllocationFact], ...]:
    """Return every fact of an allocation, oldest first; empty if there is none."""
    history = await read_stream(await ledger_connection(conn), stream_of_allocation(allocation))
    return cast(tuple[Recorded[AllocationFact], ...], tuple(history))


async def histories(conn: AsyncConnection, streams: Sequence[StreamId]) -> dict[StreamId, History]:
    """Return every fact of each stream, oldest first, with one query.

    A fact that this release cannot read is included as `Unreadable`, so that it affects only its own stream.
    """
    if not streams:
        return {}
    ledger = await ledger_connection(conn)
    cursor = await ledger.execute(_MANY, [list(streams)], prepare=True, binary=True)
    rows = [recorded(row) for row in await cursor.fetchall()]
    return {stream: tuple(found) for stream, found in groupby(rows, lambda each: each.stream)}


async def task_history(conn: AsyncConnection, task: UUID) -> tuple[Recorded[TaskFact], ...]:
    """Return every fact of a requested task, oldest first; empty if there is none."""
    history = await read_stream(await ledger_connection(conn), stream_of_task(task))
    return cast(tuple[Recorded[TaskFact], ...], tuple(history))
