"""Tests that an allocation's deadline does not fire while its node has undelivered reports."""

from datetime import timedelta

from control_plane.dispatcher.derive import Timing
from control_plane.dispatcher.dispatch import Dispatcher
from control_plane.histories import allocation_history
from control_plane.wiring import Plane, plane
from events.values import AllocationId, stream_of_allocation, stream_of_task
from tests.api.allocations.test_ingress import SHARED, create_ingress, ingress_states, set_public_addresses
from tests.api.broken_nodes import Node, accepted_allocation
from tests.api.node import BEAT, admit, allocate
from tests.api.reporting import RunningAllocation
from tests.road.test_followers import an_hour_later, unreachable_redis_plane
from tests.road.test_task_rows import REQUESTED, TASK, a_day_later, applied, record, rows
from tests.servers.plane import RunningPlane, settings_for
from tests.servers.postgres import Database

SEEN = """insert into work.node_seen (node_id, seen_at, agent_version, spooled_reports, resynced)
values ('n1', clock_timestamp(), '1', %s, true)
on conflict (node_id) do update set spooled_reports = excluded.spooled_reports returning 1"""


async def state_after_deadline(emptied_plane: RunningPlane, allocation: AllocationId) -> str:
    """Let the allocation's deadline pass, fire its timer and return the allocation's state."""
    async with plane(emptied_plane.settings, clock=an_hour_later) as made:
        dispatcher = Dispatcher(made.handle, Timing(made.settings.unreachable_after))
        async with made.engine.begin() as conn:
            history = await allocation_history(conn, allocation)
            due = await dispatcher.evaluate(history, await made.handle.clock(conn))
            await dispatcher.write(conn, due)
        await dispatcher.fire_timer(made.engine, stream_of_allocation(allocation))
    return str(emptied_plane.client().get(f"/allocations/{allocation}").json()["state"])


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
