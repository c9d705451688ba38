"""An allocation whose bring-up fails due to a node fault is placed on another node, once."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.api.broken_nodes import REFUSED, SILENT_GUEST, Node, placed, recorded_events
from tests.api.node import allocate, wanted
from tests.api.test_ingress import ADDRESS, SHARED, SSH, claims, has
from tests.servers.plane import RunningPlane
from tests.waiting import until


@pytest.fixture
def plane(running_plane: RunningPlane) -> RunningPlane:
    return running_plane


@pytest.fixture
def first(plane: RunningPlane) -> Node:
    """The node that placement prefers: it has fewer free slots."""
    return Node(plane, "n1", slots=2)


@pytest.fixture
def second(plane: RunningPlane, first: Node) -> Node:
    return Node(plane, "n2", slots=3)


def show(plane: RunningPlane, allocation: dict[str, Any]) -> dict[str, Any]:
    with plane.client() as client:
        return dict(client.get(f"/allocations/{allocation['id']}").json())


def slots_of(allocation: dict[str, Any]) -> list[str]:
    return [each["slot_id"] for each in allocation["slots"]]


def test_allocation_whose_machine_start_fails_becomes_active_on_another_node(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    asked = placed(plane)
    assert slots_of(asked) == ["n1/0"]
    first.fails(asked)

    replaced = show(plane, asked)

    assert (replaced["state"], slots_of(replaced)) == ("placed", ["n2/0"])
    assert (first.slots()["n1/0"]["state"], second.slots()["n2/0"]["state"]) == ("releasing", "claimed")
    second.readies(replaced)
    assert show(plane, asked)["state"] == "active"


def types_of(plane: RunningPlane, allocation: dict[str, Any]) -> list[str]:
    rows = plane.rows(
        "select type from ledger.event where stream_id = %(stream)s order by version",
        stream=f"allocation-{allocation['id']}",
    )
    return [str(type_) for (type_,) in rows]


def kinds(plane: RunningPlane, slot: str) -> list[tuple[str, str]]:
    """Kind and state of each order of the slot, the newest last."""
    query = "select kind, state from work.task where slot_id = %(slot)s order by position"
    return plane.rows(query, slot=slot)


def test_replacement_is_recorded_with_both_nodes_the_reason_and_its_number(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    asked = placed(plane, slot_count=2)
    first.fails(asked, slot=1)

    [(fact, actor)] = plane.rows(
        "select data::jsonb, actor from ledger.event where type = 'allocation.replaced'"
    )
    [(deadline,)] = plane.rows(
        "select data::jsonb ->> 'deadline' from ledger.event where type = 'allocation.placed'"
    )
    assert (fact["vacated"], fact["attempt"], fact["reason"]) == (["n1/0", "n1/1"], 2, REFUSED)
    assert [each["slot_id"] for each in fact["slots"]] == ["n2/0", "n2/1"]
    assert (fact["deadline"], actor) == (deadline, "node:n1")
    assert show(plane, asked)["replaced"] == {"vacated": ["n1/0", "n1/1"], "reason": REFUSED, "attempt": 2}
    assert [each["state"] for each in first.slots().values()] == ["releasing", "releasing"]
    assert recorded_events(plane, "slot.bring_up_failed", "node.bring_up_failed") == [
        ("slot-n1/1", "slot.bring_up_failed"),
        ("node-n1", "node.bring_up_failed"),
    ]


def test_old_slot_is_free_on_its_nodes_proof_alone(plane: RunningPlane, first: Node, second: Node) -> None:
    asked = placed(plane)
    first.fails(asked)
    second.readies(show(plane, asked))
    assert first.slots()["n1/0"]["state"] == "releasing"

    first.reports(asked, "slice.remains", leftovers=["tap slice0"])
    assert first.slots()["n1/0"]["state"] == "withheld"
    first.empties(asked)

    old = first.slots()["n1/0"]
    assert (old["state"], old["allocation_id"]) == ("free", None)
    assert show(plane, asked)["state"] == "active"


def test_orders_empty_the_old_slot_and_bring_up_the_new_one(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    asked = placed(plane)
    until(lambda: [kind for kind, _ in kinds(plane, "n1/0")] == ["slice.apply"], "the first order is made")
    first.fails(asked)

    until(lambda: [kind for kind, _ in kinds(plane, "n2/0")] == ["slice.apply"], "the new slot has an order")
    until(
        lambda: [kind for kind, _ in kinds(plane, "n1/0")] == ["slice.apply", "slice.remove"],
        "the old slot has an order",
    )
    assert kinds(plane, "n1/0")[0] == ("slice.apply", "superseded")
    assert (len(wanted(first.client)), len(wanted(second.client))) == (1, 1)


def test_late_reports_from_the_old_slot_do_not_harm_the_new_placement(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    asked = placed(plane)
    first.fails(asked)
    before = types_of(plane, asked)

    first.fails(asked)
    first.readies(asked)
    first.reports(asked, "slice.starting")
    first.reports(asked, "slice.interrupted", reason=REFUSED)
    first.reports(asked, "slice.stopped", forced=False)

    assert types_of(plane, asked) == before
    second.readies(show(plane, asked))
    assert show(plane, asked)["state"] == "active"


def test_second_failed_bring_up_fails_the_allocation(plane: RunningPlane, first: Node, second: Node) -> None:
    Node(plane, "n3", slots=4)
    asked = placed(plane)
    first.fails(asked)
    again = show(plane, asked)
    second.fails(again)

    failed = show(plane, asked)

    assert (failed["state"], failed["reason"]["code"]) == ("failed", "step_refused")
    assert second.slots()["n2/0"]["state"] == "releasing"
    first.empties(asked)
    second.empties(again)
    states = {each["state"] for node in (first, second) for each in node.slots().values()}
    assert states == {"free"}


def test_allocation_without_room_on_another_node_fails_with_both_reasons(
    plane: RunningPlane, first: Node
) -> None:
    asked = placed(plane)
    first.fails(asked)

    failed = show(plane, asked)

    assert (failed["state"], failed["reason"]["code"]) == ("failed", "step_refused")
    assert (
        "the hypervisor refused; not placed on another node: no schedulable node"
        in failed["reason"]["message"]
    )
    assert first.slots()["n1/0"]["state"] == "releasing"


def test_request_of_several_slots_is_replaced_as_a_whole_or_not_at_all(
    plane: RunningPlane, first: Node
) -> None:
    small = Node(plane, "n2", slots=1)
    asked = placed(plane, slot_count=2)
    first.fails(asked)

    assert show(plane, asked)["state"] == "failed"
    assert small.slots()["n2/0"]["state"] == "free"


def test_request_that_forbids_replacement_is_not_replaced(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    asked = placed(plane, replace_on_failure=False)
    assert asked["replace_on_failure"] is False
    first.fails(asked)

    failed = show(plane, asked)
    assert (failed["state"], failed["reason"]) == ("failed", REFUSED)
    assert first.shown()["failures"]


def test_guest_that_does_not_answer_is_not_replaced(plane: RunningPlane, first: Node, second: Node) -> None:
    asked = placed(plane)
    first.fails(asked, SILENT_GUEST)
    failed = show(plane, asked)
    assert (failed["state"], failed["reason"]) == ("failed", SILENT_GUEST)


def test_released_only_when_both_nodes_proved_their_slots_empty(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    asked = placed(plane)
    first.fails(asked)
    again = show(plane, asked)
    with plane.client() as client:
        assert client.delete(f"/allocations/{asked['id']}").is_success
    second.empties(again)
    assert show(plane, asked)["state"] == "releasing"

    first.empties(asked)

    assert show(plane, asked)["state"] == "released"
    assert {first.slots()["n1/0"]["state"], second.slots()["n2/0"]["state"]} == {"free"}


def test_admin_frees_an_old_slot_whose_node_does_not_answer(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    asked = placed(plane)
    first.fails(asked)
    with plane.client() as client:
        freed = client.post("/nodes/n1/slots/0/break-glass", json={"why": "its host burned down"})

    assert (freed.status_code, freed.json()["state"]) == (200, "free")
    second.readies(show(plane, asked))
    assert show(plane, asked)["state"] == "active"


def test_ingress_rules_are_reserved_on_the_new_node_and_freed_on_the_old(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    assert has(plane, SHARED).is_success
    other = {**SHARED, "address": "203.0.113.8"}
    assert has(plane, other, node="n2").is_success
    asked = placed(plane, network_mode="public-nat", ingress=[{**SSH, "public_port": 20001}])
    first.fails(asked)

    again = show(plane, asked)

    states = {each["public_address"]: (each["state"], each["slot_id"]) for each in again["ingress"]}
    assert states == {ADDRESS: ("withdrawn", "n1/0"), "203.0.113.8": ("reserved", "n2/0")}
    assert claims(plane) == {f"tcp/{ADDRESS}:20001", "tcp/203.0.113.8:20001"}
    first.empties(asked)
    assert claims(plane) == {"tcp/203.0.113.8:20001"}
    second.carries_out(again)
    shown = show(plane, asked)
    public = [(each["address"], each["port"]) for each in shown["endpoints"] if each["via"] == "public"]
    assert (shown["state"], public) == ("active", [("203.0.113.8", 20001)])


def test_replacement_waits_for_slots_that_another_transaction_holds(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    asked = placed(plane)
    with psycopg.connect(plane.database.admin_dsn) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("select 1 from read.slot where node_id = 'n2' for update")
        failing = pool.submit(first.fails, asked)
        until(plane.somebody_waits_for_a_lock, "the replacement waits for the slots")
        holder.rollback()
        failing.result(20)

    assert slots_of(show(plane, asked)) == ["n2/0"]


def test_timeline_of_a_replaced_allocation_has_the_events_of_both_placements(
    plane: RunningPlane, first: Node, second: Node
) -> None:
    asked = placed(plane)
    first.fails(asked)
    second.readies(show(plane, asked))

    def types() -> list[str]:
        with plane.client() as client:
            events = client.get(f"/allocations/{asked['id']}/events").json()["items"]
        return [f"{each['stream'].partition('-')[2]} {each['type']}" for each in events]

    expected = [
        "n1/0 slot.bring_up_failed",
        "n1 node.bring_up_failed",
        "n1/0 slot.releasing",
        "n2/0 slot.claimed",
    ]
    until(lambda: set(expected) <= set(types()), "the events of both placements are in the timeline")
    with plane.client() as client:
        client.delete(f"/allocations/{asked['id']}")
    assert allocate(plane).status_code == 202
