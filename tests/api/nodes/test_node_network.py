"""Network settings of a node: bridge, layer-2 domain and MAC pool, and the addresses that its slots get from them."""

from typing import Any, Final

import httpx
import pytest

from tests.api.broken_nodes import accepted_allocation, codes, recorded_events
from tests.api.node import admit
from tests.servers.plane import RunningPlane

POOL: Final = {"first": "02:00:5e:00:00:0f", "last": "02:00:5e:00:00:10"}
MACS: Final = {POOL["first"], POOL["last"]}


@pytest.fixture
def plane(emptied_plane: RunningPlane) -> RunningPlane:
    return emptied_plane


def configure(plane: RunningPlane, node: str = "n1", **body: object) -> httpx.Response:
    with plane.client() as client:
        return client.put(f"/nodes/{node}/network", json=body)


def approve(plane: RunningPlane, slot: str) -> httpx.Response:
    node, _, index = slot.partition("/")
    with plane.client() as client:
        return client.post(f"/nodes/{node}/slots/{index}/approve")


def approved(plane: RunningPlane, slot: str) -> dict[str, Any]:
    answer = approve(plane, slot)
    assert answer.is_success, answer.text
    return dict(answer.json())


def test_slot_gets_the_bridge_and_layer_2_domain_of_its_node_and_a_mac_of_the_mac_pool_of_the_node(
    plane: RunningPlane,
) -> None:
    admit(plane, "n1", slots=1, approve=False)
    for _ in range(2):
        shown = configure(plane, bridge="br-lab", l2_domain="hall-2", mac_pool=POOL).json()
        assert (shown["bridge"], shown["l2_domain"], shown["mac_pool"]) == ("br-lab", "hall-2", POOL)
    assert len(recorded_events(plane, "node.network_changed")) == 1
    mac = approved(plane, "n1/0")["mac_address"]
    assert mac in MACS
    assert plane.rows("select value from ledger.claim where kind = 'mac'") == [(f"hall-2/{mac}",)]
    [placed] = accepted_allocation(plane)["slots"]
    assert placed["mac_address"] == mac
    [(bridge,)] = plane.rows("select bridge from read.slot")
    assert bridge == "br-lab"


def test_nodes_of_a_layer_2_domain_share_its_mac_pool_and_another_domain_may_have_the_same_macs(
    plane: RunningPlane,
) -> None:
    for node, domain in (("n1", "hall-1"), ("n2", "hall-1"), ("n3", "hall-2")):
        admit(plane, node, slots=2, approve=False)
        assert configure(plane, node, l2_domain=domain, mac_pool=POOL).is_success
    assert {approved(plane, slot)["mac_address"] for slot in ("n1/0", "n2/0")} == MACS
    refused = approve(plane, "n1/1")
    assert (refused.status_code, codes(refused)) == (409, ["mac_pool_exhausted"])
    assert (
        "all 2 MACs of the pool 02:00:5e:00:00:0f to 02:00:5e:00:00:10 are in use in L2 domain hall-1"
        in (refused.json()["reasons"][0]["message"])
    )
    assert {approved(plane, slot)["mac_address"] for slot in ("n3/0", "n3/1")} == MACS
    assert configure(plane, l2_domain="hall-1", mac_pool={**POOL, "last": "02:00:5e:00:00:11"}).is_success
    assert approved(plane, "n1/1")["mac_address"] == "02:00:5e:00:00:11"


def test_bridge_and_layer_2_domain_of_a_node_with_approved_slots_cannot_be_changed_and_its_mac_pool_can(
    plane: RunningPlane,
) -> None:
    admit(plane, "n1", slots=1)
    for moved in ({"bridge": "br-lab"}, {"l2_domain": "hall-2"}):
        refused = configure(plane, **moved)
        assert (refused.status_code, codes(refused)) == (409, ["slots_approved"])
        assert "n1/0" in refused.text
    assert configure(plane, mac_pool=POOL).is_success
    with plane.client() as client:
        again = client.post("/nodes/n1/slots/0/reprovision", json={"reason": "published"}).json()
    assert again["mac_address"] in MACS
    assert len(recorded_events(plane, "node.network_changed")) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"bridge": "a b"},
        {"l2_domain": "Hall/2"},
        {"mac_pool": {"first": POOL["last"], "last": POOL["first"]}},
        {"mac_pool": {"first": "02:00:00:00:00:00", "last": "02:00:00:01:00:00"}},
        {"mac_pool": {"first": "01:00:00:00:00:00", "last": "01:00:00:00:00:01"}},
    ],
)
def test_node_with_invalid_network_settings_is_refused(plane: RunningPlane, body: dict[str, Any]) -> None:
    admit(plane, "n1", slots=1, approve=False)
    assert configure(plane, **body).status_code == 422
    assert codes(configure(plane, "n9")) == ["unknown_node"]
    assert recorded_events(plane, "node.network_changed") == []
