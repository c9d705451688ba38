"""A batch of the log becomes rows at once: each stream's by its own facts, and no stream's trouble is another's."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from bench.placements import placement
from control_plane.dispatch import Dispatcher
from control_plane.origin import Origin
from control_plane.wiring import Plane
from events.allocations import AllocationReleased, AllocationReleasing
from events.append import Change, Command, append
from events.connection import ledger_connection
from events.envelope import Recorded
from events.facts import Fact, Reason
from events.store import read_range
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
    await _append(made, Command((Change(stream_of_allocation(allocation), 2, (fact,)),), cause))


async def _append(made: Plane, command: Command) -> None:
    async with made.engine.begin() as conn:
        await append(await ledger_connection(conn), command.changes, command.cause)


async def _read(conn: AsyncConnection, after: int = 0, limit: int = 1000) -> Sequence[Recorded[Fact]]:
    return await read_range(await ledger_connection(conn), Position(after), _END, limit=limit)


async def _apply(made: Plane, *, after: int = 0, limit: int = 1000) -> None:
    dispatcher = Dispatcher(made.handle, made.settings.silent_after)
    async with made.engine.begin() as conn:
        looks = await dispatcher.look(await _read(conn, after, limit), await made.handle.clock(conn))
        await dispatcher.write(conn, looks)


def _states(given: Given) -> dict[str, str]:
    return dict(given.rows(f"select kind || ' ' || slot_id, {STATE} from work.task"))


async def test_each_placement_of_a_batch_has_its_order_and_its_timer(made: Plane, given: Given) -> None:
    placed = [await _place(made, index) for index in range(3)]
    await _apply(made)
    rows = given.rows(f"select allocation_id, slot_id, {STATE}, lane from work.task order by slot_id")
    assert rows == [(name, f"n1/{index}", "due", "orders") for index, name in enumerate(placed)]
    timers = given.rows("select stream_id from work.timer")
    assert {stream for (stream,) in timers} == {stream_of_allocation(name) for name in placed}


async def test_a_batch_that_is_dealt_with_again_changes_nothing(made: Plane, given: Given) -> None:
    await _place(made, 0)
    await _apply(made)
    given.rows("update work.task set state = 'done' returning 1")
    before = given.rows("select * from work.task")
    await _apply(made)
    assert given.rows("select * from work.task") == before


async def test_an_allocation_that_makes_no_sense_is_parked_alone(made: Plane, given: Given) -> None:
    good, broken, other = [await _place(made, index) for index in range(3)]
    await _record(made, broken, AllocationReleased(broken))
    await _apply(made)
    assert given.rows("select stream_id from work.parked") == [(stream_of_allocation(broken),)]
    assert {name for (name,) in given.rows("select allocation_id from work.task")} == {good, other}
    given.rows("delete from ledger.event where type = 'allocation.released' returning 1")
    await _apply(made)
    assert given.rows("select 1 from work.parked") == []


async def test_what_a_slot_is_told_later_supersedes_what_it_was_told(made: Plane, given: Given) -> None:
    allocation = await _place(made, 0)
    await _apply(made)
    await _record(made, allocation, AllocationReleasing(allocation, Reason("asked", "asked")))
    await _apply(made, after=3)
    assert _states(given) == {"slice.apply n1/0": "superseded", "slice.remove n1/0": "due"}


async def test_a_look_back_at_the_log_sends_nothing_that_is_outdated(made: Plane, given: Given) -> None:
    """The rows of the placement were lost, and its part of the log is read again, by itself."""
    allocation = await _place(made, 0)
    await _record(made, allocation, AllocationReleasing(allocation, Reason("asked", "asked")))
    await _apply(made, after=3)
    await _apply(made, limit=2)
    assert _states(given) == {"slice.apply n1/0": "superseded", "slice.remove n1/0": "due"}
