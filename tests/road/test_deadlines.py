"""Tests that an allocation's deadline does not fire while its node has undelivered reports."""

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.dispatcher.derive import Timing
from control_plane.dispatcher.dispatch import Dispatcher
from control_plane.handle import database_time
from control_plane.histories import allocation_history
from control_plane.wiring import Plane, plane
from events.values import AllocationId, stream_of_allocation, stream_of_task
from tests.api.allocations.test_ingress import SHARED, create_ingress, ingress_states, set_public_addresses
from tests.api.broken_nodes import Node, accepted_allocation
from tests.api.node import BEAT, admit, allocate, batch
from tests.api.reporting import RunningAllocation
from tests.road.test_followers import an_hour_later, fire, unreachable_redis_plane
from tests.road.test_task_rows import REQUESTED, TASK, a_day_later, applied, record, rows
from tests.servers.plane import RunningPlane, settings_for
from tests.servers.postgres import Database
from tests.waiting import until

SEEN = """insert into work.node_seen (node_id, seen_at, agent_version, spooled_reports, resynced)
values ('n1', clock_timestamp(), '1', %s, true)
on conflict (node_id) do update set spooled_reports = excluded.spooled_reports returning 1"""


async def view_after_deadline(running: RunningPlane, allocation: AllocationId) -> dict[str, Any]:
    """Let the allocation's deadline pass, fire its timer and return the allocation's view."""
    async with plane(running.settings, clock=an_hour_later) as made:
        dispatcher = Dispatcher(made.handle, Timing(made.settings.unreachable_after))
        async with made.engine.begin() as conn:
            history = await allocation_history(conn, allocation)
            due = await dispatcher.evaluate(history, await made.handle.clock(conn))
            await dispatcher.write(conn, due)
        await fire(dispatcher, made.engine, allocation)
    return dict(running.client().get(f"/allocations/{allocation}").json())


async def state_after_deadline(running: RunningPlane, allocation: AllocationId) -> str:
    """Let the allocation's deadline pass, fire its timer and return the allocation's state."""
    return str((await view_after_deadline(running, allocation))["state"])


async def test_allocation_deadline_does_not_fire_while_the_node_has_spooled_reports(
    emptied_plane: RunningPlane,
) -> None:
    node = admit(emptied_plane, "n1")
    allocation = AllocationId(allocate(emptied_plane).json()["id"])
    assert node.post("/heartbeat", json={**BEAT, "spooled_reports": 3}).is_success
    assert await state_after_deadline(emptied_plane, allocation) == "placed"
    assert node.post("/heartbeat", json=BEAT).is_success
    assert await state_after_deadline(emptied_plane, allocation) == "failed"


async def test_allocation_deadline_fires_if_the_node_with_spooled_reports_is_unreachable(
    emptied_plane: RunningPlane,
) -> None:
    node = admit(emptied_plane, "n1")
    allocation = AllocationId(allocate(emptied_plane).json()["id"])
    assert node.post("/heartbeat", json={**BEAT, "spooled_reports": 3}).is_success
    emptied_plane.rows("update work.node_seen set seen_at = seen_at - interval '1 hour' returning 1")
    assert await state_after_deadline(emptied_plane, allocation) == "failed"


async def test_withdrawal_of_an_ingress_rule_at_its_deadline_has_its_reservation_event_as_the_cause(
    emptied_plane: RunningPlane,
) -> None:
    node = admit(emptied_plane, "n1")
    assert set_public_addresses(emptied_plane, SHARED).is_success
    running = RunningAllocation(emptied_plane, node, network_mode="public-nat", lease_seconds=7200)
    assert create_ingress(running).is_success
    assert await state_after_deadline(emptied_plane, AllocationId(running.id)) == "active"
    assert ingress_states(running) == ["withdrawn"]
    assert running.causes_of("ingress.withdrawn") == ["ingress.reserved"]


async def test_task_of_an_admin_does_not_expire_while_the_node_has_spooled_reports(
    database: Database,
) -> None:
    async with unreachable_redis_plane(database) as made:
        await applied(made, *await record(made, REQUESTED))
    settings = settings_for(database, "redis://127.0.0.1:1", 1, 1)
    async with plane(settings, clock=a_day_later) as made:
        await _set_spooled_reports(made, 1)
        await Dispatcher(made.handle, Timing(timedelta(minutes=1))).fire_timer(
            made.engine, stream_of_task(TASK)
        )
        assert await rows(made) == [(1, "due")]
        await _set_spooled_reports(made, 0)
        await Dispatcher(made.handle, Timing(timedelta(minutes=1))).fire_timer(
            made.engine, stream_of_task(TASK)
        )
        assert await rows(made) == [(1, "expired")]


async def _set_spooled_reports(made: Plane, count: int) -> None:
    async with made.engine.begin() as conn:
        await conn.exec_driver_sql(SEEN, (count,))


def failed_bring_ups(plane: RunningPlane) -> list[str]:
    """Return the ids of the ledger streams that contain an event of a failed slice start (`*.bring_up_failed`)."""
    rows = plane.rows("select stream_id from ledger.event where type like '%.bring_up_failed' order by 1")
    return [stream for (stream,) in rows]


async def test_allocation_deadline_missed_by_a_reachable_node_that_began_the_order_counts_as_a_node_fault(
    emptied_plane: RunningPlane,
) -> None:
    node = Node(emptied_plane, "n1", slots=1)
    allocation = accepted_allocation(emptied_plane)
    node.report(allocation, "slice.starting")
    assert await state_after_deadline(emptied_plane, AllocationId(allocation["id"])) == "failed"
    assert failed_bring_ups(emptied_plane) == ["node-n1", "slot-n1/0"]
    [failure] = node.view()["failures"]
    assert failure["reason"]["code"] == "deadline_missed"


async def test_allocation_deadline_missed_before_the_node_began_the_order_does_not_count_as_a_node_fault(
    emptied_plane: RunningPlane,
) -> None:
    Node(emptied_plane, "n1", slots=1)
    allocation = accepted_allocation(emptied_plane)
    assert await state_after_deadline(emptied_plane, AllocationId(allocation["id"])) == "failed"
    assert failed_bring_ups(emptied_plane) == []


async def test_allocation_deadline_missed_by_an_unreachable_node_does_not_count_as_a_node_fault(
    emptied_plane: RunningPlane,
) -> None:
    node = Node(emptied_plane, "n1", slots=1)
    allocation = accepted_allocation(emptied_plane)
    node.report(allocation, "slice.starting")
    emptied_plane.rows("update work.node_seen set seen_at = seen_at - interval '1 hour' returning 1")
    assert await state_after_deadline(emptied_plane, AllocationId(allocation["id"])) == "failed"
    assert failed_bring_ups(emptied_plane) == []


async def test_overdue_release_names_the_unreachable_node_and_quarantines_the_slot_until_its_proof(
    emptied_plane: RunningPlane,
) -> None:
    running = RunningAllocation(emptied_plane, admit(emptied_plane, "n1"))
    assert emptied_plane.client().delete(f"/allocations/{running.id}").is_success
    assert running.view()["release_overdue"] is None
    emptied_plane.rows("update work.node_seen set seen_at = seen_at - interval '1 hour' returning 1")

    overdue = await view_after_deadline(emptied_plane, AllocationId(running.id))

    assert (overdue["state"], overdue["reason"]["code"]) == ("releasing", "released_by_caller")
    [left] = overdue["release_overdue"]["remaining"]
    assert (left["slot_id"], left["reason"]["code"]) == ("n1/0", "node_unreachable")
    assert running.slot_state() == "quarantined"
    assert running.causes_of("allocation.release_overdue") == ["allocation.releasing"]
    await view_after_deadline(emptied_plane, AllocationId(running.id))
    assert running.event_types().count("release_overdue") == 1

    running.report("slice.removed", absent=["port"])

    shown = running.view()
    assert (shown["state"], shown["release_overdue"], running.slot_state()) == ("released", None, "free")


async def test_release_is_not_overdue_while_its_node_has_spooled_reports(emptied_plane: RunningPlane) -> None:
    node = admit(emptied_plane, "n1")
    running = RunningAllocation(emptied_plane, node)
    assert emptied_plane.client().delete(f"/allocations/{running.id}").is_success
    assert node.post("/heartbeat", json={**BEAT, "spooled_reports": 3}).is_success
    assert (await view_after_deadline(emptied_plane, AllocationId(running.id)))["release_overdue"] is None
    assert node.post("/heartbeat", json=BEAT).is_success
    overdue = (await view_after_deadline(emptied_plane, AllocationId(running.id)))["release_overdue"]
    assert [each["reason"]["code"] for each in overdue["remaining"]] == ["removal_pending"]


async def test_overdue_release_of_a_failed_allocation_has_the_reason_of_the_refused_order(
    emptied_plane: RunningPlane,
) -> None:
    node = Node(emptied_plane, "n1", slots=1)
    allocation = accepted_allocation(emptied_plane)
    node.report_failed(allocation)
    removal = "select order_id::text from work.task where kind = 'slice.remove'"
    until(lambda: len(emptied_plane.rows(removal)) == 1, "there is an order to remove the slice")
    [(order,)] = emptied_plane.rows(removal)
    reason = {"code": "wrong_network", "message": "the network of the order is not that of the node"}
    refusal = {"kind": "order.refused", "order_id": order, "slot_id": "n1/0", "reason": reason}
    assert node.client.post("/reports", json=batch(str(uuid4()), (1, refusal))).is_success

    overdue = await view_after_deadline(emptied_plane, AllocationId(allocation["id"]))

    assert overdue["state"] == "failed"
    [left] = overdue["release_overdue"]["remaining"]
    assert left["reason"]["code"] == "removal_refused"
    assert reason["message"] in left["reason"]["message"]


async def test_deadline_of_a_release_counts_again_after_an_outage_of_the_control_plane(
    emptied_plane: RunningPlane,
) -> None:
    running = RunningAllocation(emptied_plane, admit(emptied_plane, "n1"))
    assert emptied_plane.client().delete(f"/allocations/{running.id}").is_success
    later = timedelta(hours=1)

    async def clock(conn: AsyncConnection) -> datetime:
        return await database_time(conn) + later

    async with plane(emptied_plane.settings, clock=clock) as made:
        dispatcher = Dispatcher(made.handle, Timing(made.settings.unreachable_after))
        # The timer is set when the release is evaluated; no dispatcher fired it during the outage.
        timer = "update work.timer set due_at = clock_timestamp() where stream_id = %(stream)s returning 1"
        stream = stream_of_allocation(AllocationId(running.id))
        until(lambda: bool(emptied_plane.rows(timer, stream=stream)), "the release has a timer")
        await dispatcher.fire_due_timers(made.engine)
        assert running.view()["release_overdue"] is None
        for _ in range(21):
            later += timedelta(seconds=29)
            await dispatcher.fire_due_timers(made.engine)
    assert running.view()["release_overdue"]["remaining"][0]["reason"]["code"] == "removal_pending"
