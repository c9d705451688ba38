"""The capacity of the fleet: what fits is what placement accepts, and past numbers of slots stay readable."""

from typing import Any

from tests.api.node import admit, allocate
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


def test_exactly_as_many_allocations_fit_as_placement_accepts(emptied_plane: RunningPlane) -> None:
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
