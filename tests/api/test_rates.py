"""SKUs with a rate over the API: what they allow is shown, and a node has them only if its agent knows of rates."""

from tests.api.node import admit, allocate, speaks
from tests.servers.plane import RunningPlane

LIMITED = "lab.medium"
OLD, NEW = ["slice.apply/1", "slice.apply/1+ingress"], ["slice.apply/1", "slice.apply/1+rate"]


def test_the_rate_of_each_sku_is_shown(running_plane: RunningPlane) -> None:
    with running_plane.client() as client:
        shown = {sku["name"]: sku["rate_mbit"] for sku in client.get("/skus").json()["items"]}
    assert shown == {"lab.small": None, LIMITED: 100}


def test_an_agent_that_knows_of_no_rate_is_given_no_slice_with_one(running_plane: RunningPlane) -> None:
    admit(running_plane, "n1", memory_mib=192)
    speaks(running_plane, None)
    refused = allocate(running_plane, sku=LIMITED)
    assert (refused.status_code, refused.json()["reasons"][0]["code"]) == (409, "no_capacity")
    speaks(running_plane, OLD)
    assert allocate(running_plane, sku=LIMITED).status_code == 409
    speaks(running_plane, NEW)
    assert allocate(running_plane, sku=LIMITED).status_code == 202


def test_a_slice_without_a_rate_is_given_to_any_agent(running_plane: RunningPlane) -> None:
    admit(running_plane, "n1")
    speaks(running_plane, OLD)
    assert allocate(running_plane).status_code == 202
