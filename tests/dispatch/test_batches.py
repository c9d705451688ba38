"""Tests of the dispatcher: it turns a batch of events into task rows in one transaction, and parks an event stream
(sets it aside with its error) only if it cannot process the stream.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from bench.dispatch.placements import placement
from control_plane.dispatcher.derive import Timing
from control_plane.dispatcher.dispatch import Dispatcher
from control_plane.origin import Origin
from control_plane.wiring import Plane
from events.allocations import AllocationReleased, AllocationReleasing
from events.envelope import Recorded
from events.facts import Fact, Reason
from events.ledger.append import Change, LedgerCommand, append
from events.ledger.connection import ledger_connection
from events.ledger.store import read_range
from events.values import (
    AllocationId,
    NodeId,
    Position,
    SlotIndex,
    allocation_of,
    new_uuid,
    slot_of,
    stream_of_allocation,
)
from tests.dispatch.given import STATE, Given

NODE = NodeId("n1")
_END = Position(2**62)


async def _place(made: Plane, index: int) -> AllocationId:
    allocation = allocation_of(new_uuid())
    await _append(made, placement(allocation, slot_of(NODE, SlotIndex(index))))
    return allocation


async def _record(made: Plane, allocation: AllocationId, fact: Fact) -> None:
    cause = Origin("test", "test", new_uuid()).at(datetime.now(UTC))
    await _append(made, LedgerCommand((Change(stream_of_allocation(allocation), 2, (fact,)),), cause))


async def _append(made: Plane, command: LedgerCommand) -> None:
    async with made.engine.begin() as conn:
        await append(await ledger_connection(conn), command.changes, command.cause)


async def _read(conn: AsyncConnection, after: int = 0, limit: int = 1000) -> Sequence[Recorded[Fact]]:
    return await read_range(await ledger_connection(conn), Position(after), _END, limit=limit)


async def _apply(made: Plane, *, after: int = 0, limit: int = 1000) -> None:
    dispatcher = Dispatcher(made.handle, Timing(made.settings.unreachable_after))
    async with made.engine.begin() as conn:
        evaluations = await dispatcher.evaluate(
            await _read(conn, after, limit), await made.handle.clock(conn)
        )
        await dispatcher.write(conn, evaluations)


def _states(given: Given) -> dict[str, str]:
    return dict(given.rows(f"select kind || ' ' || slot_id, {STATE} from work.task"))


async def test_each_allocation_placed_in_a_batch_of_events_gets_an_order_and_a_timer(
    made: Plane, given: Given
) -> None:
    placed = [await _place(made, index) for index in range(3)]
    await _apply(made)
    rows = given.rows(f"select allocation_id, slot_id, {STATE}, lane from work.task order by slot_id")
    assert rows == [(name, f"n1/{index}", "due", "orders") for index, name in enumerate(placed)]
    timers = given.rows("select stream_id from work.timer")
    assert {stream for (stream,) in timers} == {stream_of_allocation(name) for name in placed}


async def test_batch_of_events_that_the_dispatcher_processes_again_changes_nothing(
    made: Plane, given: Given
) -> None:
    await _place(made, 0)
    await _apply(made)
    given.rows("update work.task set state = 'done' returning 1")
    before = given.rows("select * from work.task")
    await _apply(made)
    assert given.rows("select * from work.task") == before


async def test_allocation_with_an_impossible_history_is_parked_without_affecting_other_allocations(
    made: Plane, given: Given
) -> None:
    good, broken, other = [await _place(made, index) for index in range(3)]
    await _record(made, broken, AllocationReleased(broken))
    await _apply(made)
    assert given.rows("select stream_id from work.parked") == [(stream_of_allocation(broken),)]
    assert {name for (name,) in given.rows("select allocation_id from work.task")} == {good, other}
    given.rows("delete from ledger.event where type = 'allocation.released' returning 1")
    await _apply(made)
    assert given.rows("select 1 from work.parked") == []


async def test_later_order_of_a_slot_supersedes_its_earlier_order(made: Plane, given: Given) -> None:
    allocation = await _place(made, 0)
    await _apply(made)
    await _record(made, allocation, AllocationReleasing(allocation, Reason("requested", "requested")))
    await _apply(made, after=3)
    assert _states(given) == {"slice.apply n1/0": "superseded", "slice.remove n1/0": "due"}


async def test_superseded_order_that_is_derived_from_the_ledger_a_second_time_is_not_sent(
    made: Plane, given: Given
) -> None:
    """The task rows of a placement are lost, and the dispatcher processes only the events of the placement again."""
    allocation = await _place(made, 0)
    await _record(made, allocation, AllocationReleasing(allocation, Reason("requested", "requested")))
    await _apply(made, after=3)
    await _apply(made, limit=2)
    assert _states(given) == {"slice.apply n1/0": "superseded", "slice.remove n1/0": "due"}
