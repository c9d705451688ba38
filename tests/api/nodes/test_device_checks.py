"""The health of PCI functions after a release: a fault excludes the slot from placement until an admin readmits it."""

from typing import Any, Final

import pytest

from tests.api.node import admit, allocate
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane

GPU: Final = "0000:1b:00.0"
HEALTHY: Final[dict[str, Any]] = {
    "address": GPU,
    "responds": True,
    "link_mtps": 32_000,
    "link_width": 16,
    "most_link_mtps": 32_000,
    "most_link_width": 16,
    "bars": [16_777_216, 137_438_953_472],
    "fatal_errors": 0,
    "nonfatal_errors": 2,
}


@pytest.fixture
def running(emptied_plane: RunningPlane) -> RunningAllocation:
    return RunningAllocation(emptied_plane, admit(emptied_plane, "n1"))


def released(running: RunningAllocation, *readings: dict[str, Any]) -> dict[str, Any]:
    """Release the allocation, report its slot empty with health readings of its PCI functions, and return the slot."""
    assert running.plane.client().delete(f"/allocations/{running.id}").is_success
    running.report("slice.removed", absent=["machine"], devices=list(readings))
    return slot(running)


def slot(running: RunningAllocation) -> dict[str, Any]:
    return dict(running.plane.client().get("/nodes/n1/slots/0").json())


def test_slot_with_healthy_pci_functions_after_a_release_is_offered_again_and_shows_the_check(
    running: RunningAllocation,
) -> None:
    found = released(running, HEALTHY)
    assert (found["state"], found["excluded"]) == ("free", None)
    check = found["device_check"]
    assert check["allocation_id"] == running.id
    assert check["devices"] == [{**HEALTHY, "faults": [], "unreadable": None}]
    assert allocate(running.plane).status_code == 202


FAULTS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "a function that does not respond": (
        {"responds": False},
        "each byte of its configuration space reads as 0xFF",
    ),
    "a link with fewer lanes": ({"link_width": 8}, "8 lanes instead of 16"),
    "a slower link": ({"link_mtps": 2_500}, "2500 million transfers per second instead of 32000"),
    "a function that cannot be read": (
        {"unreadable": "no such device"},
        "could not be read after the release",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_slot_with_a_faulty_pci_function_is_free_and_excluded_until_an_admin_readmits_it(
    running: RunningAllocation, name: str
) -> None:
    changed, message = FAULTS[name]
    found = released(running, {**HEALTHY, **changed})
    assert found["state"] == "free"
    assert found["excluded"]["code"] == "device_fault"
    assert message in found["excluded"]["message"]
    assert message in found["device_check"]["devices"][0]["faults"][0]
    refused = allocate(running.plane)
    assert refused.status_code == 409
    assert [each["code"] for each in refused.json()["placement"]] == ["slots_blocked"]
    readmit = {"reason": "the GPU was replaced"}
    assert running.plane.client().post("/nodes/n1/slots/0/readmit", json=readmit).is_success
    assert allocate(running.plane).status_code == 202


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"fatal_errors": 1}, "reported 1 fatal errors"),
        ({"nonfatal_errors": 5}, "reported 3 nonfatal errors"),
        ({"bars": [16_777_216]}, "before, they had 16777216, 137438953472 bytes"),
        ({"nonfatal_errors": 0}, None),
    ],
)
def test_health_of_a_pci_function_is_compared_with_its_check_after_the_previous_release(
    emptied_plane: RunningPlane, changed: dict[str, Any], message: str | None
) -> None:
    node = admit(emptied_plane, "n1")
    first = RunningAllocation(emptied_plane, node)
    assert released(first, HEALTHY)["excluded"] is None
    second = RunningAllocation(emptied_plane, node)
    excluded = released(second, {**HEALTHY, **changed})["excluded"]
    if message is None:
        assert excluded is None
    else:
        assert message in excluded["message"]


def test_history_of_a_slot_has_every_check_of_its_pci_functions(emptied_plane: RunningPlane) -> None:
    node = admit(emptied_plane, "n1")
    for _ in range(2):
        released(RunningAllocation(emptied_plane, node), HEALTHY)
    listed = emptied_plane.client().get("/events", params={"stream": "slot-n1/0", "limit": 100}).json()
    checks = [each for each in listed["items"] if each["type"] == "slot.devices_checked"]
    assert len(checks) == 2
    assert len({each["data"]["allocation_id"] for each in checks}) == 2


def test_slot_of_an_allocation_that_is_released_with_a_fault_is_not_offered_until_an_admin_readmits_it(
    running: RunningAllocation,
) -> None:
    client, path = running.plane.client(), f"/allocations/{running.id}/fault"
    assert client.post(path, json={"fault": "GPU 0 fell off the bus"}).status_code == 202
    found = slot(running)
    assert (found["state"], found["excluded"]["code"]) == ("releasing", "fault_reported")
    assert found["excluded"]["message"] == "GPU 0 fell off the bus"
    assert running.view()["state"] == "releasing"
    running.report("slice.removed", absent=["machine"], devices=[HEALTHY])
    assert slot(running)["state"] == "free"
    assert allocate(running.plane).status_code == 409
    late = client.post(path, json={"fault": "GPU 0 fell off the bus"})
    assert [each["code"] for each in late.json()["reasons"]] == ["no_slot_held"]
    assert client.post("/nodes/n1/slots/0/readmit", json={"reason": "examined"}).is_success
    assert allocate(running.plane).status_code == 202


@pytest.mark.parametrize("fault", ["", "x" * 501, "two\nlines"])
def test_fault_with_an_invalid_text_is_refused_and_does_not_release_its_allocation(
    running: RunningAllocation, fault: str
) -> None:
    answer = running.plane.client().post(f"/allocations/{running.id}/fault", json={"fault": fault})
    assert answer.status_code == 422
    assert running.view()["state"] != "releasing"
