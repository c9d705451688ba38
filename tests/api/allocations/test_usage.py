"""The API shows the usage of slots, with the events of each figure, and each caller sees its projects only (PLT-9)."""

import csv
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from tests.api.access.principals import create_project, issue
from tests.api.allocations.billing import get, until_known
from tests.api.node import admit
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane

PRICE = Decimal("0.01")
"""Price per hour of the SKU of the lab."""


@pytest.fixture
def running(emptied_plane: RunningPlane) -> RunningAllocation:
    create_project(emptied_plane, "red")
    return RunningAllocation(emptied_plane, admit(emptied_plane, "n1"), project="red", labels={"team": "a"})


def test_usage_of_a_released_allocation_is_its_lease_with_the_events_that_it_follows_from(
    running: RunningAllocation,
) -> None:
    plane = running.plane
    assert running.request("stop").is_success
    running.report_stopped()
    assert plane.client().delete(f"/allocations/{running.id}").is_success
    until_known(plane)

    [entry] = get(plane, "/usage/entries")["items"]
    shown = get(plane, "/usage", {"group_by": "label:team"})

    stored = plane.rows(
        "select position, event_id::text, type, recorded_at from ledger.event where stream_id = %(stream)s and type = any"
        "(array['allocation.requested', 'allocation.specified', 'allocation.lease_granted', 'allocation.lease_ended'])"
        " order by position",
        stream=f"allocation-{running.id}",
    )
    assert [(each["position"], each["id"], each["type"]) for each in entry["events"]] == [
        row[:3] for row in stored
    ]
    granted = datetime.fromisoformat(running.view()["lease"]["granted_at"])
    assert datetime.fromisoformat(entry["starts_at"]) == granted
    assert datetime.fromisoformat(entry["ends_at"]) == stored[-1][3]
    assert (entry["allocation_id"], entry["project"], entry["sku"]) == (running.id, "red", "lab.small")
    assert (entry["sku_version"], entry["price_per_hour"], entry["running"]) == (1, "0.01", False)
    seconds = Decimal((stored[-1][3] - granted) // timedelta(microseconds=1)) / 10**6
    price = (seconds * PRICE / 3600).quantize(Decimal("0.000001"))
    amount = {"slot_seconds": f"{seconds:.6f}", "price": f"{price:f}"}
    assert entry["amount"] == shown["total"] == amount
    assert shown["groups"] == [{"key": "a", "amount": amount, "entries": 1}]


def test_usage_of_a_running_allocation_is_limited_to_the_range_and_to_the_filters(
    running: RunningAllocation,
) -> None:
    plane = running.plane
    until_known(plane)
    granted = datetime.fromisoformat(running.view()["lease"]["granted_at"])
    [entry] = get(plane, "/usage/entries")["items"]
    assert entry["running"]
    middle = (granted + timedelta(milliseconds=1)).astimezone(UTC).isoformat().replace("+00:00", "Z")

    part = get(plane, "/usage", {"to": middle, "project": "red", "sku": "lab.small", "label": "team=a"})

    assert part["total"]["slot_seconds"] == "0.001000"
    assert datetime.fromisoformat(part["end"]) == granted + timedelta(milliseconds=1)
    rest = get(plane, "/usage/entries", {"from": middle})["items"]
    assert [datetime.fromisoformat(each["starts_at"]) for each in rest] == [
        granted + timedelta(milliseconds=1)
    ]
    later = get(plane, "/usage", {"to": "2999-01-01T00:00:00Z"})
    assert datetime.fromisoformat(later["end"]) < datetime.now(UTC) + timedelta(minutes=1)
    for other in (
        {"project": "blue"},
        {"sku": "lab.medium"},
        {"label": "team=b"},
        {"to": "2000-01-01T00:00:00Z"},
    ):
        assert get(plane, "/usage", other)["total"]["slot_seconds"] == "0.000000", other
        assert get(plane, "/usage/entries", other)["items"] == [], other


def test_caller_sees_the_usage_of_its_own_projects_only(running: RunningAllocation) -> None:
    plane = running.plane
    create_project(plane, "blue")
    until_known(plane)
    own, other = (issue(plane, name, projects=[name]).headers for name in ("red", "blue"))

    assert len(get(plane, "/usage/entries", headers=own)["items"]) == 1
    assert [each["key"] for each in get(plane, "/usage", {"group_by": "project"}, own)["groups"]] == ["red"]
    for query in ({}, {"project": "red"}):
        assert get(plane, "/usage/entries", query, other)["items"] == []
        found = get(plane, "/usage", {"group_by": "project", **query}, other)
        assert (found["groups"], found["total"]["price"]) == ([], "0.000000")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group_by", "state"),
        ("group_by", "label:"),
        ("label", "team"),
        ("label", "=a"),
        ("from", "position:7"),
        ("to", "yesterday"),
        ("project", "no project"),
        ("sku", "no sku"),
    ],
)
def test_usage_request_with_an_invalid_value_is_refused_with_the_parameter(
    shared_plane: RunningPlane, name: str, value: str
) -> None:
    answer = shared_plane.client().get("/usage", params={name: value})
    assert answer.status_code == 422, answer.text
    assert [each["parameter"] for each in answer.json()["reasons"]] == [name]


def test_usage_request_with_a_reversed_range_is_refused(shared_plane: RunningPlane) -> None:
    reversed_range = {"from": "2026-03-02T00:00:00Z", "to": "2026-03-01T00:00:00Z"}
    for path in ("/usage", "/usage/entries"):
        answer = shared_plane.client().get(path, params=reversed_range)
        assert (answer.status_code, answer.json()["reasons"][0]["code"]) == (422, "range_reversed"), (
            answer.text
        )


def test_unused_part_of_a_reservation_is_reported_and_exported_and_not_in_the_total(
    running: RunningAllocation,
) -> None:
    plane = running.plane
    with plane.client() as client:
        assert client.put("/projects/red/reservations/lab.small", json={"slots": 3}).is_success
        assert client.put("/projects/red/reservations/lab.small", json={"slots": 1}).is_success
    assert plane.client().delete(f"/allocations/{running.id}").is_success
    running.report("slice.removed", absent=["port"])
    until_known(plane)
    [(end,)] = plane.rows("select clock_timestamp()")
    query = {"to": end.astimezone(UTC).isoformat().replace("+00:00", "Z")}

    shown = get(plane, "/usage", query)

    types = ["project.reservations_set", "slot.released"]
    stored = "select recorded_at from ledger.event where type = any(%(types)s) order by position"
    three, one, free = (moment for (moment,) in plane.rows(stored, types=types))
    # One slot is held until it is free, so two are unused between the changes, none after the second, and then one.
    parts = [(2, three, one), (1, free, end)]
    seconds = [slots * (until - since).total_seconds() for slots, since, until in parts]
    expected = {"project": "red", "sku": "lab.small", "slot_seconds": f"{sum(seconds):.6f}"}
    assert shown["unused_reservations"] == [expected]
    [entry] = get(plane, "/usage/entries", query)["items"]
    assert shown["total"] == entry["amount"]
    with plane.client() as client:
        exported = [*csv.DictReader(io.StringIO(client.get("/usage/export", params=query).text))]
    assert [each["kind"] for each in exported] == ["metered", "unused_reservation", "unused_reservation"]
    assert [
        (
            int(each["slot_count"]),
            datetime.fromisoformat(each["starts_at"]),
            datetime.fromisoformat(each["ends_at"]),
        )
        for each in exported[1:]
    ] == parts
    assert {(each["project"], each["sku"], each["price"]) for each in exported[1:]} == {
        ("red", "lab.small", "0.000000")
    }
    for other in (
        {"project": "default"},
        {"sku": "lab.medium"},
        {"label": "team=a"},
        {"to": "2000-01-01T00:00:00Z"},
    ):
        assert get(plane, "/usage", {**query, **other})["unused_reservations"] == []
