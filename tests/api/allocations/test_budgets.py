"""The budget of a project in a calendar month: creations and renewals that do not fit into it are refused (ALC-13).

The SKU costs 0.01 per `LEASE`. This is short, so that leases end before the month does.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest

from tests.api.allocations.test_quotas import limit, project_of, release
from tests.api.broken_nodes import Node, accepted_allocation, codes
from tests.api.node import KEY, admit, allocate
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.waiting import until

LEASE = 300
"""Length of a short lease, in seconds. Three times this length must end in the present month: in its last 15 minutes,
these tests fail.
"""


def set_price(plane: RunningPlane, price_per_hour: str) -> None:
    content = {"vcpus": 1, "memory_mib": 96, "price_per_hour": price_per_hour}
    with plane.client() as client:
        assert client.put("/skus/lab.small", json=content).is_success


@pytest.fixture(autouse=True)
def price(emptied_plane: RunningPlane) -> None:
    """Set the price of the SKU to 0.01 per `LEASE`."""
    set_price(emptied_plane, "0.12")


def budget(plane: RunningPlane) -> dict[str, Any]:
    return dict(project_of(plane)["budget"])


def usage_of_month(plane: RunningPlane) -> Decimal:
    """Return the total price of the usage of the default project, as the API computes it from the read model."""
    with plane.client() as client:
        return Decimal(client.get("/usage", params={"project": "default"}).json()["total"]["price"])


def test_creation_that_does_not_fit_into_the_budget_is_refused_with_the_remaining_budget(
    emptied_plane: RunningPlane,
) -> None:
    Node(emptied_plane, "n1", slots=4)
    limit(emptied_plane, budget_per_month="0.035")
    assert budget(emptied_plane)["committed"] == "0"
    accepted_allocation(emptied_plane, lease_seconds=2 * LEASE)
    shown = budget(emptied_plane)
    assert (shown["limit"], shown["spent"], shown["committed"], shown["remaining"]) == (
        "0.035",
        "0",
        "0.02",
        "0.015",
    )
    refused = allocate(emptied_plane, lease_seconds=LEASE, slot_count=2)
    assert refused.status_code == 409
    assert refused.json()["exceeded"] == [
        {
            "scope": "project",
            "holder": "default",
            "limit_name": "budget_per_month",
            "limit": "0.035",
            "used": "0.02",
            "requested": "0.02",
            "remaining": "0.015",
        }
    ]
    [reason] = refused.json()["reasons"]
    assert (reason["code"], reason["field"]) == ("quota_exceeded", "/lease_seconds")
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY], "lease_seconds": 2 * LEASE}
    with emptied_plane.client() as client:
        previewed = client.post("/placements/preview", json=body).json()
    assert [each["limit_name"] for each in previewed["exceeded"]] == ["budget_per_month"]
    accepted_allocation(emptied_plane, lease_seconds=LEASE)
    assert budget(emptied_plane)["remaining"] == "0.005"
    # What costs nothing fits into each budget.
    limit(emptied_plane, budget_per_month="0")
    set_price(emptied_plane, "0")
    accepted_allocation(emptied_plane, lease_seconds=LEASE)


def test_exactly_as_many_concurrent_creations_succeed_as_the_budget_permits(
    emptied_plane: RunningPlane,
) -> None:
    Node(emptied_plane, "n1", slots=24)
    limit(emptied_plane, budget_per_month="0.06")
    with ThreadPoolExecutor(24) as pool:
        answers = [*pool.map(lambda _: allocate(emptied_plane, lease_seconds=LEASE), range(24))]
    assert Counter(each.status_code for each in answers) == {202: 6, 409: 18}
    assert {
        each["used"] for answer in answers if answer.status_code == 409 for each in answer.json()["exceeded"]
    } == {"0.06"}
    assert budget(emptied_plane)["remaining"] == "0"


def test_renewal_beyond_the_budget_is_refused_and_the_refusal_also_names_an_exceeded_lease_limit(
    emptied_plane: RunningPlane,
) -> None:
    running = RunningAllocation(emptied_plane, admit(emptied_plane, "n1"), lease_seconds=LEASE)
    limit(emptied_plane, budget_per_month="0.02", max_lease_seconds=3 * LEASE)

    def renew(seconds: int) -> Any:
        with emptied_plane.client() as client:
            return client.post(f"/allocations/{running.id}/lease", json={"lease_seconds": seconds})

    refused = renew(3 * LEASE)
    assert (refused.status_code, codes(refused)) == (409, ["quota_exceeded"])
    assert [(each["limit_name"], each["used"]) for each in refused.json()["exceeded"]] == [
        ("budget_per_month", "0.01")
    ]
    assert codes(renew(3 * LEASE + 1)) == ["lease_too_long", "quota_exceeded"]
    assert renew(2 * LEASE - 60).status_code == 200
    assert Decimal("0.018") <= Decimal(budget(emptied_plane)["committed"]) <= Decimal("0.02")
    # A renewal that adds nothing costs nothing.
    limit(emptied_plane, budget_per_month="0")
    assert renew(60).status_code == 200


def test_release_reduces_the_committed_price_of_an_allocation_to_the_price_of_its_usage(
    emptied_plane: RunningPlane,
) -> None:
    running = RunningAllocation(emptied_plane, admit(emptied_plane, "n1"), lease_seconds=LEASE)
    limit(emptied_plane, budget_per_month="1")
    before = budget(emptied_plane)
    assert (before["committed"], Decimal(before["spent"]) < Decimal("0.01")) == ("0.01", True)
    release(emptied_plane, {"id": running.id})
    after = budget(emptied_plane)
    assert after["committed"] == after["spent"]
    until(
        lambda: usage_of_month(emptied_plane) == Decimal(after["spent"]),
        "the projector has written the end of the lease",
    )


def test_allocation_that_failed_before_its_lease_began_commits_nothing(emptied_plane: RunningPlane) -> None:
    Node(emptied_plane, "n1", slots=2)
    limit(emptied_plane, budget_per_month="0.01")
    made = accepted_allocation(emptied_plane, lease_seconds=LEASE)
    assert codes(allocate(emptied_plane, lease_seconds=LEASE)) == ["quota_exceeded"]
    release(emptied_plane, made)
    assert budget(emptied_plane)["committed"] == "0"
    accepted_allocation(emptied_plane, lease_seconds=LEASE)


def test_waiting_request_commits_nothing_and_is_placed_when_its_whole_price_fits_into_the_budget(
    emptied_plane: RunningPlane,
) -> None:
    node = Node(emptied_plane, "n1", slots=1)
    limit(emptied_plane, budget_per_month="0.031")
    first = accepted_allocation(emptied_plane, lease_seconds=LEASE)
    waiting = accepted_allocation(emptied_plane, lease_seconds=2 * LEASE, wait_for_capacity=True)
    assert waiting["state"] == "waiting"
    assert budget(emptied_plane)["committed"] == "0.01"
    release(emptied_plane, first)
    node.report_removed(first)

    def placed() -> bool:
        with emptied_plane.client() as client:
            return bool(client.get(f"/allocations/{waiting['id']}").json()["slots"])

    until(placed, "the waiting request is placed")


def test_project_without_a_budget_has_none_in_its_view(emptied_plane: RunningPlane) -> None:
    assert project_of(emptied_plane)["budget"] is None
    limit(emptied_plane, budget_per_month="5")
    [[position]] = emptied_plane.rows("select max(position) from ledger.event")
    then = project_of(emptied_plane, at=f"position:{position}")
    assert (then["limits"]["budget_per_month"], then["budget"]) == ("5", None)
