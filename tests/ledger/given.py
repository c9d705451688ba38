"""Builders for the ledger's tests: events with and without claims, changes of streams, and the cause of a change."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import psycopg

from events.allocations import AllocationActivated
from events.envelope import Cause, Recorded
from events.facts import Fact
from events.ledger.append import Change, LedgerCommand, append, encode_together
from events.slots import SlotClaimed, SlotReleased
from events.values import AllocationId, ProjectId, SlotId, StreamId, new_uuid

ALLOCATION = AllocationId("alc-01h455vb4pex5vsknk084sn02q")


def because(correlation_id: UUID | None = None) -> Cause:
    """Return the cause of a change: a request of the caller alice."""
    return Cause(
        actor="caller:alice",
        reason="req-1",
        correlation_id=correlation_id or new_uuid(),
        observed_at=datetime(2026, 11, 20, 12, 0, tzinfo=UTC),
        project=ProjectId("default"),
        trace_context="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )


def plain() -> Fact:
    """Return an event that takes and releases no claim."""
    return AllocationActivated(allocation_id=ALLOCATION)


def takes(slot: str) -> Fact:
    """Return an event that takes the claim of a slot."""
    return SlotClaimed(slot_id=SlotId(slot), allocation_id=ALLOCATION)


def frees(slot: str) -> Fact:
    """Return an event that releases the claim of a slot."""
    return SlotReleased(slot_id=SlotId(slot), allocation_id=ALLOCATION, absent=())


def on(stream: str, expected_version: int, *facts: Fact) -> Change:
    """Return a change that appends events to a stream at its expected version. Without `facts`, it appends one event
    without claims.
    """
    return Change(StreamId(stream), expected_version, facts or (plain(),))


async def append_together(conn: psycopg.AsyncConnection, commands: Sequence[LedgerCommand]) -> None:
    """Append several commands by one call to the server."""
    await (await encode_together(conn, commands)).send(conn)


async def committed(conn: psycopg.AsyncConnection, *changes: Change) -> tuple[Recorded[Fact], ...]:
    """Append changes to the ledger in one committed transaction, and return the recorded events."""
    async with conn.transaction():
        return await append(conn, changes, because())
