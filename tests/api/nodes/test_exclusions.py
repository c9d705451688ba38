"""Nodes and slots on which slices repeatedly fail to start are excluded from placement; the API shows the failures."""

import httpx
import pytest

from tests.api.broken_nodes import (
    REFUSED,
    UNREACHABLE_GUEST,
    Node,
    accepted_allocation,
    codes,
    recorded_events,
)
from tests.api.lifecycle import get_view
from tests.api.node import allocate, blocked_by
from tests.servers.plane import RunningPlane

REASON = {"reason": "its memory was replaced"}
EXCLUSIONS = ("slot.excluded", "node.excluded", "slot.readmitted", "node.readmitted")


@pytest.fixture
def plane(emptied_plane: RunningPlane) -> RunningPlane:
    return emptied_plane


def fail_bring_ups(plane: RunningPlane, node: Node, times: int, reason: dict[str, str] = REFUSED) -> None:
    for _ in range(times):
        allocation = accepted_allocation(plane)
        node.report_failed(allocation, reason)
        node.report_removed(allocation)


def readmit(plane: RunningPlane, path: str) -> httpx.Response:
    with plane.client() as client:
        return client.post(f"/nodes/{path}/readmit", json=REASON)


def test_node_with_three_failed_machine_starts_receives_no_fourth_allocation(
    plane: RunningPlane,
) -> None:
    node = Node(plane)
    fail_bring_ups(plane, node, 3)

    refused = allocate(plane)

    assert (refused.status_code, codes(refused)) == (409, ["no_healthy_slot"])
    assert "node n1: excluded after failed bring-ups" in refused.json()["reasons"][0]["message"]
    assert recorded_events(plane, *EXCLUSIONS) == [("node-n1", "node.excluded")]


def test_excluded_node_shows_the_reason_and_the_failures(plane: RunningPlane) -> None:
    node = Node(plane)
    fail_bring_ups(plane, node, 3)

    shown = node.view()

    assert (shown["blocked_by"], shown["excluded"]["code"]) == ("bring_ups_failed", "bring_ups_failed")
    assert "the hypervisor refused" in shown["excluded"]["message"]
    assert [(each["slot_id"], each["reason"]["code"]) for each in shown["failures"]] == [
        ("n1/0", "step_refused"),
        ("n1/1", "step_refused"),
        ("n1/2", "step_refused"),
    ]
    assert set(blocked_by(plane).values()) == {"bring_ups_failed"}
    assert {each["excluded"] for each in node.slots().values()} == {None}


def test_slot_with_repeated_failures_is_excluded_without_its_node(plane: RunningPlane) -> None:
    node = Node(plane, slots=2)
    neighbour = accepted_allocation(plane)
    assert neighbour["slots"][0]["slot_id"] == "n1/0"
    fail_bring_ups(plane, node, 3)

    refused = allocate(plane)

    assert codes(refused) == ["no_healthy_slot"]
    assert (
        "node n1: suitable slots are blocked by drift, quarantined, or excluded after failed bring-ups or a fault"
        in refused.json()["reasons"][0]["message"]
    )
    assert blocked_by(plane) == {"n1": None, "n1/0": None, "n1/1": "bring_ups_failed"}
    slot = node.slots()["n1/1"]
    assert (slot["state"], slot["excluded"]["code"], len(slot["failures"])) == ("free", "bring_ups_failed", 3)
    assert recorded_events(plane, *EXCLUSIONS) == [("slot-n1/1", "slot.excluded")]


def test_request_for_several_slots_does_not_count_excluded_slots(plane: RunningPlane) -> None:
    node = Node(plane, slots=3)
    neighbours = [accepted_allocation(plane), accepted_allocation(plane)]
    fail_bring_ups(plane, node, 3)
    for each in neighbours:
        with plane.client() as client:
            assert client.delete(f"/allocations/{each['id']}").is_success
        node.report_removed(each)

    assert codes(allocate(plane, slot_count=3)) == ["no_healthy_slot"]
    assert [each["slot_id"] for each in accepted_allocation(plane, slot_count=2)["slots"]] == ["n1/0", "n1/1"]


def test_guests_that_do_not_respond_exclude_neither_their_slot_nor_their_node_from_placement(
    plane: RunningPlane,
) -> None:
    node = Node(plane)
    fail_bring_ups(plane, node, 4, UNREACHABLE_GUEST)

    assert recorded_events(plane, *EXCLUSIONS, "node.bring_up_failed", "slot.bring_up_failed") == []
    assert accepted_allocation(plane)


def test_slice_that_becomes_ready_resets_the_failure_count_of_its_node(plane: RunningPlane) -> None:
    node = Node(plane)
    fail_bring_ups(plane, node, 2)
    successful = accepted_allocation(plane)
    node.report_ready(successful)
    assert node.view()["failures"] == []
    fail_bring_ups(plane, node, 2)

    assert recorded_events(plane, *EXCLUSIONS) == []
    assert recorded_events(plane, "node.bring_up_succeeded", "slot.bring_up_succeeded") == [
        ("node-n1", "node.bring_up_succeeded")
    ]


def test_slice_that_becomes_ready_readmits_its_excluded_node(plane: RunningPlane) -> None:
    node = Node(plane, slots=4)
    provisioning = accepted_allocation(plane)
    fail_bring_ups(plane, node, 3)
    assert codes(allocate(plane)) == ["no_healthy_slot"]

    node.report_ready(provisioning)

    assert (node.view()["excluded"], node.view()["blocked_by"]) == (None, None)
    assert accepted_allocation(plane)


def test_failure_reports_about_a_released_allocation_do_not_exclude_its_node_from_placement(
    plane: RunningPlane,
) -> None:
    node = Node(plane)
    for _ in range(4):
        allocation = accepted_allocation(plane)
        with plane.client() as client:
            client.delete(f"/allocations/{allocation['id']}")
        node.report_failed(allocation)
        node.report_removed(allocation)

    assert recorded_events(plane, *EXCLUSIONS, "node.bring_up_failed") == []


def test_node_view_before_its_readmission_shows_the_exclusion(plane: RunningPlane) -> None:
    node = Node(plane)
    fail_bring_ups(plane, node, 3)
    then = f"position:{plane.last_position()}"
    assert readmit(plane, "n1").is_success

    assert get_view(plane, "/nodes/n1", at=then).json()["excluded"]["code"] == "bring_ups_failed"
    assert node.view()["excluded"] is None


def test_admin_readmits_an_excluded_node(plane: RunningPlane) -> None:
    node = Node(plane)
    fail_bring_ups(plane, node, 3)

    answer = readmit(plane, "n1")

    shown = answer.json()
    assert (answer.status_code, shown["excluded"], shown["failures"], shown["blocked_by"]) == (
        200,
        None,
        [],
        None,
    )
    fail_bring_ups(plane, node, 1)
    assert accepted_allocation(plane)
    [(reason, actor)] = plane.rows(
        "select data::jsonb -> 'reason', actor from ledger.event where type = 'node.readmitted'"
    )
    assert reason == {"code": "readmitted_by_admin", "message": REASON["reason"]}
    assert actor.startswith("key:")


def test_admin_readmits_an_excluded_slot(plane: RunningPlane) -> None:
    node = Node(plane, slots=1)
    fail_bring_ups(plane, node, 3)
    assert codes(allocate(plane)) == ["no_healthy_slot"]

    answer = readmit(plane, "n1/slots/0")

    assert (answer.status_code, answer.json()["excluded"], answer.json()["failures"]) == (200, None, [])
    assert accepted_allocation(plane)["slots"][0]["slot_id"] == "n1/0"


def test_readmission_of_a_node_or_slot_that_is_not_excluded_or_without_a_reason_is_refused(
    plane: RunningPlane,
) -> None:
    Node(plane)
    for path, status, code in (
        ("n1", 409, "not_excluded"),
        ("n1/slots/0", 409, "not_excluded"),
        ("n2", 404, "unknown_node"),
        ("n1/slots/9", 404, "unknown_slot"),
        ("n1/slots/x", 404, "unknown_slot"),
    ):
        answer = readmit(plane, path)
        assert (path, answer.status_code, codes(answer)) == (path, status, [code])
    with plane.client() as client:
        assert client.post("/nodes/n1/readmit", json={"reason": ""}).status_code == 422
        assert client.post("/nodes/n1/readmit").status_code == 422
