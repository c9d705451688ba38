"""Tests that objects which other programs added to the agent's network links are found, named and removed, on every
kind of host.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

import pytest

from events.values import SlotIndex
from node_agent.aspects.flows import gateway_mac
from node_agent.aspects.gateway import GatewayLink
from node_agent.aspects.links import LinkAspect, Representor, Tap
from node_agent.host.drift import differences
from node_agent.host.host_resources import HostDevice, Place
from node_agent.host.slices import Aspect
from tests.agent.eventually import eventually
from tests.contract.network.hosts import ADDED, Addition, Host, aspects_of, gateway_of
from tests.contract.network.slices import GATEWAY, NETWORK, network, run, slice_on
from tests.node.pci_trees import VF

ADDITIONS: Final[tuple[Addition, ...]] = get_args(Addition)
SLOT: Final = network(0)
ON_BRIDGE: Final = tuple(each for each in ADDITIONS if each not in {"address", "mac", "macvlan"})
"""Changes of a link that count as alterations of the bridge. The bridge's addresses and MAC are compared separately,
and links that are stacked on it are left in place.
"""
AS_DECLARED: Final = GatewayLink(frozenset({"10.100.1.1/24"}), up=True, mac=gateway_mac(GATEWAY), mtu=1500)


@pytest.mark.parametrize("addition", ADDITIONS)
def test_tap_altered_by_another_program_is_drift_of_its_slot_and_is_repaired_in_one_step(
    host: Host, aspects: tuple[Aspect, ...], addition: Addition
) -> None:
    for slot in (SLOT, network(1)):
        for aspect in aspects:
            run(aspect.to_apply(slice_on(slot)))
    host.plant_addition(SLOT.tap, addition)
    added = ADDED[addition]
    assert host.links.link(SLOT.tap) == Tap(SLOT.tap, alterations=added)
    [step] = aspects[0].to_apply(slice_on(SLOT))
    assert step.repairs is not None
    assert step.repairs.kind == ("link.diverted" if added.diversions else "link.changed")
    assert step.repairs.observed == f"{step.repairs.desired}, with {added}"
    assert aspects[0].to_apply(slice_on(network(1))) == ()
    step.run()
    assert host.links.link(SLOT.tap) == Tap(SLOT.tap)
    assert [step for aspect in aspects for step in aspect.to_apply(slice_on(SLOT))] == []


@pytest.mark.parametrize("addition", ["address", "mirror", "macvlan"])
def test_representor_link_altered_by_another_program_is_drift_of_its_slot_and_is_repaired(
    host: Host, tmp_path: Path, addition: Addition
) -> None:
    run(LinkAspect(host.links, host.bus).to_apply(slice_on(network(1))))
    number = host.plant_representor("eth0", tmp_path)
    aspects = aspects_of(host, {SlotIndex(0): Place((HostDevice(VF, "card"),))})
    try:
        run(aspects[0].to_apply(slice_on(SLOT)))
        host.plant_addition(SLOT.tap, addition)
        [step] = aspects[0].to_apply(slice_on(SLOT))
        step.run()
        assert host.links.representor(number) == Representor(SLOT.tap)
    finally:
        run(aspects[0].to_remove(SLOT))
        host.lose_representor()


@pytest.mark.parametrize("addition", ON_BRIDGE)
def test_ovs_bridge_altered_by_another_program_is_drift_of_the_node_and_is_repaired(
    host: Host, aspects: tuple[Aspect, ...], addition: Addition
) -> None:
    run(aspects[0].to_apply(slice_on(network(1))))
    host.plant_addition(NETWORK.bridge, addition)
    [differs] = differences(gateway_of(host).to_apply())
    assert (differs.kind, differs.observed) == ("gateway.link", f"{differs.desired}, with {ADDED[addition]}")
    assert run(gateway_of(host).to_apply()) == ["gateway.set_address"]
    assert host.links.gateway_link(NETWORK.bridge) == AS_DECLARED


@pytest.mark.parametrize(
    "changed",
    [
        replace(AS_DECLARED, mtu=1400),
        replace(AS_DECLARED, arp=False),
    ],
    ids=["MTU", "ARP"],
)
def test_ovs_bridge_with_another_mtu_or_without_arp_is_drift_and_is_repaired(
    host: Host, changed: GatewayLink
) -> None:
    host.links.set_gateway_link(NETWORK.bridge, changed)
    assert host.links.gateway_link(NETWORK.bridge) == changed
    assert [each.kind for each in differences(gateway_of(host).to_apply())] == ["gateway.link"]
    run(gateway_of(host).to_apply())
    assert gateway_of(host).to_apply() == ()
    assert host.links.gateway_link(NETWORK.bridge) == AS_DECLARED


def test_ovs_bridge_with_a_changed_mac_gets_its_configured_mac_again(host: Host) -> None:
    host.links.set_gateway_link(NETWORK.bridge, replace(AS_DECLARED, mac=gateway_mac(SLOT.ip)))
    # Open vSwitch also resets a changed MAC, and has the link down meanwhile.
    eventually(lambda: not run(gateway_of(host).to_apply()), 10.0)
    assert host.links.gateway_link(NETWORK.bridge) == AS_DECLARED
