"""A SKU's rate, from the request to the meters of its slot and back, over a simulated node."""

from pathlib import Path

from control_plane.decisions.skus import SKUS
from events.values import SkuName
from node_agent.lab.leaks.snapshot import differences
from tests.road.conftest import Site, a_site
from tests.servers.plane import RunningPlane

LIMITED = SKUS[SkuName("lab.medium")]
SLOT = {"vcpus": LIMITED.vcpus, "memory_mib": LIMITED.memory_mib}


def meters(site: Site) -> list[str]:
    return site.node.holds().kinds["ovs meter"]


def test_a_slice_of_a_sku_with_a_rate_has_its_meters_and_leaves_none(
    running_plane: RunningPlane, tmp_path: Path
) -> None:
    with a_site(running_plane, tmp_path, [{"index": index, **SLOT} for index in (0, 1)]) as site:
        before = site.node.holds()
        allocation = site.create(sku=LIMITED.name)
        site.await_state(allocation, "active")
        limit = '"meter":{"burst_kbit":80000,"rate_kbps":100000}'
        assert meters(site) == [f'{{"bridge":"br-slice",{limit},"number":{number}}}' for number in (1, 2)]
        site.plane.client().delete(f"/allocations/{allocation}")
        site.await_state(allocation, "released")
        assert differences(before, site.node.holds()) == []


def test_a_slice_of_a_sku_without_a_rate_has_no_meter(site: Site) -> None:
    site.await_state(site.create(), "active")
    assert meters(site) == []
