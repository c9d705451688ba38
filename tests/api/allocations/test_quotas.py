"""Quotas of projects and callers, and price caps of requests (ALC-13)."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import psycopg
import pytest

from tests.api.access.principals import client_of, create_project, issue
from tests.api.allocations.test_ingress import SHARED, SSH, WHOLE, set_public_addresses
from tests.api.broken_nodes import Node, accepted_allocation, codes, keep_nodes_reachable
from tests.api.node import KEY, allocate
from tests.projections.plane_requests import rebuild, verify
from tests.servers.plane import RunningPlane
from tests.waiting import until

SMALL = {"vcpus": 1, "memory_mib": 96, "price_per_hour": "0.01"}


@pytest.fixture
def plane(emptied_plane: RunningPlane) -> RunningPlane:
    return emptied_plane


@pytest.fixture
def node(plane: RunningPlane) -> Node:
    return Node(plane, "n1", slots=4)


def limit(plane: RunningPlane, project: str = "default", **limits: object) -> dict[str, Any]:
    with plane.client() as client:
        answer = client.put(f"/projects/{project}/limits", json=limits)
    assert answer.is_success, answer.text
    return dict(answer.json())


def project_of(plane: RunningPlane, **query: str) -> dict[str, Any]:
    with plane.client() as client:
        return dict(client.get("/projects/default", params=query).json())


def used(plane: RunningPlane) -> dict[str, Any]:
    return {name: value for name, value in project_of(plane)["used"].items() if value not in (0, "0")}


def release(plane: RunningPlane, allocation: dict[str, Any]) -> None:
    with plane.client() as client:
        assert client.delete(f"/allocations/{allocation['id']}").is_success


def test_exactly_as_many_concurrent_requests_succeed_as_the_quota_permits(
    running_plane: RunningPlane,
) -> None:
    Node(running_plane, "n1", slots=24)
    limit(running_plane, slots=8)
    with ThreadPoolExecutor(64) as pool:
        answers = [*pool.map(lambda _: allocate(running_plane), range(64))]
    assert Counter(each.status_code for each in answers) == {202: 8, 409: 56}
    refusals = [each.json() for each in answers if each.status_code == 409]
    assert {each["code"] for refusal in refusals for each in refusal["reasons"]} == {"quota_exceeded"}
    shown = {
        "scope": "project",
        "holder": "default",
        "limit_name": "slots",
        "limit": "8",
        "used": "8",
        "requested": "1",
        "remaining": "0",
    }
    assert [each["exceeded"] for each in refusals] == [[shown]] * 56
    assert project_of(running_plane)["used"]["slots"] == 8
    assert verify(running_plane)["differences"] == []
    rebuild(running_plane, "quota_use")
    assert project_of(running_plane)["used"]["slots"] == 8


def test_released_slot_counts_against_the_quota_until_its_node_has_proved_it_empty(
    plane: RunningPlane, node: Node
) -> None:
    limit(plane, slots=1)
    first = accepted_allocation(plane)
    assert used(plane) == {"slots": 1, **SMALL}
    assert codes(allocate(plane)) == ["quota_exceeded"]
    release(plane, first)
    node.report(first, "slice.removal_incomplete", leftovers=["tap slice0"])
    assert node.slots()["n1/0"]["state"] == "quarantined"
    assert codes(allocate(plane)) == ["quota_exceeded"]
    node.report_removed(first)
    assert used(plane) == {}
    second = accepted_allocation(plane)
    release(plane, second)
    with plane.client() as admin:
        freed = admin.post(f"/nodes/n1/slots/{_index(second)}/force-release", json={"reason": "burned"})
    assert freed.is_success, freed.text
    assert used(plane) == {}


def _index(allocation: dict[str, Any]) -> str:
    return str(allocation["slots"][0]["slot_id"]).partition("/")[2]


def test_refusal_names_every_exceeded_limit_and_limits_can_be_removed(
    plane: RunningPlane, node: Node
) -> None:
    limit(plane, slots=1, vcpus=2, memory_mib=191, price_per_hour="0.01", gpus=0)
    refused = allocate(plane, slot_count=2)
    assert [(each["limit_name"], each["limit"], each["used"], each["requested"]) for each in refused.json()["exceeded"]] == [
        ("slots", "1", "0", "2"),
        ("memory_mib", "191", "0", "192"),
        ("price_per_hour", "0.01", "0", "0.02"),
    ]  # fmt: skip
    assert set(limit(plane)["limits"].values()) == {None}
    accepted_allocation(plane, slot_count=2)


def test_allocation_in_a_project_without_a_limit_on_what_it_requests_takes_no_quota_lock(
    plane: RunningPlane, node: Node
) -> None:
    accepted_allocation(plane)
    assert plane.rows("select holder from work.quota_lock") == []
    limit(plane, public_ports=1)
    accepted_allocation(plane)
    assert plane.rows("select holder from work.quota_lock") == [], "the request needs no public port"
    limit(plane, slots=4)
    accepted_allocation(plane)
    assert plane.rows("select holder from work.quota_lock") == [("project-default",)]


def test_ingress_rules_count_against_the_quota_from_their_creation_until_they_are_removed(
    plane: RunningPlane, node: Node
) -> None:
    assert set_public_addresses(plane, SHARED, WHOLE).is_success
    limit(plane, public_ports=1, public_addresses=0)
    public: dict[str, Any] = {"network_mode": "public-nat"}
    assert codes(allocate(plane, **public, ingress=[SSH, SSH])) == ["quota_exceeded"]
    assert codes(allocate(plane, **public, ingress=[{"kind": "address"}])) == ["quota_exceeded"]
    made = accepted_allocation(plane, **public, ingress=[SSH])
    assert used(plane)["public_ports"] == 1
    path = f"/allocations/{made['id']}/ingress"
    with plane.client() as client:
        refused = client.post(path, json={"port": 80})
        assert (refused.status_code, codes(refused)) == (409, ["quota_exceeded"])
        assert [each["limit_name"] for each in refused.json()["exceeded"]] == ["public_ports"]
        limit(plane, public_ports=2)
        assert client.post(path, json={"port": 80}).is_success
    assert used(plane)["public_ports"] == 2
    release(plane, made)
    assert used(plane)["public_ports"] == 2, "the node has not removed the rules yet"
    node.report_removed(made)
    assert used(plane) == {}


def test_ingress_rule_is_refused_if_another_one_uses_up_the_limit_after_its_first_check(
    plane: RunningPlane, node: Node
) -> None:
    assert set_public_addresses(plane, SHARED).is_success
    first, second = (accepted_allocation(plane, network_mode="public-nat") for _ in range(2))
    limit(plane, public_ports=1)

    def reserve(allocation: dict[str, Any]) -> int:
        with plane.client() as client:
            return client.post(f"/allocations/{allocation['id']}/ingress", json=SSH).status_code

    with ThreadPoolExecutor() as pool, psycopg.connect(plane.database.admin_dsn) as holding:
        slot = second["slots"][0]["slot_id"]
        holding.execute("select 1 from read.slot where slot_id = %s for update", [slot])
        requested = pool.submit(reserve, second)
        until(lambda: requested.done() or plane.has_lock_waiter(), "the request waits for its slot")
        assert reserve(first) == 202
        holding.rollback()
    assert requested.result() == 409
    assert used(plane)["public_ports"] == 1


def test_allocation_is_replaced_on_another_node_although_its_project_has_used_up_its_quota(
    plane: RunningPlane, node: Node
) -> None:
    Node(plane, "n2", slots=5)
    limit(plane, slots=1)
    made = accepted_allocation(plane)
    node.report_failed(made)
    with plane.client() as client:
        replaced = client.get(f"/allocations/{made['id']}").json()
    assert replaced["slots"][0]["node_id"] == "n2"
    assert used(plane)["slots"] == 2, "the old slot is not proved empty yet"
    node.report_removed(made)
    assert used(plane) == {"slots": 1, **SMALL}


def test_placement_preview_and_dry_run_check_quotas_and_use_nothing_of_them(
    plane: RunningPlane, node: Node
) -> None:
    limit(plane, slots=1)
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY]}
    with plane.client() as client:
        for _ in range(2):
            assert client.post("/placements/preview", json=body).json()["reasons"] == []
            assert client.post("/allocations?dry_run=true", json=body).status_code == 200
        accepted_allocation(plane)
        shown = client.post("/placements/preview", json=body).json()
        tried = client.post("/allocations?dry_run=true", json=body)
    assert [each["code"] for each in shown["reasons"]] == ["quota_exceeded"]
    assert [each["limit_name"] for each in shown["exceeded"]] == ["slots"]
    assert (shown["slots"], shown["groups"][0]["code"]) == ([], "quota_exceeded")
    assert (tried.status_code, codes(tried)) == (409, ["quota_exceeded"])
    assert used(plane)["slots"] == 1


def test_alternative_sku_is_used_if_the_requested_sku_exceeds_the_price_cap_or_the_quota(
    plane: RunningPlane,
) -> None:
    Node(plane, "n1", slots=4)
    with plane.client() as client:
        for index in range(4):
            both = {"skus": ["lab.small", "lab.tiny"]}
            if index == 0:
                tiny = {"name": "lab.tiny", "vcpus": 1, "memory_mib": 64, "price_per_hour": "0.005"}
                assert client.post("/skus", json=tiny).is_success
            assert client.post(f"/nodes/n1/slots/{index}/approve", json=both).is_success
    refused = allocate(plane, max_price_per_hour="0.009")
    assert (refused.status_code, codes(refused)) == (409, ["price_too_high"])
    alternative = {"alternative_skus": ["lab.tiny"]}
    cheap = accepted_allocation(plane, max_price_per_hour="0.009", **alternative)
    assert cheap["sku"] == "lab.tiny"
    both_refused = allocate(plane, max_price_per_hour="0.004", **alternative)
    assert [(each["code"], each["field"]) for each in both_refused.json()["reasons"]] == [
        ("price_too_high", "/sku"),
        ("price_too_high", "/alternative_skus/0"),
    ]
    assert "placement" not in both_refused.json()
    limit(plane, memory_mib=128)
    assert accepted_allocation(plane, **alternative)["sku"] == "lab.tiny"
    assert codes(allocate(plane, **alternative)) == ["quota_exceeded", "quota_exceeded"]


@pytest.fixture
def callers(plane: RunningPlane) -> Iterator[tuple[httpx.Client, httpx.Client, str]]:
    """Two callers of one project, and the actor of the first one."""
    with ExitStack() as stack:
        keys = [issue(plane, name, projects=["default", "red"]) for name in _with_project(plane)]
        first, second = (stack.enter_context(client_of(plane, key)) for key in keys)
        yield first, second, f"key:{keys[0].id}"


def _with_project(plane: RunningPlane) -> tuple[str, str]:
    create_project(plane, "red")
    return "alice", "bob"


def test_limits_of_a_caller_hold_in_all_projects_and_for_no_other_caller(
    plane: RunningPlane, node: Node, callers: tuple[httpx.Client, httpx.Client, str]
) -> None:
    first, second, actor = callers
    with plane.client() as admin:
        wanted = {"actor": actor, "slots": 2, "price_per_hour": "0.02"}
        assert admin.put("/principals/limits", json=wanted).is_success

    def request(client: httpx.Client, project: str) -> httpx.Response:
        keep_nodes_reachable(plane)
        body = {"project": project, "sku": "lab.small", "ssh_authorized_keys": [KEY]}
        return client.post("/allocations", json=body)

    assert [request(first, project).status_code for project in ("default", "red")] == [202, 202]
    refused = request(first, "red")
    assert (refused.status_code, codes(refused)) == (409, ["quota_exceeded"] * 2)
    assert [(each["scope"], each["holder"], each["limit_name"]) for each in refused.json()["exceeded"]] == [
        ("principal", actor, "slots"),
        ("principal", actor, "price_per_hour"),
    ]
    assert request(second, "red").status_code == 202
    with plane.client() as admin:
        shown = admin.get("/principals/limits", params={"actor": actor}).json()
    assert shown == {
        "actor": actor,
        "limits": {"slots": 2, "price_per_hour": "0.02"},
        "used": {"slots": 2, "price_per_hour": "0.02"},
    }
    assert first.get("/principals/limits", params={"actor": actor}).status_code == 403
    # A revocation of the same caller keeps its limits, which are in the same row.
    with plane.client() as admin:
        account = {"actor": "service-account:none", "slots": 1}
        assert admin.put("/principals/limits", json=account).json()["limits"]["slots"] == 1


def test_limits_of_a_project_at_a_past_position_are_those_of_that_position(plane: RunningPlane) -> None:
    def last() -> int:
        [[position]] = plane.rows("select max(position) from ledger.event")
        return int(position)

    before = last()
    limit(plane, slots=3)
    between = last()
    limit(plane, gpus=0)
    then = project_of(plane, at=f"position:{between}")
    assert (then["limits"]["slots"], then["limits"]["gpus"], then["used"]) == (3, None, None)
    assert project_of(plane, at=f"position:{before}")["limits"]["slots"] is None
    assert project_of(plane)["limits"]["gpus"] == 0
    # Setting the same limits again records nothing.
    end = last()
    limit(plane, gpus=0)
    assert last() == end


def test_malformed_limits_and_limits_of_an_archived_project_are_refused(plane: RunningPlane) -> None:
    create_project(plane, "old")
    with plane.client() as client:
        for body in ({"slots": -1}, {"price_per_hour": 2.5}, {"price_per_hour": "-1"}, {"nodes": 1}):
            assert client.put("/projects/old/limits", json=body).status_code == 422
        assert client.post("/projects/old/archive", json={"reason": "ended"}).is_success
        assert codes(client.put("/projects/old/limits", json={"slots": 1})) == ["project_archived"]
        assert client.put("/projects/none/limits", json={"slots": 1}).status_code == 404
