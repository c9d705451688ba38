"""Reservations: slots of a SKU that are kept free for a project, and refused to others (ALC-13)."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psycopg
import pytest

from tests.api.access.principals import client_of, create_project, issue
from tests.api.allocations.billing import get, until_known
from tests.api.allocations.test_quotas import release
from tests.api.broken_nodes import Node, accepted_allocation, codes, keep_nodes_reachable
from tests.api.node import KEY, allocate
from tests.projections.plane_requests import rebuild, verify
from tests.servers.plane import RunningPlane
from tests.waiting import until

SMALL = "lab.small"


@pytest.fixture
def plane(emptied_plane: RunningPlane) -> RunningPlane:
    create_project(emptied_plane, "vision")
    create_project(emptied_plane, "speech")
    return emptied_plane


def reserve(plane: RunningPlane, slots: int, project: str = "vision", sku: str = SMALL) -> httpx.Response:
    with plane.client() as client:
        path = f"/projects/{project}/reservations/{sku}"
        return client.put(path, json={"slots": slots}) if slots else client.delete(path)


def state(plane: RunningPlane, project: str = "vision", sku: str = SMALL) -> tuple[int, int, int, int]:
    """Return slots, used, unused and short_by of a reservation."""
    keep_nodes_reachable(plane)
    with plane.client() as client:
        [found] = [
            each
            for each in client.get("/reservations").json()["items"]
            if (each["project"], each["sku"]) == (project, sku)
        ]
    return found["slots"], found["used"], found["unused"], found["short_by"]


def fits(plane: RunningPlane, project: str | None = None, sku: str = SMALL) -> int:
    keep_nodes_reachable(plane)
    with plane.client() as client:
        skus = client.get("/capacity", params={"project": project} if project else {}).json()["skus"]
    return int(next(each["fits"] for each in skus if each["sku"] == sku))


def own(plane: RunningPlane, **body: object) -> httpx.Response:
    """Request an allocation in the project vision."""
    return allocate(plane, project="vision", **body)


def test_reserved_slots_are_refused_to_another_project_and_given_to_the_project_that_reserved_them(
    plane: RunningPlane,
) -> None:
    Node(plane, "n1", slots=4)
    assert reserve(plane, 3).is_success
    assert state(plane) == (3, 0, 3, 0)
    assert (fits(plane), fits(plane, "default"), fits(plane, "vision")) == (4, 1, 4)
    accepted_allocation(plane)
    refused = allocate(plane)
    assert (refused.status_code, codes(refused)) == (409, ["slots_reserved"])
    [reason] = refused.json()["reasons"]
    assert "3 free slots can carry SKU lab.small, and 3 are reserved for other projects" in reason["message"]
    assert [each["code"] for each in refused.json()["placement"]] == ["reserved_for_others"]
    assert (fits(plane, "default"), fits(plane, "vision")) == (0, 3)
    first = own(plane, slot_count=2)
    assert first.status_code == 202
    assert state(plane) == (3, 2, 1, 0)
    assert codes(allocate(plane)) == ["slots_reserved"]
    assert own(plane).status_code == 202
    assert state(plane) == (3, 3, 0, 0)
    assert codes(own(plane)) == ["no_capacity"]
    release(plane, first.json())
    assert state(plane) == (3, 3, 0, 0), "the slots count until they are free again"


def test_placement_preview_and_dry_run_do_not_offer_slots_that_are_reserved_for_another_project(
    plane: RunningPlane,
) -> None:
    Node(plane, "n1", slots=2)
    assert reserve(plane, 2).is_success
    body = {"project": "default", "sku": SMALL, "ssh_authorized_keys": [KEY]}
    with plane.client() as client:
        shown = client.post("/placements/preview", json=body).json()
        tried = client.post("/allocations?dry_run=true", json=body)
        possible = client.post("/placements/preview", json={**body, "project": "vision"}).json()
    assert [each["code"] for each in shown["reasons"]] == ["slots_reserved"]
    assert [each["code"] for each in shown["groups"]] == ["reserved_for_others"]
    assert codes(tried) == ["slots_reserved"]
    assert (possible["reasons"], len(possible["slots"])) == ([], 1)


def test_concurrent_creations_in_other_projects_take_no_reserved_slot(running_plane: RunningPlane) -> None:
    plane = running_plane
    for name in ("vision", "speech"):
        create_project(plane, name)
    Node(plane, "n1", slots=24)
    assert reserve(plane, 10).is_success
    projects = ["default", "speech"] * 12 + ["vision"] * 12
    with ThreadPoolExecutor(36) as pool:
        answers = [*pool.map(lambda name: allocate(plane, project=name).status_code, projects)]
    given = Counter(name for name, status in zip(projects, answers, strict=True) if status == 202)
    assert given["vision"] >= 10
    assert sum(given.values()) == 24
    assert state(plane)[2:] == (0, 0)
    assert verify(plane)["differences"] == []
    rebuild(plane, "projects", "slots")
    assert state(plane)[:2] == (10, given["vision"])


def test_creation_is_refused_if_another_one_takes_the_last_unreserved_slot_after_its_search(
    plane: RunningPlane,
) -> None:
    """Both requests find slots before either of them commits; only the check under the lock refuses one."""
    Node(plane, "n1", slots=3)
    assert reserve(plane, 2).is_success
    with ThreadPoolExecutor() as pool, psycopg.connect(plane.database.admin_dsn) as holding:
        lock = f"sku-{SMALL}"
        holding.execute("insert into work.quota_lock values (%s)", [lock])
        requested = [pool.submit(allocate, plane) for _ in range(2)]
        waiting = "select count(*) from pg_locks where not granted"
        until(lambda: plane.rows(waiting)[0][0] >= 2, "both requests wait for the lock of the SKU")
        holding.commit()
    assert sorted(each.result().status_code for each in requested) == [202, 409]
    assert state(plane) == (2, 0, 2, 0)


def test_reservation_beyond_the_free_slots_is_accepted_and_shows_how_many_slots_are_missing(
    plane: RunningPlane,
) -> None:
    Node(plane, "n1", slots=3)
    taken = accepted_allocation(plane)
    answer = reserve(plane, 4)
    assert answer.is_success
    shown = {"project": "vision", "sku": SMALL, "slots": 4, "used": 0, "unused": 4, "short_by": 2}
    assert answer.json()["reservations"] == [shown]
    assert codes(allocate(plane)) == ["slots_reserved"]
    assert own(plane, slot_count=2).status_code == 202
    assert state(plane) == (4, 2, 2, 2)
    assert (fits(plane, "default"), fits(plane, "vision")) == (0, 0)
    release(plane, taken)
    assert state(plane) == (4, 2, 2, 2), "the slot is not proved empty yet"


def test_project_with_a_reservation_cannot_take_slots_that_are_reserved_for_another_project(
    plane: RunningPlane,
) -> None:
    Node(plane, "n1", slots=4)
    assert reserve(plane, 2).is_success
    assert reserve(plane, 1, "speech").is_success
    assert codes(own(plane, slot_count=4)) == ["slots_reserved"]
    assert own(plane, slot_count=3).status_code == 202
    assert codes(own(plane)) == ["slots_reserved"]
    assert allocate(plane, project="speech").status_code == 202


def test_reservation_of_a_sku_does_not_affect_slots_that_are_offered_only_under_another_sku(
    plane: RunningPlane,
) -> None:
    Node(plane, "n1", slots=3)
    with plane.client() as client:
        for name in ("lab.tiny", "lab.other"):
            tiny = {"name": name, "vcpus": 1, "memory_mib": 64, "price_per_hour": "0"}
            assert client.post("/skus", json=tiny).is_success
        for index, skus in enumerate([[SMALL, "lab.tiny"], [SMALL], ["lab.tiny"]]):
            assert client.post(f"/nodes/n1/slots/{index}/approve", json={"skus": skus}).is_success
    assert reserve(plane, 2).is_success
    # Slot 0 can carry both SKUs and is kept; slot 2 is used although it comes later.
    assert fits(plane, "default", "lab.tiny") == 1
    made = accepted_allocation(plane, sku="lab.tiny")
    assert [each["slot_id"] for each in made["slots"]] == ["n1/2"]
    assert codes(allocate(plane, sku="lab.tiny")) == ["slots_reserved"]
    # The owner may use the slots with another SKU, which does not count towards the reservation.
    assert own(plane, sku="lab.tiny").status_code == 202
    assert state(plane) == (2, 0, 2, 1)


def test_allocation_is_not_replaced_on_slots_that_are_reserved_for_others(plane: RunningPlane) -> None:
    node = Node(plane, "n1", slots=1)
    made = accepted_allocation(plane)
    Node(plane, "n2", slots=2)
    assert reserve(plane, 2).is_success
    keep_nodes_reachable(plane)
    node.report_failed(made)
    with plane.client() as client:
        failed = client.get(f"/allocations/{made['id']}").json()
    assert failed["state"] == "failed"
    assert "reserved for other projects" in failed["reason"]["message"]
    assert state(plane) == (2, 0, 2, 0)


def test_creations_take_no_lock_of_a_sku_unless_another_project_reserved_it(plane: RunningPlane) -> None:
    Node(plane, "n1", slots=4)
    locks = "select holder from work.quota_lock"
    accepted_allocation(plane)
    assert reserve(plane, 1).is_success
    assert own(plane).status_code == 202
    assert plane.rows(locks) == []
    accepted_allocation(plane)
    assert plane.rows(locks) == [(f"sku-{SMALL}",)]


def test_reservation_is_removed_with_its_delete_and_with_its_project(plane: RunningPlane) -> None:
    Node(plane, "n1", slots=1)
    assert reserve(plane, 1).is_success
    [[before]] = plane.rows("select max(position) from ledger.event")
    assert reserve(plane, 0).json()["reservations"] == []
    [[removed]] = plane.rows("select max(position) from ledger.event")
    assert reserve(plane, 0).is_success
    assert plane.rows("select max(position) from ledger.event") == [(removed,)], (
        "repeating it records nothing"
    )
    with plane.client() as client:
        then = client.get("/projects/vision", params={"at": f"position:{before}"}).json()
        assert [(each["slots"], each["used"]) for each in then["reservations"]] == [(1, None)]
        assert reserve(plane, 1).is_success
        assert client.post("/projects/vision/archive", json={"reason": "ended"}).is_success
        assert client.get("/reservations").json()["items"] == []
    accepted_allocation(plane)


def test_reservation_of_an_unknown_or_retired_sku_or_a_wrong_number_is_refused(plane: RunningPlane) -> None:
    assert codes(reserve(plane, 1, sku="none")) == ["unknown_sku"]
    assert codes(reserve(plane, 1, "none")) == ["unknown_project"]
    with plane.client() as client:
        path = f"/projects/vision/reservations/{SMALL}"
        for body in ({}, {"slots": 0}, {"slots": -1}, {"slots": 10**6}, {"slots": "1"}):
            assert client.put(path, json=body).status_code == 422
        assert reserve(plane, 1).is_success
        assert client.post(f"/skus/{SMALL}/retire", json={"reason": "old"}).is_success
        assert codes(reserve(plane, 2)) == ["sku_retired"]
        [shown] = client.get("/reservations").json()["items"]
    assert (shown["slots"], shown["used"], shown["short_by"]) == (1, None, None)


def test_each_unused_part_of_a_reservation_names_the_events_that_it_follows_from(plane: RunningPlane) -> None:
    Node(plane, "n1", slots=3)

    def position(kind: str) -> int:
        [[found]] = plane.rows("select max(position) from ledger.event where type = %(kind)s", kind=kind)
        return int(found)

    assert reserve(plane, 2).is_success
    first = position("project.reservations_set")
    assert own(plane).status_code == 202
    claim = position("slot.claimed")
    assert reserve(plane, 3).is_success
    second = position("project.reservations_set")
    until_known(plane)

    parts = get(plane, "/usage/unused-reservations")["items"]
    numbers = ("reserved", "reserved_by", "held", "held_by", "slots")
    assert [tuple(each[name] for name in numbers) for each in parts] == [
        (2, first, 0, None, 2),
        (2, first, 1, claim, 1),
        (3, second, 1, claim, 2),
    ]
    assert [each["ends_at"] for each in parts[:-1]] == [each["starts_at"] for each in parts[1:]]

    begin = {"from": parts[1]["starts_at"], "to": parts[1]["ends_at"]}
    [total] = get(plane, "/usage", begin)["unused_reservations"]
    assert total["slot_seconds"] == parts[1]["slot_seconds"]
    export = plane.client().get("/usage/export", params=begin).text
    assert export.splitlines()[-1].endswith(f",{first} {claim}")

    page = get(plane, "/usage/unused-reservations", {"limit": "2"})
    rest = get(plane, "/usage/unused-reservations", {"cursor": page["next_cursor"]})
    assert [each["held_by"] for each in (*page["items"], *rest["items"])] == [None, claim, claim]
    assert rest["next_cursor"] is None
    with plane.client() as client:
        assert codes(client.get("/usage/unused-reservations", params={"cursor": "x/y/1"})) == [
            "invalid_cursor"
        ]
    other = issue(plane, "bob", projects=["speech"]).headers
    assert get(plane, "/usage/unused-reservations", headers=other)["items"] == []


def test_caller_sees_reservations_of_its_projects_and_cannot_set_them(plane: RunningPlane) -> None:
    assert reserve(plane, 1).is_success
    assert reserve(plane, 1, "speech").is_success
    with client_of(plane, issue(plane, "alice", projects=["vision"])) as caller:
        listed: list[dict[str, Any]] = caller.get("/reservations").json()["items"]
        refused = caller.put(f"/projects/vision/reservations/{SMALL}", json={"slots": 2})
    assert [each["project"] for each in listed] == ["vision"]
    assert refused.status_code == 403
