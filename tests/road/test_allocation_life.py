"""Tests of an allocation on a simulated node, from its request to its release. They share the node: each begins and
ends with free slots.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from node_agent.lab.leaks.snapshot import differences
from tests.api.streams import Stream, open_stream
from tests.projections.plane_requests import caught_up
from tests.road.conftest import KEY, Site, running_site
from tests.servers.plane import RunningPlane
from tests.waiting import until


@pytest.fixture(scope="module")
def shared_site(shared_plane: RunningPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(shared_plane, tmp_path_factory.mktemp("site")) as made:
        yield made


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    """Control plane and node of the module, with two free slots. Allocations of the test are released after it."""
    yield shared_site
    client = shared_site.plane.client()
    caught_up(shared_site.plane)
    for each in client.get("/allocations").json()["items"]:
        if each["state"] not in {"released", "failed"}:
            assert client.delete(f"/allocations/{each['id']}").is_success
    shared_site.await_placeable(2)


def test_released_allocation_leaves_nothing_on_its_node(site: Site) -> None:
    before = site.node.snapshot()
    allocation = site.create()
    site.await_state(allocation, "active")
    shown = site.show(allocation)
    assert shown["slots"][0]["actual_ip"] == shown["slots"][0]["private_ip"]
    assert shown["endpoints"][0]["address"] == shown["slots"][0]["private_ip"]
    assert "domain" in {found.kind for found in differences(before, site.node.snapshot())}
    site.plane.client().delete(f"/allocations/{allocation}")
    site.await_state(allocation, "released")
    assert differences(before, site.node.snapshot()) == []


def test_timeline_of_a_released_allocation_contains_every_event_in_order_with_actor_and_cause(
    site: Site,
) -> None:
    allocation = site.create()
    site.await_state(allocation, "active")
    site.plane.client().delete(f"/allocations/{allocation}")
    site.await_state(allocation, "released")
    until(lambda: site.timeline(allocation)[-1]["type"] == "slot.released", "the timeline is projected")
    timeline = site.timeline(allocation)
    types = [event["type"] for event in timeline if event["type"] != "allocation.slice_address_observed"]
    assert types == [
        "allocation.requested",
        "allocation.specified",
        "allocation.placed",
        "slot.claimed",
        "allocation.slice_starting",
        "allocation.slice_ready",
        "allocation.activated",
        "allocation.lease_granted",
        "allocation.releasing",
        "allocation.lease_ended",
        "slot.releasing",
        "allocation.slice_removed",
        "allocation.released",
        "slot.released",
    ]
    assert [event["position"] for event in timeline] == sorted(event["position"] for event in timeline)
    assert all(event["actor"] and event["reason"] and event["observed_at"] for event in timeline)
    events = {event["id"] for event in timeline}
    by_node = [event for event in timeline if event["actor"] == "node:sim-a"]
    assert by_node
    assert all(event["causation_id"] in events for event in by_node)


def test_watch_of_an_allocation_announces_the_end_of_its_lease_once_more_after_a_renewal(
    site: Site,
) -> None:
    def announced(stream: Stream) -> dict[str, Any]:
        return next(each.data for each in iter(stream.next, None) if each.type == "allocation.lease_expiring")

    allocation = site.create(lease_seconds=3601)
    with open_stream(site.plane, f"/allocations/{allocation}/watch") as stream:
        first = announced(stream)
        renewed = site.plane.client().post(f"/allocations/{allocation}/lease", json={"lease_seconds": 3601})
        assert renewed.json()["lease"]["expires_at"] > first["data"]["expires_at"]
        second = announced(stream)
    for event, cause in ((first, "allocation.lease_granted"), (second, "allocation.lease_renewed")):
        assert event["data"]["lead_seconds"] == 3600
        assert event["actor"] == "process:allocation"
        [caused_by] = [each for each in site.timeline(allocation) if each["id"] == event["causation_id"]]
        assert (caused_by["type"], caused_by["data"]["expires_at"]) == (cause, event["data"]["expires_at"])


def test_slots_of_a_released_allocation_can_be_allocated_again(site: Site) -> None:
    for _ in range(3):
        allocation = site.create(slot_count=2)
        site.await_state(allocation, "active")
        site.plane.client().delete(f"/allocations/{allocation}")
        site.await_state(allocation, "released")


def test_allocation_request_that_exceeds_the_capacity_is_refused_and_appends_no_event(site: Site) -> None:
    first = site.create(slot_count=2)
    site.await_state(first, "active")
    client = site.plane.client()
    last_position = site.plane.rows("select max(position) from ledger.event")
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY]}
    answer = client.post("/allocations", json=body)
    assert answer.status_code == 409
    assert [reason["code"] for reason in answer.json()["reasons"]] == ["no_capacity"]
    assert site.plane.rows("select max(position) from ledger.event") == last_position


def test_allocation_request_repeated_with_the_same_idempotency_key_returns_the_same_allocation(
    site: Site,
) -> None:
    client = site.plane.client(**{"Idempotency-Key": "k-1"})
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY]}
    first, second = client.post("/allocations", json=body), client.post("/allocations", json=body)
    assert first.status_code == second.status_code == 202
    assert first.text == second.text
    other = client.post("/allocations", json={**body, "slot_count": 2})
    assert other.status_code == 409
    assert other.json()["reasons"][0]["code"] == "idempotency_key_reused"
