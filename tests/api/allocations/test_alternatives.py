"""A request can name alternative SKUs, which are tried in order if no node is suitable for the first one (ALC-6)."""

from typing import Any

import pytest

from tests.api.node import KEY, admit, allocate
from tests.servers.plane import RunningPlane


@pytest.fixture
def plane(emptied_plane: RunningPlane) -> RunningPlane:
    """Control plane with one node, which has two slots of the SKU lab.small."""
    admit(emptied_plane, "n1", slots=2)
    return emptied_plane


def preview(plane: RunningPlane, **fields: object) -> dict[str, Any]:
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY], **fields}
    return dict(plane.client().post("/placements/preview", json=body).json())


def test_allocation_gets_the_first_alternative_sku_that_a_node_offers(plane: RunningPlane) -> None:
    made = allocate(plane, sku="lab.medium", alternative_skus=["lab.small"])
    assert made.status_code == 202, made.text
    assert (made.json()["sku"], made.json()["slots"][0]["node_id"]) == ("lab.small", "n1")
    shown = plane.client().get(f"/allocations/{made.json()['id']}").json()
    assert shown["sku"] == "lab.small"


def test_allocation_gets_its_first_sku_if_it_and_an_alternative_sku_are_free(plane: RunningPlane) -> None:
    made = allocate(plane, sku="lab.small", alternative_skus=["lab.medium"])
    assert made.json()["sku"] == "lab.small"


def test_refusal_of_a_request_with_alternative_skus_has_the_reasons_for_every_sku(
    plane: RunningPlane,
) -> None:
    refused = allocate(plane, sku="lab.medium", alternative_skus=["lab.small"], slot_count=3)
    assert refused.status_code == 409
    problem = refused.json()
    assert [(each["code"], each["field"]) for each in problem["reasons"]] == [
        ("no_suitable_slot", "/sku"),
        ("no_suitable_slot", "/alternative_skus/0"),
    ]
    assert [(each["sku"], each["code"], each["nodes"]) for each in problem["placement"]] == [
        ("lab.medium", "other_sku", 1),
        ("lab.small", "too_few_slots", 1),
    ]


def test_placement_preview_names_the_sku_that_would_be_allocated_and_groups_nodes_by_result_for_each_sku(
    plane: RunningPlane,
) -> None:
    shown = preview(plane, sku="lab.medium", alternative_skus=["lab.small"])
    assert (shown["sku"], shown["slots"], shown["reasons"]) == ("lab.small", ["n1/0"], [])
    assert [(each["sku"], each["code"]) for each in shown["groups"]] == [
        ("lab.medium", "other_sku"),
        ("lab.small", "suitable"),
    ]


def test_unknown_alternative_sku_is_refused_with_its_json_pointer_and_a_repeated_one_with_its_code(
    plane: RunningPlane,
) -> None:
    unknown = allocate(plane, alternative_skus=["lab.medium", "lab.huge"])
    assert unknown.status_code == 404
    assert [(each["code"], each["field"]) for each in unknown.json()["reasons"]] == [
        ("unknown_sku", "/alternative_skus/1")
    ]
    repeated = allocate(plane, alternative_skus=["lab.small"])
    assert repeated.status_code == 422
    assert [each["code"] for each in repeated.json()["reasons"]] == ["duplicate_sku"]


def test_malformed_request_is_refused_with_reasons_that_include_its_unknown_alternative_skus(
    plane: RunningPlane,
) -> None:
    refused = allocate(plane, slot_count=0, sku="lab.giant", alternative_skus=["lab.medium", "lab.huge"])
    found = [(each["code"], each["field"]) for each in refused.json()["reasons"]]
    assert sorted(found[1:]) == [("unknown_sku", "/alternative_skus/1"), ("unknown_sku", "/sku")]
    assert found[0][1] == "/slot_count"


def test_placement_preview_does_not_list_nodes_as_suitable_for_a_sku_above_the_price_cap(
    plane: RunningPlane,
) -> None:
    shown = preview(plane, max_price_per_hour="0.001")
    assert (shown["sku"], [each["code"] for each in shown["reasons"]]) == (None, ["price_too_high"])
    assert [(each["code"], each["obstacle"]) for each in shown["groups"]] == [("price_too_high", "use")]
