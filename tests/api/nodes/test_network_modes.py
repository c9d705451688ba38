"""Nodes that do not support a network mode: they are closed for requests with this mode only (NOD-6, ALC-6)."""

from typing import Any, Final
from uuid import uuid4

import httpx
import pytest

from tests.api.node import KEY, admit, allocate, batch, survey
from tests.servers.plane import RunningPlane
from tests.waiting import until

REASON: Final = "cannot add a rule with masquerade: Operation not supported"
NO_PRIVATE: Final = {"mode": "private-nat", "reason": REASON}
NO_PUBLIC: Final = {"mode": "public-nat", "reason": "cannot add a rule with dnat: Operation not supported"}


def groups(plane: RunningPlane, mode: str) -> list[tuple[str, str]]:
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY], "network_mode": mode}
    with plane.client() as client:
        found = client.post("/placements/preview", json=body).raise_for_status().json()["groups"]
    return sorted((each["code"], each["example"]) for each in found)


def describe(node: httpx.Client, *unsupported: dict[str, str]) -> None:
    described = batch(str(uuid4()), (1, survey(unsupported_modes=list(unsupported))))
    assert node.post("/reports", json=described).is_success


def shown(plane: RunningPlane, path: str) -> Any:
    with plane.client() as client:
        return client.get(path).raise_for_status().json()


@pytest.mark.parametrize(
    ("unsupported", "other"),
    [(NO_PRIVATE, "public-nat"), (NO_PUBLIC, "private-nat")],
    ids=["private-nat", "public-nat"],
)
def test_node_without_a_network_mode_is_closed_for_this_mode_only(
    emptied_plane: RunningPlane, unsupported: dict[str, str], other: str
) -> None:
    plane = emptied_plane
    describe(admit(plane, "n1"), unsupported)
    mode = unsupported["mode"]
    assert groups(plane, mode) == [("network_mode_unsupported", "n1")]
    assert groups(plane, other) == [("suitable", "n1")]

    refused = allocate(plane, network_mode=mode)
    assert refused.status_code == 409, refused.text
    assert [each["code"] for each in refused.json()["reasons"]] == ["no_healthy_slot"]
    assert "node n1: the node does not support the network mode" in refused.json()["detail"]
    assert allocate(plane, network_mode=mode, node="n1").json()["placement"][0]["code"] == (
        "network_mode_unsupported"
    )
    placed = allocate(plane, network_mode=other)
    assert placed.status_code == 202, placed.text
    assert shown(plane, "/nodes/n1")["unsupported_modes"] == [unsupported]


def test_node_that_supports_a_network_mode_again_is_used_for_it_and_its_past_views_still_show_the_mode_as_missing(
    emptied_plane: RunningPlane,
) -> None:
    plane = emptied_plane
    node = admit(plane, "n1")
    describe(node, NO_PRIVATE)
    admit(plane, "n2")
    made = allocate(plane).json()
    assert [each["slot_id"] for each in made["slots"]] == ["n2/0"]
    before = plane.last_position()

    describe(node)
    assert shown(plane, "/nodes/n1")["unsupported_modes"] == []
    past = shown(plane, f"/nodes/n1?at=position:{before}")
    assert past["unsupported_modes"] == [NO_PRIVATE]
    explained = shown(plane, f"/allocations/{made['id']}/placement")["groups"]
    assert {each["code"]: each["example"] for each in explained} == {
        "suitable": "n2",
        "network_mode_unsupported": "n1",
    }
    assert [each["slot_id"] for each in allocate(plane).json()["slots"]] == ["n1/0"]


def test_slots_of_a_node_that_supports_no_network_mode_of_a_sku_do_not_count_as_capacity_of_this_sku(
    emptied_plane: RunningPlane,
) -> None:
    plane = emptied_plane

    def fitting() -> int:
        found = shown(plane, "/capacity")["skus"]
        return int(next(each["fits"] for each in found if each["sku"] == "lab.small"))

    describe(admit(plane, "n1"), NO_PRIVATE)
    describe(admit(plane, "n2"), NO_PRIVATE, NO_PUBLIC)
    until(lambda: fitting() == 1, "the numbers of slots are counted")


def test_unknown_network_mode_in_the_description_of_a_node_is_refused(emptied_plane: RunningPlane) -> None:
    node = admit(emptied_plane, "n1")
    described = batch(str(uuid4()), (1, survey(unsupported_modes=[{"mode": "pigeon", "reason": "no wings"}])))
    assert node.post("/reports", json=described).status_code == 422
    assert shown(emptied_plane, "/nodes/n1")["unsupported_modes"] == []
