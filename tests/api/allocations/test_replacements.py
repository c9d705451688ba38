"""An allocation that fails to start because of a node fault is placed on another node, once."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.api.allocations.test_ingress import ADDRESS, SHARED, SSH, claimed_ports, set_public_addresses
from tests.api.broken_nodes import REFUSED, UNREACHABLE_GUEST, Node, accepted_allocation, recorded_events
from tests.api.node import allocate, desired_orders
from tests.servers.plane import RunningPlane
from tests.waiting import until


@pytest.fixture
def plane(emptied_plane: RunningPlane) -> RunningPlane:
    return emptied_plane


@pytest.fixture
def first(plane: RunningPlane) -> Node:
    """Node on which the first allocation is placed, because placement prefers the node with fewer free slots."""
    return Node(plane, "n1", slots=2)


@pytest.fixture
def second(plane: RunningPlane, first: Node) -> Node:
    return Node(plane, "n2", slots=3)


def get_allocation(plane: RunningPlane, allocation: dict[str, Any]) -> dict[str, Any]:
    with plane.client() as client:
        return dict(client.get(f"/allocations/{allocation['id']}").json())


def slots_of(allocation: dict[str, Any]) -> list[str]:
    return [each["slot_id"] for each in allocation["slots"]]


def test_allocation_with_a_failed_machine_start_becomes_active_on_another_node(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    allocation = accepted_allocation(plane)
    assert slots_of(allocation) == ["n1/0"]
    first.report_failed(allocation)

    replaced = get_allocation(plane, allocation)

    assert (replaced["state"], slots_of(replaced)) == ("placed", ["n2/0"])
    assert (first.slots()["n1/0"]["state"], second.slots()["n2/0"]["state"]) == ("releasing", "claimed")
    second.report_ready(replaced)
    assert get_allocation(plane, allocation)["state"] == "active"


def types_of(plane: RunningPlane, allocation: dict[str, Any]) -> list[str]:
    rows = plane.rows(
        "select type from ledger.event where stream_id = %(stream)s order by version",
        stream=f"allocation-{allocation['id']}",
    )
    return [str(type_) for (type_,) in rows]


def kinds(plane: RunningPlane, slot: str) -> list[tuple[str, str]]:
    """Return the kind and state of each order for the slot, oldest first."""
    query = "select kind, state from work.task where slot_id = %(slot)s order by position"
    return plane.rows(query, slot=slot)


def test_replacement_is_recorded_with_both_nodes_the_reason_and_its_number(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    allocation = accepted_allocation(plane, slot_count=2)
    first.report_failed(allocation, slot=1)

    [(fact, actor)] = plane.rows(
        "select data::jsonb, actor from ledger.event where type = 'allocation.replaced'"
    )
    [(deadline,)] = plane.rows(
        "select data::jsonb ->> 'deadline' from ledger.event where type = 'allocation.placed'"
    )
    assert (fact["vacated"], fact["attempt"], fact["reason"]) == (["n1/0", "n1/1"], 2, REFUSED)
    assert [each["slot_id"] for each in fact["slots"]] == ["n2/0", "n2/1"]
    assert (fact["deadline"], actor) == (deadline, "node:n1")
    assert get_allocation(plane, allocation)["replaced"] == {
        "vacated": ["n1/0", "n1/1"],
        "reason": REFUSED,
        "attempt": 2,
    }
    assert [each["state"] for each in first.slots().values()] == ["releasing", "releasing"]
    assert recorded_events(plane, "slot.bring_up_failed", "node.bring_up_failed") == [
        ("slot-n1/1", "slot.bring_up_failed"),
        ("node-n1", "node.bring_up_failed"),
    ]


def test_old_slot_of_a_replaced_allocation_is_free_only_once_its_node_proves_it_empty(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    allocation = accepted_allocation(plane)
    first.report_failed(allocation)
    second.report_ready(get_allocation(plane, allocation))
    assert first.slots()["n1/0"]["state"] == "releasing"

    first.report(allocation, "slice.removal_incomplete", leftovers=["tap slice0"])
    assert first.slots()["n1/0"]["state"] == "quarantined"
    first.report_removed(allocation)

    old = first.slots()["n1/0"]
    assert (old["state"], old["allocation_id"]) == ("free", None)
    assert get_allocation(plane, allocation)["state"] == "active"


def test_replacement_sends_a_removal_to_the_old_slot_and_an_apply_to_the_new_slot(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    allocation = accepted_allocation(plane)
    until(
        lambda: [kind for kind, _ in kinds(plane, "n1/0")] == ["slice.apply"], "the first slot has an order"
    )
    first.report_failed(allocation)

    until(lambda: [kind for kind, _ in kinds(plane, "n2/0")] == ["slice.apply"], "the new slot has an order")
    until(
        lambda: [kind for kind, _ in kinds(plane, "n1/0")] == ["slice.apply", "slice.remove"],
        "the old slot has an order",
    )
    assert kinds(plane, "n1/0")[0] == ("slice.apply", "superseded")
    assert (len(desired_orders(first.client)), len(desired_orders(second.client))) == (1, 1)


def test_late_reports_about_the_old_slot_do_not_change_the_new_placement(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    allocation = accepted_allocation(plane)
    first.report_failed(allocation)
    before = types_of(plane, allocation)

    first.report_failed(allocation)
    first.report_ready(allocation)
    first.report(allocation, "slice.starting")
    first.report(allocation, "slice.interrupted", reason=REFUSED)
    first.report(allocation, "slice.stopped", forced=False)

    assert types_of(plane, allocation) == before
    second.report_ready(get_allocation(plane, allocation))
    assert get_allocation(plane, allocation)["state"] == "active"


def test_allocation_fails_permanently_when_its_slices_could_not_be_started_on_a_second_node(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    Node(plane, "n3", slots=4)
    allocation = accepted_allocation(plane)
    first.report_failed(allocation)
    replaced = get_allocation(plane, allocation)
    second.report_failed(replaced)

    failed = get_allocation(plane, allocation)

    assert (failed["state"], failed["reason"]["code"]) == ("failed", "step_refused")
    assert second.slots()["n2/0"]["state"] == "releasing"
    first.report_removed(allocation)
    second.report_removed(replaced)
    states = {each["state"] for node in (first, second) for each in node.slots().values()}
    assert states == {"free"}


def test_failed_allocation_without_room_on_another_node_shows_the_failure_and_the_missing_capacity(
    plane: RunningPlane, first: Node
) -> None:
    allocation = accepted_allocation(plane)
    first.report_failed(allocation)

    failed = get_allocation(plane, allocation)

    assert (failed["state"], failed["reason"]["code"]) == ("failed", "step_refused")
    assert (
        "the hypervisor refused; the allocation was not placed on another node: no schedulable node"
        in failed["reason"]["message"]
    )
    assert first.slots()["n1/0"]["state"] == "releasing"


def test_allocation_of_several_slots_fails_if_no_other_node_has_room_for_all_of_them(
    plane: RunningPlane, first: Node
) -> None:
    small = Node(plane, "n2", slots=1)
    allocation = accepted_allocation(plane, slot_count=2)
    first.report_failed(allocation)

    assert get_allocation(plane, allocation)["state"] == "failed"
    assert small.slots()["n2/0"]["state"] == "free"


def test_allocation_that_forbids_replacement_is_not_replaced(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    allocation = accepted_allocation(plane, replace_on_failure=False)
    assert allocation["replace_on_failure"] is False
    first.report_failed(allocation)

    failed = get_allocation(plane, allocation)
    assert (failed["state"], failed["reason"]) == ("failed", REFUSED)
    assert first.view()["failures"]


def test_allocation_with_a_guest_that_does_not_respond_is_not_replaced(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    allocation = accepted_allocation(plane)
    first.report_failed(allocation, UNREACHABLE_GUEST)
    failed = get_allocation(plane, allocation)
    assert (failed["state"], failed["reason"]) == ("failed", UNREACHABLE_GUEST)


def test_replaced_allocation_is_released_only_when_both_nodes_prove_their_slots_empty(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    allocation = accepted_allocation(plane)
    first.report_failed(allocation)
    replaced = get_allocation(plane, allocation)
    with plane.client() as client:
        assert client.delete(f"/allocations/{allocation['id']}").is_success
    second.report_removed(replaced)
    assert get_allocation(plane, allocation)["state"] == "releasing"

    first.report_removed(allocation)

    assert get_allocation(plane, allocation)["state"] == "released"
    assert {first.slots()["n1/0"]["state"], second.slots()["n2/0"]["state"]} == {"free"}


def test_admin_force_releases_the_old_slot_of_a_node_that_does_not_respond(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    allocation = accepted_allocation(plane)
    first.report_failed(allocation)
    with plane.client() as client:
        freed = client.post("/nodes/n1/slots/0/force-release", json={"reason": "its host burned down"})

    assert (freed.status_code, freed.json()["state"]) == (200, "free")
    second.report_ready(get_allocation(plane, allocation))
    assert get_allocation(plane, allocation)["state"] == "active"


def test_ingress_rules_are_reserved_on_the_new_node_and_freed_on_the_old(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    assert set_public_addresses(plane, SHARED).is_success
    other = {**SHARED, "address": "203.0.113.8"}
    assert set_public_addresses(plane, other, node="n2").is_success
    allocation = accepted_allocation(
        plane, network_mode="public-nat", ingress=[{**SSH, "public_port": 20001}]
    )
    first.report_failed(allocation)

    replaced = get_allocation(plane, allocation)

    states = {each["public_address"]: (each["state"], each["slot_id"]) for each in replaced["ingress"]}
    assert states == {ADDRESS: ("withdrawn", "n1/0"), "203.0.113.8": ("reserved", "n2/0")}
    assert claimed_ports(plane) == {f"tcp/{ADDRESS}:20001", "tcp/203.0.113.8:20001"}
    first.report_removed(allocation)
    assert claimed_ports(plane) == {"tcp/203.0.113.8:20001"}
    second.complete_order(replaced)
    shown = get_allocation(plane, allocation)
    public = [(each["address"], each["port"]) for each in shown["endpoints"] if each["via"] == "public"]
    assert (shown["state"], public) == ("active", [("203.0.113.8", 20001)])


def test_replacement_waits_for_slots_that_another_transaction_holds(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    allocation = accepted_allocation(plane)
    with psycopg.connect(plane.database.admin_dsn) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("select 1 from read.slot where node_id = 'n2' for update")
        failing = pool.submit(first.report_failed, allocation)
        until(plane.has_lock_waiter, "the replacement waits for the slots")
        holder.rollback()
        failing.result(20)

    assert slots_of(get_allocation(plane, allocation)) == ["n2/0"]


def test_timeline_of_a_replaced_allocation_has_the_events_of_both_placements(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    allocation = accepted_allocation(plane)
    first.report_failed(allocation)
    second.report_ready(get_allocation(plane, allocation))

    def types() -> list[str]:
        with plane.client() as client:
            events = client.get(f"/allocations/{allocation['id']}/events").json()["items"]
        return [f"{each['stream'].partition('-')[2]} {each['type']}" for each in events]

    expected = [
        "n1/0 slot.bring_up_failed",
        "n1 node.bring_up_failed",
        "n1/0 slot.releasing",
        "n2/0 slot.claimed",
    ]
    until(lambda: set(expected) <= set(types()), "the events of both placements are in the timeline")
    with plane.client() as client:
        client.delete(f"/allocations/{allocation['id']}")
    assert allocate(plane).status_code == 202
