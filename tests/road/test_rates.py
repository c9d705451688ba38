"""Tests of the rate limit of a SKU on a simulated node, from the request to the OpenFlow meters of the slot and their
removal.
"""

from pathlib import Path

from deploy.embedded.lab_catalogue import SKUS
from events.values import SkuName
from node_agent.lab.leaks.snapshot import differences
from tests.road.conftest import Site, running_site
from tests.servers.plane import RunningPlane

LIMITED = SkuName("lab.medium")
SLOT = {"vcpus": SKUS[LIMITED].vcpus, "memory_mib": SKUS[LIMITED].memory_mib}


def meters(site: Site) -> list[str]:
    return site.node.snapshot().kinds["ovs meter"]


def test_slice_of_a_sku_with_a_rate_limit_has_two_openflow_meters_which_its_release_removes(
    emptied_plane: RunningPlane, tmp_path: Path
) -> None:
    with running_site(emptied_plane, tmp_path, [{"index": index, **SLOT} for index in (0, 1)]) as site:
        before = site.node.snapshot()
        allocation = site.create(sku=LIMITED)
        site.await_state(allocation, "active")
        limit = '"meter":{"burst_kbit":80000,"rate_kbps":100000}'
        assert meters(site) == [f'{{"bridge":"br-slice",{limit},"number":{number}}}' for number in (1, 2)]
        site.plane.client().delete(f"/allocations/{allocation}")
        site.await_state(allocation, "released")
        assert differences(before, site.node.snapshot()) == []


def test_slice_of_a_sku_without_a_rate_limit_has_no_openflow_meters(site: Site) -> None:
    site.await_state(site.create(), "active")
    assert meters(site) == []
