"""Requests that wait for capacity are placed in their order when slots become free, once each, or end with a reason."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from control_plane.commands.waiting import Placing
from control_plane.dispatcher.waiting_pass import pass_over_queue
from control_plane.wiring import plane as connected
from tests.api.access.principals import client_of, create_project, issue
from tests.api.allocations.test_ingress import SHARED, SSH, set_public_addresses
from tests.api.allocations.test_outlook import end_lease_at
from tests.api.allocations.test_quotas import limit, used
from tests.api.broken_nodes import Node, accepted_allocation, codes, keep_nodes_reachable, recorded_events
from tests.api.node import KEY, allocate
from tests.projections.plane_requests import rebuild, verify
from tests.servers.plane import RunningPlane
from tests.waiting import until

HOUR = timedelta(hours=1)


@pytest.fixture
def plane(emptied_plane: RunningPlane) -> RunningPlane:
    return emptied_plane


@pytest.fixture
def node(plane: RunningPlane) -> Node:
    return Node(plane, "n1", slots=2)


def view(plane: RunningPlane, allocation: dict[str, Any], **query: str) -> dict[str, Any]:
    with plane.client() as client:
        answer = client.get(f"/allocations/{allocation['id']}", params=query)
    assert answer.is_success, answer.text
    return dict(answer.json())


def queued(
    plane: RunningPlane, priority: int = 0, wait_seconds: int = 600, **fields: object
) -> dict[str, Any]:
    """Request an allocation that must wait, and return it."""
    wait = {"priority": priority, "wait_seconds": wait_seconds}
    made = accepted_allocation(plane, wait_for_capacity=wait, **fields)
    assert made["state"] == "waiting", made
    return made


def release(plane: RunningPlane, allocation: dict[str, Any]) -> None:
    with plane.client() as client:
        answer = client.delete(f"/allocations/{allocation['id']}")
    assert answer.status_code == 202, answer.text


def free(plane: RunningPlane, node: Node, allocation: dict[str, Any]) -> None:
    """Release an allocation and prove its slots empty."""
    keep_nodes_reachable(plane)
    release(plane, allocation)
    node.report_removed(allocation)


def placed(plane: RunningPlane, *allocations: dict[str, Any]) -> Callable[[], bool]:
    """Return a function that returns whether all these allocations are placed."""
    return lambda: all(view(plane, each)["state"] == "placed" for each in allocations)


@contextmanager
def leading(plane: RunningPlane, program: str) -> Iterator[None]:
    """Take the leadership of a program, so that the program does none of the work of a leader meanwhile."""
    name, ended = f"lead {program}", set[int]()
    with psycopg.connect(plane.database.admin_dsn, autocommit=True) as conn:

        def sessions() -> set[int]:
            found = conn.execute("select pid from pg_stat_activity where application_name = %s", [name])
            return {pid for (pid,) in found}

        def leads() -> bool:
            for pid in sessions() - ended:
                ended.add(pid)
                conn.execute("select pg_terminate_backend(%s)", [pid])
            return conn.execute("select ledger.lead(%s)", [program]).fetchone() == (True,)

        until(leads, f"the test leads {program}")
        # The former leader opens its next session after it has ended its work.
        until(lambda: bool(sessions() - ended), f"{program} waits to lead again")
        yield


def states(plane: RunningPlane, *allocations: dict[str, Any]) -> list[str]:
    return [view(plane, each)["state"] for each in allocations]


def cancel(plane: RunningPlane, *allocations: dict[str, Any]) -> None:
    for each in allocations:
        release(plane, each)


def settled(plane: RunningPlane, *allocations: dict[str, Any]) -> None:
    """Wait until the dispatcher has tried to place each of these waiting requests or one with the same need."""
    query = "select count(*) from work.waiting_attempt where allocation_id = any(%(names)s)"
    names = [each["id"] for each in allocations]
    until(lambda: plane.rows(query, names=names) == [(len(names),)], "the requests were tried")


def test_request_without_capacity_waits_without_slots_and_is_placed_when_a_slot_is_free(
    plane: RunningPlane, node: Node
) -> None:
    first, second = accepted_allocation(plane), accepted_allocation(plane)
    assert codes(allocate(plane)) == ["no_capacity"]
    made = queued(plane)
    assert (made["slots"], made["lease"], made["price_per_hour"], made["generation"]) == ([], None, None, 0)
    assert made["queue"]["reason"]["code"] == "no_capacity"
    shown = view(plane, made)
    assert (shown["queue"]["position"], shown["queue"]["priority"]) == (1, 0)
    assert shown["allowed_actions"]["release"]["allowed"]
    assert not any(
        shown["allowed_actions"][each]["allowed"] for each in ("stop", "start", "renew_lease", "open_ingress")
    )

    def listed() -> list[tuple[str, int]]:
        with plane.client() as client:
            found = client.get("/allocations", params={"state": "waiting"}).json()["items"]
        return [(each["id"], each["queue"]["position"]) for each in found]

    until(lambda: listed() == [(made["id"], 1)], "the waiting request is listed")
    before = datetime.now(UTC).isoformat()
    free(plane, node, first)
    until(placed(plane, made), "the waiting request is placed")
    shown = view(plane, made)
    assert [each["slot_id"] for each in shown["slots"]] == [first["slots"][0]["slot_id"]]
    assert (shown["queue"], shown["generation"]) == (None, shown["version"])
    assert view(plane, made, at=before)["state"] == "waiting"
    assert view(plane, second)["state"] == "placed"
    stream = [
        kind
        for name, kind in recorded_events(
            plane,
            "allocation.requested",
            "allocation.specified",
            "allocation.queued",
            "allocation.dequeued",
            "allocation.placed",
        )
        if name.endswith(made["id"])
    ]
    assert stream == [
        f"allocation.{each}" for each in ("requested", "specified", "queued", "dequeued", "placed")
    ]
    with plane.client() as client:
        explained = client.get(f"/allocations/{made['id']}/placement")
    assert explained.is_success, explained.text
    node.report_ready(shown)
    until(lambda: view(plane, made)["state"] == "active", "the allocation is active")


def test_request_that_permits_waiting_is_placed_at_once_if_there_is_capacity(
    plane: RunningPlane, node: Node
) -> None:
    assert accepted_allocation(plane, wait_for_capacity=True)["state"] == "placed"


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"slot_count": 3}, "no_suitable_slot"), ({"max_price_per_hour": "0.001"}, "price_too_high")],
)
def test_request_that_can_never_be_placed_is_refused_although_it_permits_waiting(
    plane: RunningPlane, node: Node, fields: dict[str, object], code: str
) -> None:
    assert codes(allocate(plane, wait_for_capacity=True, **fields)) == [code]


def test_waiting_requests_are_placed_by_priority_and_then_by_age(plane: RunningPlane, node: Node) -> None:
    held = [accepted_allocation(plane), accepted_allocation(plane)]
    low, old, new, high = (queued(plane, priority) for priority in (-1, 0, 0, 1))
    assert [view(plane, each)["queue"]["position"] for each in (high, old, new, low)] == [1, 2, 3, 4]
    for freed, next_ in zip(held, (high, old), strict=True):
        free(plane, node, freed)
        until(placed(plane, next_), "the next request is placed")
    assert states(plane, low, old, new, high) == ["waiting", "placed", "waiting", "placed"]


def test_cancelled_waiting_request_ends_at_once_and_the_next_one_becomes_the_first(
    plane: RunningPlane, node: Node
) -> None:
    held = accepted_allocation(plane, slot_count=2)
    first, second = queued(plane, slot_count=2), queued(plane, slot_count=2)
    cancel(plane, first)
    assert states(plane, first, second) == ["released", "waiting"]
    assert view(plane, second)["queue"]["position"] == 1
    cancel(plane, first)
    free(plane, node, held)
    until(placed(plane, second), "the other request is placed")
    assert view(plane, first)["slots"] == []


def test_request_that_waited_too_long_fails_with_the_time_in_the_reason(
    plane: RunningPlane, node: Node
) -> None:
    accepted_allocation(plane, slot_count=2)
    made = queued(plane, wait_seconds=1)
    until(lambda: view(plane, made)["state"] == "failed", "the wait has ended")
    reason = view(plane, made)["reason"]
    assert reason["code"] == "wait_expired"
    assert reason["message"].startswith("no capacity became free in 1 s;")
    assert "waiting_requests" not in used(plane)


def test_project_may_have_only_as_many_waiting_requests_as_its_limit(plane: RunningPlane, node: Node) -> None:
    accepted_allocation(plane, slot_count=2)
    limit(plane, waiting_requests=2)
    with ThreadPoolExecutor(6) as pool:
        made = [*pool.map(lambda _: allocate(plane, wait_for_capacity=True), range(6))]
    assert sorted(each.status_code for each in made) == [202, 202, 409, 409, 409, 409]
    refused = next(each for each in made if each.status_code == 409)
    assert codes(refused) == ["quota_exceeded"]
    exceeded = refused.json()["exceeded"][0]
    assert (exceeded["limit_name"], exceeded["limit"], exceeded["used"]) == ("waiting_requests", "2", "2")
    assert used(plane)["waiting_requests"] == 2
    cancel(plane, next(each.json() for each in made if each.status_code == 202))
    queued(plane)
    limit(plane, waiting_requests=None)
    for _ in range(14):
        queued(plane)
    assert codes(allocate(plane, wait_for_capacity=True)) == ["quota_exceeded"]


def test_large_request_gets_a_node_although_smaller_ones_want_each_slot_that_becomes_free(
    plane: RunningPlane, node: Node
) -> None:
    held = [accepted_allocation(plane), accepted_allocation(plane)]
    large = queued(plane, slot_count=2)
    small = queued(plane)
    settled(plane, large)
    free(plane, node, held[0])
    settled(plane, large, small)
    assert states(plane, large, small) == ["waiting", "waiting"]
    refused = allocate(plane)
    assert codes(refused) == ["no_capacity"]
    assert "kept for requests that wait" in refused.json()["reasons"][0]["message"]
    free(plane, node, held[1])
    until(placed(plane, large), "the large request is placed")
    assert states(plane, small) == ["waiting"]


def test_request_with_a_short_lease_is_placed_on_a_node_kept_for_a_large_waiting_request(
    plane: RunningPlane, node: Node
) -> None:
    held = [accepted_allocation(plane), accepted_allocation(plane)]
    end_lease_at(plane, held[1]["id"], datetime.now(UTC) + 2 * HOUR)
    large = queued(plane, slot_count=2)
    settled(plane, large)
    until(lambda: view(plane, large)["queue"]["position"] == 1, "the large request is first")
    free(plane, node, held[0])
    kept = "select count(*) from work.waiting_attempt where kept_node = 'n1' and kept_from is not null"
    until(lambda: plane.rows(kept) == [(1,)], "the node is kept until the end of the other lease")
    assert view(plane, large)["queue"]["earliest_possible_at"] is not None
    assert codes(allocate(plane, lease_seconds=3 * 3600)) == ["no_capacity"]
    assert accepted_allocation(plane, lease_seconds=1800)["state"] == "placed"


def test_node_kept_for_a_waiting_request_is_available_again_when_the_request_is_cancelled(
    plane: RunningPlane, node: Node
) -> None:
    held = [accepted_allocation(plane), accepted_allocation(plane)]
    large, small = queued(plane, slot_count=2), queued(plane)
    settled(plane, large)
    free(plane, node, held[0])
    settled(plane, large, small)
    cancel(plane, large)
    until(placed(plane, small), "the small request is placed")


def test_waiting_request_over_its_quota_continues_to_wait_and_does_not_delay_other_requests(
    plane: RunningPlane, node: Node
) -> None:
    create_project(plane, "vision")
    held = [accepted_allocation(plane), accepted_allocation(plane)]
    over, other = queued(plane), queued(plane, project="vision")
    limit(plane, slots=1)
    free(plane, node, held[0])
    until(placed(plane, other), "the request of the other project is placed")
    until(lambda: view(plane, over)["queue"]["reason"]["code"] == "quota_exceeded", "the quota is the reason")
    limit(plane, slots=2)
    free(plane, node, held[1])
    until(placed(plane, over), "the request is placed within the quota")


def test_each_wrong_value_of_a_wait_is_one_reason_of_the_refusal(plane: RunningPlane, node: Node) -> None:
    refused = allocate(plane, wait_for_capacity={"wait_seconds": 0, "priority": 101})
    assert [(each["field"], each["code"]) for each in refused.json()["reasons"]] == [
        ("/wait_for_capacity/wait_seconds", "out_of_range"),
        ("/wait_for_capacity/priority", "out_of_range"),
    ]
    assert codes(allocate(plane, wait_for_capacity=5)) == ["wrong_type"]


def test_only_an_admin_may_request_a_priority_above_zero(plane: RunningPlane, node: Node) -> None:
    accepted_allocation(plane, slot_count=2)
    with client_of(plane, issue(plane, "ci", projects=["default"])) as caller:
        body = {"sku": "lab.small", "ssh_authorized_keys": [KEY], "wait_for_capacity": {"priority": 1}}
        refused = caller.post("/allocations", json=body)
        body["wait_for_capacity"] = {"priority": -1}
        accepted = caller.post("/allocations", json=body)
    assert (refused.status_code, codes(refused)) == (403, ["priority_not_permitted"])
    assert accepted.json()["state"] == "waiting"


def test_ingress_rules_of_a_waiting_request_are_reserved_when_it_is_placed(
    plane: RunningPlane, node: Node
) -> None:
    set_public_addresses(plane, SHARED)
    held = accepted_allocation(plane, slot_count=2)
    made = queued(plane, network_mode="public-nat", ingress=[SSH])
    assert "public_ports" not in used(plane)
    free(plane, node, held)
    until(placed(plane, made), "the request is placed")
    [rule] = view(plane, made)["ingress"]
    assert (rule["state"], rule["port"]) == ("reserved", 22)
    assert used(plane)["public_ports"] == 1


def test_new_request_does_not_take_a_slot_that_a_waiting_request_could_take(
    plane: RunningPlane, node: Node
) -> None:
    """The dispatcher does not lead, so that only the new request can place the waiting one before itself."""
    held = [accepted_allocation(plane), accepted_allocation(plane)]
    waiting = [queued(plane), queued(plane)]
    kept = "select count(*) from work.waiting_attempt where kept_node = 'n1'"
    until(lambda: plane.rows(kept) == [(1,)], "the node is kept for the first one")
    with leading(plane, "dispatcher"):
        free(plane, node, held[0])
        refused = allocate(plane)
        assert codes(refused) == ["no_capacity"]
        assert states(plane, *waiting) == ["placed", "waiting"]
        free(plane, node, held[1])
        made = accepted_allocation(plane, wait_for_capacity=True)
        assert made["state"] == "waiting"


def test_exactly_as_many_waiting_requests_of_many_callers_are_placed_as_slots_become_free(
    plane: RunningPlane, node: Node
) -> None:
    held = accepted_allocation(plane, slot_count=2)
    limit(plane, waiting_requests=40)
    free_soon = [lambda: allocate(plane, wait_for_capacity=True)] * 12 + [lambda: allocate(plane)] * 4
    with ThreadPoolExecutor(16) as pool:
        running = [pool.submit(each) for each in free_soon]
        free(plane, node, held)
        answers = [each.result() for each in running]
    made = [each.json() for each in answers if each.status_code == 202]
    until(lambda: sorted(states(plane, *made)).count("placed") == 2, "all slots are used")
    assert plane.rows("select count(*) from read.slot where state = 'claimed'") == [(2,)]
    assert plane.rows("select count(*) from read.waiting where is_waiting") == [(len(made) - 2,)]


def test_read_models_of_waiting_requests_are_equal_after_a_rebuild(running_plane: RunningPlane) -> None:
    plane = running_plane
    Node(plane, "n1", slots=2)
    accepted_allocation(plane, slot_count=2)
    ended, _ = queued(plane), queued(plane, priority=3)
    cancel(plane, ended)
    before = plane.rows("select * from read.waiting order by allocation_id")
    rebuild(plane, "waiting")
    assert plane.rows("select * from read.waiting order by allocation_id") == before
    verified = verify(plane)
    assert verified["differences"] == [], verified


def placing(plane: RunningPlane) -> Placing:
    settings = plane.settings
    return Placing(settings.unreachable_after, simulated_allowed=settings.place_on_simulated_nodes)


async def pass_of_other_dispatcher(plane: RunningPlane) -> int:
    """Make one pass over the waiting requests like a dispatcher in another process."""
    async with connected(plane.settings) as other:
        return await pass_over_queue(other.handle, placing(plane))


def test_several_dispatchers_place_each_waiting_request_once(plane: RunningPlane, node: Node) -> None:
    held = accepted_allocation(plane, slot_count=2)
    made = [queued(plane), queued(plane), queued(plane)]
    with leading(plane, "dispatcher"):
        free(plane, node, held)
        with ThreadPoolExecutor(4) as pool:
            found = [pool.submit(asyncio.run, pass_of_other_dispatcher(plane)) for _ in range(4)]
            for each in found:
                each.result()

        def both_placed() -> bool:
            # A pass that finds a slot locked by another one leaves its request to the next pass.
            asyncio.run(pass_of_other_dispatcher(plane))
            return states(plane, *made) == ["placed", "placed", "waiting"]

        until(both_placed, "both free slots are used")
    assert plane.rows("select count(*) from ledger.event where type = 'slot.claimed'") == [(4,)]
    slots = [view(plane, each)["slots"][0]["slot_id"] for each in made[:2]]
    assert sorted(slots) == ["n1/0", "n1/1"]


def test_new_dispatcher_continues_with_the_waiting_requests_of_the_previous_dispatcher(
    plane: RunningPlane, node: Node
) -> None:
    held = [accepted_allocation(plane), accepted_allocation(plane)]
    made = [queued(plane), queued(plane)]
    with leading(plane, "dispatcher"):
        free(plane, node, held[0])
        assert [view(plane, each)["queue"]["position"] for each in made] == [1, 2]
    until(placed(plane, made[0]), "the next leader places the first request")
    assert states(plane, made[1]) == ["waiting"]


def test_new_request_gets_the_slot_that_remains_on_a_node_after_the_waiting_request_is_placed_there(
    plane: RunningPlane, node: Node
) -> None:
    held = accepted_allocation(plane, slot_count=2)
    waiting = queued(plane)
    kept = "select count(*) from work.waiting_attempt where kept_node = 'n1'"
    until(lambda: plane.rows(kept) == [(1,)], "the node is kept")
    with leading(plane, "dispatcher"):
        free(plane, node, held)
        assert accepted_allocation(plane)["state"] == "placed"
        assert states(plane, waiting) == ["placed"]


def test_new_request_does_not_take_a_slot_that_fits_a_waiting_request_for_which_no_node_is_kept(
    plane: RunningPlane, node: Node
) -> None:
    """Only the first waiting request has a kept node; the second could take the slot that becomes free."""
    other = Node(plane, "n2", slots=1)
    accepted_allocation(plane, slot_count=2)
    held = accepted_allocation(plane, node="n2")
    large, small = queued(plane, slot_count=2), queued(plane)
    kept = "select kept_node from work.waiting_attempt where kept_node is not null"
    until(lambda: plane.rows(kept) == [("n1",)], "the node is kept for the large request")
    with leading(plane, "dispatcher"):
        free(plane, other, held)
        assert codes(allocate(plane)) == ["no_capacity"]
        assert states(plane, large, small) == ["waiting", "placed"]
