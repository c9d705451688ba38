"""Capacity of the fleet over the API: as many allocations fit as placement accepts, and past numbers of slots stay
readable.
"""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from tests.api.access.principals import issue
from tests.api.node import SLOT, admit, allocate, batch, survey
from tests.servers.plane import RunningPlane
from tests.waiting import until

SKU = "lab.small"
NOTHING = {"free": 0, "claimed": 0, "quarantined": 0, "blocked": 0}


def capacity(plane: RunningPlane, **query: str) -> dict[str, Any]:
    """Return the capacity for the SKU of the lab."""
    with plane.client() as client:
        answer = client.get("/capacity", params=query)
    assert answer.status_code == 200, answer.text
    [found] = [each for each in answer.json()["skus"] if each["sku"] == SKU]
    return dict(found)


def test_number_of_allocations_that_fit_equals_the_number_that_placement_accepts(
    emptied_plane: RunningPlane,
) -> None:
    plane = emptied_plane
    for name, slots in (("n1", 3), ("n2", 2), ("n3", 2)):
        admit(plane, name, slots=slots)
    plane.rows(
        'update read.slot set blocked = true, drift = \'[{"kind": "k", "blocks": true}]\' where slot_id = \'n1/0\''
        " returning 1"
    )
    with plane.client() as admin:
        assert admin.post("/nodes/n3/cordon", json={"reason": "its firmware is old"}).is_success
        # The change by hand is no event, so the numbers for placement must be counted again.
        assert admin.post("/nodes/n1/slots/1/reprovision", json={"reason": "test"}).is_success
    until(lambda: capacity(plane)["fits"] == 4, "the numbers of slots are counted again")

    accepted = 0
    while allocate(plane).status_code == 202:
        accepted += 1

    assert accepted == 4
    assert capacity(plane)["fits"] == 0


def test_slots_of_a_sku_by_status_are_shown_now_and_at_an_earlier_position(
    emptied_plane: RunningPlane,
) -> None:
    plane = emptied_plane
    for name in ("n1", "n2"):
        admit(plane, name, slots=2)
    before = plane.last_position()
    until(lambda: capacity(plane)["free"] == 4, "the capacity has all slots")
    [slot] = allocate(plane).json()["slots"]
    node = slot["slot_id"].partition("/")[0]

    until(lambda: capacity(plane)["claimed"] == 1, "the capacity has the claim")

    now, then = capacity(plane), capacity(plane, at=f"position:{before}")
    assert now == {**NOTHING, "sku": SKU, "fits": 3, "free": 3, "claimed": 1}
    assert then == {**NOTHING, "sku": SKU, "fits": None, "free": 4}
    with plane.client() as client:
        for query, free in (({}, 1), ({"at": f"position:{before}"}, 2)):
            items = client.get("/capacity/nodes", params=query).json()["items"]
            found = {each["node_id"]: each["skus"] for each in items}
            claimed = 2 - free
            assert found[node] == [{**NOTHING, "sku": SKU, "free": free, "claimed": claimed}]
            assert sum(each["free"] for [each] in found.values()) == 4 - claimed


def test_slot_with_a_size_different_from_that_of_its_approval_counts_as_blocked(
    emptied_plane: RunningPlane,
) -> None:
    plane = emptied_plane
    node = admit(plane, "n1")
    until(lambda: capacity(plane)["free"] == 1, "the capacity has the slot")
    larger = survey(slots=[{**SLOT, "vcpus": 2}])
    assert node.post("/reports", json=batch(str(uuid4()), (1, larger))).is_success
    last = plane.last_position()
    until(lambda: capacity(plane)["free"] == 0, "the capacity has the change")
    assert capacity(plane, at=f"position:{last}") == {**NOTHING, "sku": SKU, "fits": None, "blocked": 1}


def history(plane: RunningPlane, **query: str) -> dict[str, Any]:
    with plane.client() as client:
        answer = client.get("/capacity/history", params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_capacity_history_has_at_each_time_the_numbers_of_the_capacity_view_of_that_time(
    emptied_plane: RunningPlane,
) -> None:
    plane = emptied_plane
    for name in ("n1", "n2"):
        admit(plane, name, slots=2)
    before = datetime.now(UTC)
    [slot] = allocate(plane).json()["slots"]
    node = slot["slot_id"].partition("/")[0]
    until(lambda: capacity(plane)["claimed"] == 1, "the capacity has the claim")
    after = before + timedelta(seconds=2)
    until(lambda: datetime.now(UTC) > after, "the end of the range is past")
    query = {"from": moment(before - timedelta(seconds=60)), "until": moment(after), "step": "1"}

    found = history(plane, **query)

    assert (len(found["points"]), found["step_seconds"], found["node_id"]) == (63, 1, None)
    assert datetime.fromisoformat(found["end"]) == after
    for each in found["points"][-4:]:
        with plane.client() as client:
            then = client.get("/capacity", params={"at": each["at"]}).json()["skus"]
        assert [{**numbers, "fits": None} for numbers in each["skus"]] == then
    assert found["points"][0]["skus"] == []
    assert found["points"][-1]["skus"] == [{**NOTHING, "sku": SKU, "free": 3, "claimed": 1}]
    own = history(plane, **query, node=node)
    assert own["points"][-1]["skus"] == [{**NOTHING, "sku": SKU, "free": 1, "claimed": 1}]
    assert own["node_id"] == node
    assert len(history(plane)["points"]) == 49


def test_capacity_history_with_an_invalid_range_step_or_node_is_refused_with_the_reason(
    shared_plane: RunningPlane,
) -> None:
    begin, end = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    with shared_plane.client() as client:
        for query, status, code, parameter in (
            ({"from": end, "until": begin}, 422, "range_reversed", "from"),
            ({"from": begin, "until": end, "step": "60"}, 422, "out_of_range", "step"),
            ({"from": begin, "until": end, "step": "0"}, 422, "out_of_range", "step"),
            ({"from": "position:1"}, 422, "invalid_value", "from"),
            ({"node": "no node"}, 422, "invalid_value", "node"),
            ({"until": "2999-01-01T00:00:00Z"}, 409, "in_the_future", None),
        ):
            answer = client.get("/capacity/history", params=query)
            [reason] = answer.json()["reasons"]
            assert (answer.status_code, reason["code"], reason["parameter"]) == (status, code, parameter), (
                query
            )
    caller = issue(shared_plane, "caller-of-capacity", projects=["default"]).headers
    with shared_plane.client(**caller) as client:
        answer = client.get("/capacity/history")
    assert (answer.status_code, answer.json()["reasons"][0]["code"]) == (403, "role_missing")


def moment(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")
