"""Reading an allocation's own stream, typed."""

from typing import cast

from sqlalchemy.ext.asyncio import AsyncConnection

from events.allocations import AllocationFact
from events.connection import ledger_connection
from events.envelope import Recorded
from events.store import read_stream
from events.values import AllocationId, stream_of_allocation


async def allocation_history(
    conn: AsyncConnection, allocation: AllocationId
) -> tuple[Recorded[AllocationFact], ...]:
    """Every fact of an allocation, oldest first; empty when there is none."""
    recorded = await read_stream(await ledger_connection(conn), stream_of_allocation(allocation))
    return cast(tuple[Recorded[AllocationFact], ...], tuple(recorded))
