"""API views of allocations: an unreachable node is shown, and the DHCP lease of a stopped or removed slice is not."""

from typing import Any

import httpx
import pytest

from tests.api.lifecycle import get_view
from tests.api.node import BEAT, admit
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.waiting import until

_LONG_AGO = "update work.node_seen set seen_at = clock_timestamp() - interval '1 hour' returning seen_at"


@pytest.fixture
def node(emptied_plane: RunningPlane) -> httpx.Client:
    return admit(emptied_plane, "n1")


def in_list(plane: RunningPlane, allocation: str) -> dict[str, Any]:
    """Wait until the list, which lags behind the events, has the present state of an allocation; return its item."""
    present = get_view(plane, f"/allocations/{allocation}").json()["state"]

    def listed() -> list[dict[str, Any]]:
        items = get_view(plane, "/allocations").json()["items"]
        return [each for each in items if (each["id"], each["state"]) == (allocation, present)]

    until(lambda: bool(listed()), "the list has the allocation in its present state")
    [found] = listed()
    return found


def slot_of(view: dict[str, Any]) -> tuple[str | None, str | None]:
    [slot] = view["slots"]
    return slot["actual_ip"], slot["lease_state"]


def report_lease_bound(running: RunningAllocation) -> tuple[str, str]:
    """Report that the guest leased the reserved address; return the address and the lease state that the API shows."""
    mac, address = running.slot["mac_address"], running.slot["private_ip"]
    running.report("slice.address", mac=mac, expected_ip=address, actual_ip=address, lease_state="bound")
    return address, "bound"


def test_allocation_on_a_node_that_is_drained_shows_when_it_is_released(
    emptied_plane: RunningPlane, node: httpx.Client
) -> None:
    running = RunningAllocation(emptied_plane, node)
    assert node.post("/heartbeat", json=BEAT).is_success
    position = emptied_plane.last_position()
    with emptied_plane.client() as client:
        for after, end in ((None, "waits until the allocation ends by itself"), (3600, "is released at 20")):
            body = {"reason": "a new fan", "release_after_seconds": after}
            given = {name: value for name, value in body.items() if value is not None}
            assert client.post("/nodes/n1/drain", json=given).is_success
            for view in (running.view(), in_list(emptied_plane, running.id)):
                [condition] = view["conditions"]
                assert (condition["code"], condition["node_id"]) == ("node_draining", "n1")
                assert condition["message"].startswith("node n1 is being drained (a new fan): ")
                assert end in condition["message"]
        past = get_view(emptied_plane, f"/allocations/{running.id}", at=f"position:{position}").json()
        assert past["conditions"] is None
        assert client.post("/nodes/n1/uncordon", json={"reason": "done"}).is_success
    assert running.view()["conditions"] == []


def test_active_allocation_on_an_unreachable_node_shows_since_which_heartbeat_the_node_is_unreachable(
    emptied_plane: RunningPlane, node: httpx.Client
) -> None:
    running = RunningAllocation(emptied_plane, node)
    assert node.post("/heartbeat", json=BEAT).is_success
    assert (running.view()["state"], running.view()["conditions"]) == ("active", [])
    position = emptied_plane.last_position()

    [(seen_at,)] = emptied_plane.rows(_LONG_AGO)

    for view in (running.view(), in_list(emptied_plane, running.id)):
        [condition] = view["conditions"]
        assert (view["state"], condition["code"], condition["node_id"]) == (
            "active",
            "node_unreachable",
            "n1",
        )
        assert condition["since"].replace("Z", "+00:00") == seen_at.isoformat()
        assert "n1 is unreachable" in condition["message"]
    past = get_view(emptied_plane, f"/allocations/{running.id}", at=f"position:{position}").json()
    assert past["conditions"] is None

    assert node.post("/heartbeat", json=BEAT).is_success
    assert running.view()["conditions"] == []


def test_released_allocation_shows_neither_a_dhcp_lease_nor_a_condition(
    emptied_plane: RunningPlane, node: httpx.Client
) -> None:
    running = RunningAllocation(emptied_plane, node)
    assert slot_of(running.view()) == (None, None)
    held = report_lease_bound(running)
    assert emptied_plane.client().delete(f"/allocations/{running.id}").is_success
    assert slot_of(running.view()) == held
    while_bound = emptied_plane.last_position()

    running.report("slice.removed", absent=["port", "lease"])
    emptied_plane.rows(_LONG_AGO)

    view = running.view()
    assert (view["state"], slot_of(view), view["conditions"]) == ("released", (None, None), [])
    past = get_view(emptied_plane, f"/allocations/{running.id}", at=f"position:{while_bound}").json()
    assert slot_of(past) == held


def test_interrupted_slice_shows_no_dhcp_lease_until_it_is_ready_again(
    emptied_plane: RunningPlane, node: httpx.Client
) -> None:
    running = RunningAllocation(emptied_plane, node)
    held = report_lease_bound(running)

    running.report("slice.interrupted", reason={"code": "host_rebooted", "message": "the host rebooted"})
    assert (running.view()["state"], slot_of(running.view())) == ("starting", (None, None))

    running.report_ready()
    assert (running.view()["state"], slot_of(running.view())) == ("active", held)


def test_stopped_slice_shows_no_dhcp_lease_until_it_is_started_again(
    emptied_plane: RunningPlane, node: httpx.Client
) -> None:
    running = RunningAllocation(emptied_plane, node)
    held = report_lease_bound(running)
    assert running.request("stop").is_success
    assert slot_of(running.view()) == held

    running.report_stopped()
    assert (running.view()["state"], slot_of(running.view())) == ("stopped", (None, None))

    assert running.request("start").is_success
    report_lease_bound(running)
    running.report_ready()
    assert (running.view()["state"], slot_of(running.view())) == ("active", held)
