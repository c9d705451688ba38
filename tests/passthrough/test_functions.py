"""PCI functions that are given to guests, on a host with an IOMMU, VFIO and real sysfs files."""

from typing import Final

import pytest

from node_agent.aspects.passthrough import NO_REPRESENTOR
from tests.passthrough.conftest import BOOT_SECONDS, NODE, NestedSite, virtual_function
from tests.waiting import until

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(3000)]
NVME, E1000E = "0x1b36 0x0010", "0x8086 0x10d3"
LIST_FUNCTIONS: Final = (
    "for each in /sys/bus/pci/devices/*; do echo $(cat $each/vendor) $(cat $each/device); done"
)


def test_pci_functions_are_passed_to_a_guest_and_reset_before_the_next_guest_gets_them(
    site: NestedSite,
) -> None:
    gpu, fabric = map(site.host.address, ("gpu0", "fabric0"))
    sku = site.offer(0)
    devices = {each["address"]: each for each in site.slot(0)["devices"]}
    assert devices.keys() == {gpu, fabric}
    assert {each["numa_node"] for each in devices.values()} == {1}
    assert len({each["iommu_group"] for each in devices.values()}) == 2
    assert (site.driver_of(gpu), site.driver_of(fabric)) == ("", "")

    first = site.allocate(sku)
    assert passed_to(site, first) == [NVME, E1000E]
    assert (site.driver_of(gpu), site.driver_of(fabric)) == ("vfio-pci", "vfio-pci")

    site.release(first)
    assert (site.driver_of(gpu), site.driver_of(fabric)) == ("", "")
    checked = site.slot(0)["device_check"]
    assert {each["address"]: each["faults"] for each in checked["devices"]} == {gpu: [], fabric: []}

    second = site.allocate(sku)
    assert passed_to(site, second) == [NVME, E1000E]
    site.release(second)


def passed_to(site: NestedSite, allocation: str) -> list[str]:
    """Return vendor and device ids of the guest's PCI functions of the types that stand in for GPUs and fabric devices.
    The guest has no other device of these types.
    """
    return sorted(set(site.guest(allocation, LIST_FUNCTIONS).splitlines()) & {NVME, E1000E})


@pytest.mark.parametrize(
    ("slot", "function", "reason"),
    [
        (1, "kept", "is bound to nvme"),
        (2, "shared", "shares IOMMU group"),
    ],
)
def test_pci_function_that_cannot_be_isolated_fails_the_allocation_with_the_reason(
    site: NestedSite, slot: int, function: str, reason: str
) -> None:
    shown = site.show(site.attempt(site.offer(slot)))
    assert shown["state"] == "failed", shown
    assert site.host.address(function) in str(shown["reason"])
    assert reason in str(shown["reason"])


def test_virtual_function_of_a_card_without_switchdev_mode_is_refused_as_network_card(
    site: NestedSite,
) -> None:
    site.offer(4)
    [device] = site.slot(4)["devices"]
    assert (device["address"], device["physical_function"]) == (
        virtual_function(site.host),
        site.host.address("card"),
    )
    assert site.slot(4)["blocked_by"] == "slot.device"
    assert NO_REPRESENTOR in str(site.slot(4)["drift"])


def test_pci_function_that_vanishes_is_drift_that_excludes_its_slot_from_placement(site: NestedSite) -> None:
    sku = site.offer(3)
    site.host.unplug("removed")
    until(lambda: site.slot(3)["blocked_by"] == "slot.device", "the slot is blocked", BOOT_SECONDS)
    assert f"PCI device {site.host.address('removed')} does not exist" in str(site.slot(3)["drift"])
    refused = site.plane.client().post(
        "/allocations", json={"sku": sku, "ssh_authorized_keys": [site.public_key], "node": NODE}
    )
    assert refused.status_code == 409
    assert "blocked by drift" in refused.json()["reasons"][0]["message"]
