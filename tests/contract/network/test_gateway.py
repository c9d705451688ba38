"""Tests of a node's own network (bridge, gateway, uplink rules) on every kind of host: it is prepared once, and
repaired after foreign changes.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Final

import pytest

from node_agent.aspects.flows import gateway_mac
from node_agent.aspects.foreign import STANDALONE
from node_agent.aspects.gateway import Gateway, GatewayLink
from node_agent.aspects.meters import Meter
from node_agent.host.drift import differences
from node_agent.host.slices import Aspect, HostRefused
from node_agent.packets.rules import ACCEPT, DROP, NODE, OUT_OF_SLICES, AddressTranslation, Change, rule
from tests.contract.network.hosts import FILTER_CHANGES, Host, aspects_of, gateway_of
from tests.contract.network.slices import GATEWAY, NETWORK, names, network, port_mapping, run, slice_on

CHAIN_MADE_AGAIN: Final = {"another priority", "another device"}
"""Changes of the nftables tables that create a chain again, so that the chain loses its rules."""


def lacking(gateway: Gateway) -> list[str]:
    return [each.detail for each in gateway.prerequisites() if not each.ok]


def test_node_with_a_prepared_network_misses_no_prerequisite_and_preparing_it_again_takes_no_step(
    host: Host,
) -> None:
    gateway = gateway_of(host)
    assert lacking(gateway) == []
    assert names(gateway.to_apply()) == []


def test_openflow_flow_that_belongs_to_no_slot_is_removed(host: Host) -> None:
    host.switch.set_flows(NETWORK.bridge, 7, frozenset({STANDALONE}))
    assert run(gateway_of(host).to_apply()) == ["gateway.remove_foreign_flows"]
    assert host.switch.flows(NETWORK.bridge) == {}


def test_openflow_meter_that_belongs_to_no_slot_is_removed_and_meters_of_slots_stay(host: Host) -> None:
    host.switch.add_meter(NETWORK.bridge, 1, Meter(9, 9))
    host.switch.add_meter(NETWORK.bridge, 900, Meter(9, 9))
    [remove] = gateway_of(host).to_apply()
    assert remove.repairs is not None
    assert (remove.repairs.kind, remove.repairs.observed) == ("bridge.foreign_flows", "no flows, meters 900")
    assert run(gateway_of(host).to_apply()) == ["gateway.remove_foreign_flows"]
    assert host.switch.meters(NETWORK.bridge) == {1: Meter(9, 9)}


def test_nftables_rule_that_belongs_to_no_slot_is_removed_and_rules_of_slots_stay(host: Host) -> None:
    translation = aspects_of(host)[3]
    run(translation.to_apply(slice_on(network(0))))
    host.filter.change(Change(insert=(rule("inet", OUT_OF_SLICES, "other", ACCEPT),)))
    assert "masquerade" in " ".join(lacking(gateway_of(host)))
    assert run(gateway_of(host).to_apply()) == ["gateway.set_rules"]
    assert gateway_of(host).to_apply() == translation.to_apply(slice_on(network(0))) == ()


def test_final_drop_rule_of_a_node_is_restored_behind_the_nftables_rules_of_its_slots(host: Host) -> None:
    run(aspects_of(host)[3].to_apply(slice_on(network(0))))
    drops = rule("inet", OUT_OF_SLICES, NODE, DROP)
    removed = tuple(found for found in host.filter.ruleset().rules if found.rule == drops)
    host.filter.change(Change(delete=removed))
    assert "masquerade" in " ".join(lacking(gateway_of(host)))
    assert run(gateway_of(host).to_apply()) == ["gateway.set_rules"]
    chain = [found.rule for found in host.filter.ruleset().rules if found.rule.chain == OUT_OF_SLICES]
    assert [each.owner for each in chain] == ["slice0", "slice0", NODE]
    assert chain[-1] == drops


@pytest.mark.parametrize("what", FILTER_CHANGES)
def test_nftables_table_of_the_agent_with_a_changed_declaration_is_replaced_and_rules_of_slots_stay(
    host: Host, what: str
) -> None:
    translation, wanted = aspects_of(host)[3], slice_on(network(0), port_mapping(1, "198.51.100.7", 2222))
    run(translation.to_apply(wanted))
    before = host.filter.ruleset()
    host.plant_in_filter(what)
    assert host.filter.ruleset() != before
    assert lacking(gateway_of(host)) == [f"masquerade and filter rules for {NETWORK.subnet}"]
    [replaced] = gateway_of(host).to_apply()
    assert replaced.repairs is not None
    assert replaced.repairs.kind == "gateway.rules"
    run((replaced,))
    after = host.filter.ruleset()
    assert (after.chains, after.others) == (before.chains, frozenset())
    assert gateway_of(host).to_apply() == ()
    if what not in CHAIN_MADE_AGAIN:
        assert [each.rule for each in after.rules] == [each.rule for each in before.rules]
        assert translation.to_apply(wanted) == ()


def test_nftables_rule_deleted_after_the_replacement_of_its_table_was_planned_is_not_restored(
    host: Host,
) -> None:
    translation = aspects_of(host)[3]
    run(translation.to_apply(slice_on(network(0))))
    host.plant_in_filter("policy drop")
    planned = gateway_of(host).to_apply()
    run(translation.to_remove(network(0)))
    run(planned)
    assert [each.rule.place for each in host.filter.ruleset().rules if each.rule.place != NODE] == []
    assert gateway_of(host).to_apply() == ()


def test_ovs_bridge_with_fail_mode_standalone_gets_fail_mode_secure_again(host: Host) -> None:
    bridge = host.switch.bridge(NETWORK.bridge)
    assert bridge is not None
    host.switch.set_bridge(replace(bridge, secure=False))
    assert lacking(gateway_of(host)) == [f"bridge {NETWORK.bridge}"]
    assert "gateway.set_bridge" in run(gateway_of(host).to_apply())
    assert host.switch.bridge(NETWORK.bridge) == bridge
    assert names(gateway_of(host).to_apply()) == []


def test_ovs_bridge_without_a_datapath_is_created_again_with_the_configured_type_and_keeps_its_ports(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    for aspect in aspects:
        run(aspect.to_apply(slice_on(network(0))))
    port = host.switch.port("slice0")
    host.plant_without_datapath()
    found = host.switch.bridge(NETWORK.bridge)
    assert found is not None
    assert not found.has_datapath
    # The device of a real bridge is gone too, with its address.
    [changed, *_] = differences(gateway_of(host).to_apply())
    assert (changed.kind, "without a datapath" in changed.observed) == ("bridge.changed", True)
    run(gateway_of(host).to_apply())
    run(gateway_of(host).to_apply())
    assert gateway_of(host).to_apply() == ()
    for aspect in aspects:
        run(aspect.to_apply(slice_on(network(0))))
    assert host.switch.port("slice0") == port


def test_datapath_type_that_ovs_does_not_support_is_a_missing_prerequisite_and_creates_no_bridge(
    host: Host,
) -> None:
    host.drop_datapath_type("nonsense")
    wanted = replace(NETWORK, bridge="br-nonsense", datapath_type="nonsense")
    gateway = Gateway(wanted, host.switch, host.links, host.filter, host.leases, routing=host.routing)
    [missing] = gateway.missing()
    assert missing.startswith("datapath type nonsense")
    [set_bridge, *_] = gateway.to_apply()
    with pytest.raises(HostRefused, match="datapath type nonsense"):
        set_bridge.run()
    assert host.switch.bridge("br-nonsense") is None


def test_lost_ip_address_of_a_nodes_gateway_is_restored(host: Host) -> None:
    host.links.set_gateway_link(NETWORK.bridge, GatewayLink(frozenset({"10.9.9.9/24"}), up=False))
    assert run(gateway_of(host).to_apply()) == ["gateway.set_address"]
    assert host.links.gateway_link(NETWORK.bridge) == GatewayLink(
        frozenset({"10.100.1.1/24"}), up=True, mac=gateway_mac(GATEWAY), mtu=1500
    )


def test_dhcp_server_with_another_lease_time_is_replaced(host: Host) -> None:
    host.leases.serve(replace(NETWORK, lease_seconds=120))
    assert run(gateway_of(host).to_apply()) == ["gateway.serve_dhcp"]
    assert gateway_of(host).to_apply() == ()


def test_dormant_nftables_table_of_another_program_is_read_and_not_reported(host: Host) -> None:
    host.plant_diversion(network(0).ip, 2299)
    [reported] = gateway_of(host).lost()
    assert reported.kind == "foreign.rules"
    host.make_diversion_dormant()
    assert gateway_of(host).lost() == ()
    assert gateway_of(host).to_apply() == ()
    host.remove_diversion()


@pytest.mark.parametrize(("translation", "mode"), [("masquerade", "private-nat"), ("dnat", "public-nat")])
def test_host_that_refuses_a_kind_of_address_translation_lacks_only_the_network_mode_that_needs_it(
    host: Host, translation: AddressTranslation, mode: str
) -> None:
    assert gateway_of(host).unsupported_modes() == {}
    with host.refusing(translation):
        # All rules are lost. One that needs the translation is refused, and so the host is checked again.
        host.filter.change(Change(delete=host.filter.ruleset().rules))
        with suppress(HostRefused):
            run(gateway_of(host).to_apply())
            run(aspects_of(host)[3].to_apply(slice_on(network(0), port_mapping(1, "198.51.100.7", 2222))))
        run(gateway_of(host).to_apply())
        gateway = gateway_of(host)
        assert gateway.to_apply() == ()
        [(found, reason)] = gateway.unsupported_modes().items()
        assert (found, f"no module for {translation}" in reason) == (mode, True)
        assert lacking(gateway) == [f"network mode {mode}: {reason}"]
        masquerades = [each for each in host.filter.ruleset().rules if "masquerade" in each.rule.body]
        assert bool(masquerades) == (translation != "masquerade")
        drops = [each.rule for each in host.filter.ruleset().rules if each.rule.chain == "leaving"]
        assert len(drops) == 1
    assert gateway_of(host).unsupported_modes() == {}
    run(gateway_of(host).to_apply())
    assert lacking(gateway_of(host)) == []
