"""Views show what is known now: which node is unreachable, and nothing of a slice that was taken away."""

from typing import Any

import httpx
import pytest

from tests.api.lives import ask
from tests.api.node import BEAT, admit
from tests.api.reporting import Running
from tests.servers.plane import RunningPlane

_LONG_AGO = "update work.node_seen set seen_at = clock_timestamp() - interval '1 hour' returning seen_at"


@pytest.fixture
def node(running_plane: RunningPlane) -> httpx.Client:
    return admit(running_plane, "n1")


def in_list(plane: RunningPlane, allocation: str) -> dict[str, Any]:
    [found] = [each for each in ask(plane, "/allocations").json()["items"] if each["id"] == allocation]
    return dict(found)


def slot_of(view: dict[str, Any]) -> tuple[str | None, str | None]:
    [slot] = view["slots"]
    return slot["actual_ip"], slot["lease_state"]


def bound(life: Running) -> tuple[str, str]:
    """The node reports that the guest leased the reserved address."""
    mac, address = life.slot["mac_address"], life.slot["private_ip"]
    life.says("slice.address", mac=mac, expected_ip=address, actual_ip=address, lease_state="bound")
    return address, "bound"


def test_active_allocation_on_an_unreachable_node_shows_the_condition_since_its_last_heartbeat(
    running_plane: RunningPlane, node: httpx.Client
) -> None:
    life = Running(running_plane, node)
    assert node.post("/heartbeat", json=BEAT).is_success
    assert (life.found()["state"], life.found()["conditions"]) == ("active", [])
    position = running_plane.last_position()

    [(seen_at,)] = running_plane.rows(_LONG_AGO)

    for view in (life.found(), in_list(running_plane, life.id)):
        [condition] = view["conditions"]
        assert (view["state"], condition["code"], condition["node_id"]) == (
            "active",
            "node_unreachable",
            "n1",
        )
        assert condition["since"].replace("Z", "+00:00") == seen_at.isoformat()
        assert "n1 is unreachable" in condition["message"]
    past = ask(running_plane, f"/allocations/{life.id}", at=f"position:{position}").json()
    assert past["conditions"] is None

    assert node.post("/heartbeat", json=BEAT).is_success
    assert life.found()["conditions"] == []


def test_released_allocation_shows_neither_a_lease_nor_a_condition(
    running_plane: RunningPlane, node: httpx.Client
) -> None:
    life = Running(running_plane, node)
    assert slot_of(life.found()) == (None, None)
    held = bound(life)
    assert running_plane.client().delete(f"/allocations/{life.id}").is_success
    assert slot_of(life.found()) == held
    while_bound = running_plane.last_position()

    life.says("slice.removed", absent=["port", "lease"])
    running_plane.rows(_LONG_AGO)

    view = life.found()
    assert (view["state"], slot_of(view), view["conditions"]) == ("released", (None, None), [])
    past = ask(running_plane, f"/allocations/{life.id}", at=f"position:{while_bound}").json()
    assert slot_of(past) == held


def test_interrupted_slice_shows_no_lease_until_it_is_ready_again(
    running_plane: RunningPlane, node: httpx.Client
) -> None:
    life = Running(running_plane, node)
    held = bound(life)

    life.says("slice.interrupted", reason={"code": "host_rebooted", "message": "the host rebooted"})
    assert (life.found()["state"], slot_of(life.found())) == ("starting", (None, None))

    life.comes_up()
    assert (life.found()["state"], slot_of(life.found())) == ("active", held)


def test_stopped_slice_shows_no_lease_and_shows_the_same_again_after_a_start(
    running_plane: RunningPlane, node: httpx.Client
) -> None:
    life = Running(running_plane, node)
    held = bound(life)
    assert life.asked_to("stop").is_success
    assert slot_of(life.found()) == held

    life.is_off()
    assert (life.found()["state"], slot_of(life.found())) == ("stopped", (None, None))

    assert life.asked_to("start").is_success
    bound(life)
    life.comes_up()
    assert (life.found()["state"], slot_of(life.found())) == ("active", held)
