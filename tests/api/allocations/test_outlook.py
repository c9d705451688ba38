"""The refusal of a placement states which similar request could be placed now, and when the refused one may be."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.api.access.principals import create_project
from tests.api.node import KEY, admit, allocate
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.waiting import until

HOUR = timedelta(hours=1)


def refused(plane: RunningPlane, **fields: object) -> dict[str, Any]:
    """Request an allocation that must be refused. Return the outlook in the refusal: a similar possible request and the
    earliest possible time. Check that the preview has the same outlook.
    """
    answer = allocate(plane, **fields)
    assert answer.status_code == 409, answer.text
    outlook = answer.json()["outlook"]
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY], **fields}
    assert plane.client().post("/placements/preview", json=body).json()["outlook"] == outlook
    return dict(outlook)


def counted(plane: RunningPlane, number: int) -> None:
    """Wait until the numbers of free slots have this sum."""
    query = "select coalesce(sum(free), 0) from work.slot_counts"
    until(lambda: plane.rows(query) == [(number,)], "the free slots are counted")


def end_lease_at(plane: RunningPlane, allocation: str, end: datetime) -> None:
    """Set the end of a lease in the timers of the control plane, as soon as the allocation has a timer."""
    query = "update work.timer set lease_ends_at = %(end)s where stream_id = %(stream)s returning 1"
    stream = f"allocation-{allocation}"
    until(lambda: bool(plane.rows(query, end=end, stream=stream)), "the allocation has a timer")


def test_refusal_of_a_request_for_more_slots_than_any_node_has_suggests_the_largest_possible_number(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "n1", slots=2)
    admit(emptied_plane, "n2")
    counted(emptied_plane, 3)
    assert refused(emptied_plane, slot_count=4) == {
        "nearest": {"sku": "lab.small", "slot_count": 2},
        "earliest_possible_at": None,
    }


def test_refusal_of_a_request_for_a_sku_without_slots_suggests_the_most_similar_sku_with_a_free_slot(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "n1")
    counted(emptied_plane, 1)
    assert refused(emptied_plane, sku="lab.medium")["nearest"] == {"sku": "lab.small", "slot_count": 1}


def test_refusal_for_lack_of_a_free_slot_names_the_time_when_the_lease_that_holds_the_slot_ends(
    emptied_plane: RunningPlane,
) -> None:
    running = RunningAllocation(emptied_plane, admit(emptied_plane, "n1"), lease_seconds=7200)
    until(lambda: running.view()["state"] == "active", "the allocation is active")
    end = datetime.fromisoformat(running.view()["lease"]["expires_at"])
    counted(emptied_plane, 0)
    query = "select count(*) from work.timer where lease_ends_at = %(end)s"
    until(lambda: emptied_plane.rows(query, end=end) == [(1,)], "the timer has the end of the lease")
    found = refused(emptied_plane)
    assert found["nearest"] is None
    assert datetime.fromisoformat(found["earliest_possible_at"]) == end


@pytest.mark.parametrize(("count", "hours"), [(1, 1), (2, 3), (3, None)])
def test_refusal_of_a_request_for_several_slots_names_the_time_when_enough_leases_of_one_node_have_ended(
    emptied_plane: RunningPlane, count: int, hours: int | None
) -> None:
    now = datetime.now(UTC)
    # On n1 leases end after 1 and 4 hours, on n2 after 2 and 3 hours.
    ends = {"n1/0": 1, "n1/1": 4, "n2/0": 2, "n2/1": 3}
    for node in ("n1", "n2"):
        admit(emptied_plane, node, slots=2)
    made = [allocate(emptied_plane).json() for _ in ends]
    counted(emptied_plane, 0)
    for each in made:
        end_lease_at(emptied_plane, each["id"], now + ends[each["slots"][0]["slot_id"]] * HOUR)
    found = refused(emptied_plane, slot_count=count)["earliest_possible_at"]
    assert (found and datetime.fromisoformat(found)) == (hours and now + hours * HOUR)


@pytest.mark.parametrize(
    ("most", "nearest"), [("0.02", {"sku": "lab.medium", "slot_count": 1}), ("0.01", None)]
)
def test_similar_request_that_a_refusal_suggests_stays_within_the_price_cap(
    emptied_plane: RunningPlane, most: str, nearest: dict[str, Any] | None
) -> None:
    admit(emptied_plane, "n1", memory_mib=192)
    approved = emptied_plane.client().post("/nodes/n1/slots/0/approve", json={"skus": ["lab.medium"]})
    assert approved.is_success, approved.text
    counted(emptied_plane, 1)
    assert refused(emptied_plane, max_price_per_hour=most)["nearest"] == nearest


@pytest.mark.parametrize(
    ("memory_mib", "nearest"), [(192, {"sku": "lab.medium", "slot_count": 1}), (191, None)]
)
def test_similar_request_that_a_refusal_suggests_stays_within_the_limits_of_the_project(
    emptied_plane: RunningPlane, memory_mib: int, nearest: dict[str, Any] | None
) -> None:
    admit(emptied_plane, "n1", memory_mib=192)
    client = emptied_plane.client()
    assert client.post("/nodes/n1/slots/0/approve", json={"skus": ["lab.medium"]}).is_success
    assert client.put("/projects/default/limits", json={"memory_mib": memory_mib}).is_success
    counted(emptied_plane, 1)
    assert refused(emptied_plane)["nearest"] == nearest


def test_outlook_does_not_count_slots_that_are_reserved_for_other_projects(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "n1", slots=2)
    create_project(emptied_plane, "vision")
    path = "/projects/vision/reservations/lab.small"
    assert emptied_plane.client().put(path, json={"slots": 2}).is_success
    counted(emptied_plane, 2)
    assert refused(emptied_plane, slot_count=2) == {"nearest": None, "earliest_possible_at": None}
