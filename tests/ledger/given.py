"""Words for the ledger's tests: small facts, one that takes, one that frees, and a cause."""

from datetime import UTC, datetime
from uuid import UUID

import psycopg

from events.allocations import AllocationActivated
from events.append import Change, append
from events.envelope import Cause, Recorded
from events.facts import Fact
from events.slots import SlotClaimed, SlotReleased
from events.values import AllocationId, ProjectId, SlotId, StreamId, new_uuid

ALLOCATION = AllocationId("alc-01h455vb4pex5vsknk084sn02q")


def because(correlation_id: UUID | None = None) -> Cause:
    return Cause(
        actor="caller:alice",
        why="req-1",
        correlation_id=correlation_id or new_uuid(),
        observed_at=datetime(2026, 11, 20, 12, 0, tzinfo=UTC),
        project=ProjectId("default"),
        trace_context="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )


def plain() -> Fact:
    return AllocationActivated(allocation_id=ALLOCATION)


def takes(slot: str) -> Fact:
    return SlotClaimed(slot_id=SlotId(slot), allocation_id=ALLOCATION)


def frees(slot: str) -> Fact:
    return SlotReleased(slot_id=SlotId(slot), allocation_id=ALLOCATION, absent=())


def on(stream: str, expected_version: int, *facts: Fact) -> Change:
    return Change(StreamId(stream), expected_version, facts or (plain(),))


async def committed(conn: psycopg.AsyncConnection, *changes: Change) -> tuple[Recorded[Fact], ...]:
    async with conn.transaction():
        return await append(conn, changes, because())
