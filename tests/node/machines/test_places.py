"""Tests of the host resources (CPUs, devices, queues) that the node's settings assign to a slot's virtual machine, and
of the reasons why settings are refused.
"""

from typing import Any

import pytest
from pydantic import ValidationError

from events.values import PciAddress, SlotIndex
from node_agent.aspects.links import LinkAspect, Tap
from node_agent.host.host_resources import ANYWHERE, HostDevice, Place, place_for
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.links import SimulatedLinks
from node_agent.lab.simulated.pci import SimulatedPci
from tests.node.guests import slice_on
from tests.node.settings import SLOT, settings


def test_slot_without_host_resources_in_the_node_settings_may_run_on_any_cpu() -> None:
    assert settings(SLOT).places == {0: ANYWHERE}


def test_slot_has_the_host_resources_that_the_node_settings_assign() -> None:
    slot = {
        **SLOT,
        "gpus": ["0000:1B:00.0"],
        "fabric": ["0000:18:00.1"],
        "vf": "0000:3b:00.2",
        "cpus": [4, 5],
        "numa_node": 1,
        "hugepage_kib": 1048576,
    }
    assert settings(slot).places[SlotIndex(0)] == Place(
        devices=(
            HostDevice(PciAddress("0000:1b:00.0"), "gpu"),
            HostDevice(PciAddress("0000:18:00.1"), "fabric"),
            HostDevice(PciAddress("0000:3b:00.2"), "card"),
        ),
        pins=("4", "5"),
        nodeset="1",
        hugepage_kib=1048576,
    )


def test_slice_with_fewer_vcpus_than_its_slot_has_cpus_gets_as_many_cpus_and_queues_as_vcpus() -> None:
    places = settings({**SLOT, "cpus": [4, 5], "queues": 2}).places
    assert place_for(slice_on(0), places) == Place(pins=("4",), queues=1)
    assert place_for(slice_on(1), places) == ANYWHERE


def test_tap_of_a_virtual_machine_with_several_network_queues_is_made_with_several_queues() -> None:
    links = SimulatedLinks(SimulatedHost())
    aspect = LinkAspect(links, SimulatedPci(SimulatedHost()), settings({**SLOT, "queues": 2}).places)
    for vcpus in (1, 2):
        for step in aspect.to_apply(slice_on(0, vcpus=vcpus)):
            step.run()
        assert links.link("slice0") == Tap("slice0", many=vcpus > 1)


@pytest.mark.parametrize(
    ("slots", "reasons"),
    [
        ([{**SLOT, "cpus": [1]}], ["slot 0 is invalid: 1 cpus for 2 vcpus"]),
        ([{**SLOT, "cpus": [1, 1], "queues": 3}], ["3 queues for 2 vcpus", "CPU 1 is named twice"]),
        (
            [{**SLOT, "gpus": ["0000:1b:00.0"], "fabric": ["0000:1b:00.0"]}],
            ["PCI device 0000:1b:00.0 is named twice"],
        ),
        (
            [
                {**SLOT, "gpus": ["0000:1b:00.0"], "cpus": [1, 2]},
                {**SLOT, "index": 1, "fabric": ["0000:1b:00.0"], "cpus": [2, 3]},
                {**SLOT, "index": 2, "cpus": [1, 4]},
            ],
            ["slots 0 and 1 share PCI device 0000:1b:00.0, CPU 2", "slots 0 and 2 share CPU 1"],
        ),
        ([{**SLOT, "vf": "0000:3b:00.2", "queues": 2}], ["queues require a tap"]),
        (
            [{**SLOT, "vf": "0000:3b:00.2"}, {**SLOT, "index": 1, "vf": "0000:3b:00.2"}],
            ["slots 0 and 1 share PCI device 0000:3b:00.2"],
        ),
        ([{**SLOT, "gpus": ["1b:00.0"]}], ["is not a valid PCI address"]),
        ([{**SLOT, "hugepage_kib": 4}], ["hugepage_kib"]),
        ([{**SLOT, "numa_node": -1}], ["numa_node"]),
    ],
)
def test_contradictory_host_resources_in_node_settings_are_refused_with_every_reason(
    slots: list[dict[str, Any]], reasons: list[str]
) -> None:
    with pytest.raises(ValidationError) as refused:
        settings(*slots)
    assert [reason for reason in reasons if reason not in str(refused.value)] == []


@pytest.mark.parametrize("resolver", ["dns.example", "192.0.2.53,1", "2001:db8::53"])
def test_dns_resolver_that_is_not_an_ipv4_address_is_refused_by_the_node_settings(
    resolver: str,
) -> None:
    with pytest.raises(ValidationError, match="is not a valid IPv4 address"):
        settings(SLOT, resolvers=[resolver])
