"""Requests that wait for capacity in the web console."""

from tests.api.allocations.test_waiting import queued
from tests.api.broken_nodes import Node, accepted_allocation
from tests.servers.plane import RunningPlane
from tests.web.browsing import logged_in


def test_waiting_request_is_shown_with_its_position_priority_reason_and_estimate(
    emptied_plane: RunningPlane,
) -> None:
    plane = emptied_plane
    Node(plane, "n1", slots=1)
    accepted_allocation(plane)
    first, second = queued(plane, priority=5), queued(plane, priority=-3)
    admin = logged_in(plane)
    for made, position, priority in ((first, 1, 5), (second, 2, -3)):
        page = admin.open(f"/allocations/{made['id']}")
        assert f"Queue position {position}, priority {priority}" in page.text
        assert "Slots 1 requested" in page.text
        assert "Lease 1 hour, from the activation of the allocation" in page.text
        why = page.text.partition("Why it waits")[2].partition("Estimate")[0]
        assert why.split(" (code no_capacity) ") == [
            " no schedulable node has a free slot of SKU lab.small",
            "node n1: too few free slots ",
        ]
        assert "Cancel request…" in page.text
        assert "Release…" not in page.text
        assert "Estimate" in page.text
        assert "allocation.queued" in page.text
        assert "No slots." in page.text
        assert "serial-log" not in page.text, "no slot has a serial log"
        assert "Tasks that are done" not in page.text, "no task was removed"
        assert f"position {position}, priority {priority}: no capacity" in admin.open("/allocations").text
    assert "◐ 2 Waiting allocations" in admin.open("/").text
    form = admin.open(f"/allocations/{second['id']}/release").text
    assert f"Cancel request of allocation {second['id']}" in form
    assert "Effect: The wait for capacity ends" in form
    assert "All data" not in form.lower()
    assert ", the last 6 characters of the id, to confirm" in form
    cancelled = admin.submit(f"/allocations/{second['id']}/release", confirm=second["id"])
    assert "released" in cancelled.text
    assert "Queue" not in admin.open(f"/allocations/{second['id']}").text


def test_watch_of_a_waiting_allocation_streams_its_events(emptied_plane: RunningPlane) -> None:
    Node(emptied_plane, "n1", slots=1)
    accepted_allocation(emptied_plane)
    made = queued(emptied_plane)
    with emptied_plane.client() as client:
        listed = [each["type"] for each in client.get(f"/allocations/{made['id']}/events").json()["items"]]
        assert listed == ["allocation.requested", "allocation.specified", "allocation.queued"]
        with client.stream("GET", f"/allocations/{made['id']}/watch") as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("event:"))
            assert [next(lines) for _ in listed] == [f"event: {each}" for each in listed]
