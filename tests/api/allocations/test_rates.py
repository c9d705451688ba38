"""SKUs with a rate limit: the API shows the limit, and their slices are placed only on nodes that support it."""

from tests.api.node import admit, allocate, set_capabilities
from tests.servers.plane import RunningPlane

LIMITED = "lab.medium"
OLD, NEW = ["slice.apply/1", "slice.apply/1+ingress"], ["slice.apply/1", "slice.apply/1+rate"]


def test_sku_list_shows_the_rate_limit_of_each_sku(running_plane: RunningPlane) -> None:
    with running_plane.client() as client:
        shown = {sku["name"]: sku["rate_mbit"] for sku in client.get("/skus").json()["items"]}
    assert shown == {"lab.small": None, LIMITED: 100}


def test_agent_without_the_rate_limit_capability_receives_no_slice_with_a_rate_limit(
    running_plane: RunningPlane,
) -> None:
    admit(running_plane, "n1", memory_mib=192)
    set_capabilities(running_plane, None)
    refused = allocate(running_plane, sku=LIMITED)
    assert (refused.status_code, refused.json()["reasons"][0]["code"]) == (409, "no_healthy_slot")
    set_capabilities(running_plane, OLD)
    assert allocate(running_plane, sku=LIMITED).status_code == 409
    set_capabilities(running_plane, NEW)
    assert allocate(running_plane, sku=LIMITED).status_code == 202


def test_slice_without_a_rate_limit_is_placed_on_a_node_without_the_rate_limit_capability(
    running_plane: RunningPlane,
) -> None:
    admit(running_plane, "n1")
    set_capabilities(running_plane, OLD)
    assert allocate(running_plane).status_code == 202
