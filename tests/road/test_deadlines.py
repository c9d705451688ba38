"""A deadline passes over a node that has yet to say what it saw (design, section 4)."""

from datetime import timedelta

from control_plane.dispatch import Dispatcher
from control_plane.histories import allocation_history
from control_plane.wiring import Plane, plane
from events.values import AllocationId, stream_of_allocation, stream_of_task
from tests.api.broken_nodes import Node, placed
from tests.api.node import BEAT, admit, allocate
from tests.api.reporting import Running
from tests.api.test_ingress import SHARED, has, opened, states
from tests.road.test_following import a_plane, an_hour_later
from tests.road.test_task_rows import ASKED, TASK, a_day_later, applied, rows, told
from tests.servers.plane import RunningPlane, settings_for
from tests.servers.postgres import Database

SEEN = """insert into work.node_seen (node_id, seen_at, agent_version, spooled_reports, resynced)
values ('n1', clock_timestamp(), '1', %s, true)
on conflict (node_id) do update set spooled_reports = excluded.spooled_reports returning 1"""


async def rung(running_plane: RunningPlane, allocation: AllocationId) -> str:
    """The allocation's state after its deadline passed and its timer rang."""
    async with plane(running_plane.settings, clock=an_hour_later) as made:
        dispatcher = Dispatcher(made.handle, made.settings.silent_after)
        async with made.engine.begin() as conn:
            history = await allocation_history(conn, allocation)
            looks = await dispatcher.look(history, await made.handle.clock(conn))
            await dispatcher.write(conn, looks)
        await dispatcher.ring(made.engine, stream_of_allocation(allocation))
    return str(running_plane.client().get(f"/allocations/{allocation}").json()["state"])


async def test_none_fires_while_the_news_may_be_among_reports_on_their_way(
    running_plane: RunningPlane,
) -> None:
    node = admit(running_plane, "n1")
    allocation = AllocationId(allocate(running_plane).json()["id"])
    assert node.post("/heartbeat", json={**BEAT, "spooled_reports": 3}).is_success
    assert await rung(running_plane, allocation) == "placed"
    assert node.post("/heartbeat", json=BEAT).is_success
    assert await rung(running_plane, allocation) == "failed"


async def test_a_node_that_fell_silent_with_reports_is_waited_for_no_longer(
    running_plane: RunningPlane,
) -> None:
    node = admit(running_plane, "n1")
    allocation = AllocationId(allocate(running_plane).json()["id"])
    assert node.post("/heartbeat", json={**BEAT, "spooled_reports": 3}).is_success
    running_plane.rows("update work.node_seen set seen_at = seen_at - interval '1 hour' returning 1")
    assert await rung(running_plane, allocation) == "failed"


async def test_a_way_in_that_is_given_up_was_led_to_that_by_what_asked_for_it(
    running_plane: RunningPlane,
) -> None:
    node = admit(running_plane, "n1")
    assert has(running_plane, SHARED).is_success
    running = Running(running_plane, node, network_mode="public-nat", lease_seconds=7200)
    assert opened(running).is_success
    assert await rung(running_plane, AllocationId(running.id)) == "active"
    assert states(running) == ["withdrawn"]
    assert running.led_to_by("ingress.withdrawn") == ["ingress.reserved"]


async def test_what_an_admin_asked_for_waits_for_reports_on_their_way_too(database: Database) -> None:
    async with a_plane(database) as made:
        await applied(made, *await told(made, ASKED))
    settings = settings_for(database, "redis://127.0.0.1:1", 1, 1)
    async with plane(settings, clock=a_day_later) as made:
        await _reports_wait(made, 1)
        await Dispatcher(made.handle, timedelta(minutes=1)).ring(made.engine, stream_of_task(TASK))
        assert await rows(made) == [(1, "due")]
        await _reports_wait(made, 0)
        await Dispatcher(made.handle, timedelta(minutes=1)).ring(made.engine, stream_of_task(TASK))
        assert await rows(made) == [(1, "expired")]


async def _reports_wait(made: Plane, count: int) -> None:
    async with made.engine.begin() as conn:
        await conn.exec_driver_sql(SEEN, (count,))


def counted(plane: RunningPlane) -> list[str]:
    """Streams on which failed bring-ups are counted."""
    rows = plane.rows("select stream_id from ledger.event where type like '%.bring_up_failed' order by 1")
    return [stream for (stream,) in rows]


async def test_deadline_missed_by_a_reachable_node_that_accepted_the_order_counts_against_it(
    running_plane: RunningPlane,
) -> None:
    node = Node(running_plane, "n1", slots=1)
    asked = placed(running_plane)
    node.reports(asked, "slice.starting")
    assert await rung(running_plane, AllocationId(asked["id"])) == "failed"
    assert counted(running_plane) == ["node-n1", "slot-n1/0"]
    [failure] = node.shown()["failures"]
    assert failure["reason"]["code"] == "deadline_missed"


async def test_deadline_missed_before_the_node_took_up_the_order_does_not_count(
    running_plane: RunningPlane,
) -> None:
    Node(running_plane, "n1", slots=1)
    asked = placed(running_plane)
    assert await rung(running_plane, AllocationId(asked["id"])) == "failed"
    assert counted(running_plane) == []


async def test_deadline_missed_by_an_unreachable_node_does_not_count(running_plane: RunningPlane) -> None:
    node = Node(running_plane, "n1", slots=1)
    asked = placed(running_plane)
    node.reports(asked, "slice.starting")
    running_plane.rows("update work.node_seen set seen_at = seen_at - interval '1 hour' returning 1")
    assert await rung(running_plane, AllocationId(asked["id"])) == "failed"
    assert counted(running_plane) == []
