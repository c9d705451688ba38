"""The node's own part, on every kind of host: prepared once, repaired where somebody else was at work."""

from dataclasses import replace

from node_agent.foreign import STANDALONE
from node_agent.gateway import Gateway, GatewayLink
from node_agent.meters import Meter
from node_agent.rules import ACCEPT, DROP, NODE, OUT_OF_SLICES, Change, rule
from tests.contract.network.hosts import Host, aspects_of, gateway_of
from tests.contract.network.slices import NETWORK, names, network, run, slice_on


def lacking(gateway: Gateway) -> list[str]:
    return [each.detail for each in gateway.prerequisites() if not each.ok]


def test_a_prepared_node_is_fit_and_is_prepared_a_second_time_in_no_step(host: Host) -> None:
    gateway = gateway_of(host)
    assert lacking(gateway) == []
    assert names(gateway.to_apply()) == []


def test_a_flow_of_nobodys_is_removed(host: Host) -> None:
    host.switch.set_flows(NETWORK.bridge, 7, frozenset({STANDALONE}))
    assert run(gateway_of(host).to_apply()) == ["gateway.remove_foreign_flows"]
    assert host.switch.flows(NETWORK.bridge) == {}


def test_a_meter_of_nobodys_is_removed_and_the_slots_meters_stay(host: Host) -> None:
    host.switch.add_meter(NETWORK.bridge, 1, Meter(9, 9))
    host.switch.add_meter(NETWORK.bridge, 900, Meter(9, 9))
    [remove] = gateway_of(host).to_apply()
    assert remove.mends is not None
    assert (remove.mends.kind, remove.mends.found) == ("bridge.foreign_flows", "no flows, meters 900")
    assert run(gateway_of(host).to_apply()) == ["gateway.remove_foreign_flows"]
    assert host.switch.meters(NETWORK.bridge) == {1: Meter(9, 9)}


def test_a_rule_of_nobodys_is_removed_and_the_slots_rules_stay(host: Host) -> None:
    translation = aspects_of(host)[3]
    run(translation.to_apply(slice_on(network(0))))
    host.filter.change(Change(insert=(rule("inet", OUT_OF_SLICES, "somebody", ACCEPT),)))
    assert "masquerade" in " ".join(lacking(gateway_of(host)))
    assert run(gateway_of(host).to_apply()) == ["gateway.set_rules"]
    assert gateway_of(host).to_apply() == translation.to_apply(slice_on(network(0))) == ()


def test_the_nodes_last_word_is_put_back_behind_the_slots_rules(host: Host) -> None:
    run(aspects_of(host)[3].to_apply(slice_on(network(0))))
    drops = rule("inet", OUT_OF_SLICES, NODE, DROP)
    gone = tuple(found for found in host.filter.ruleset().rules if found.rule == drops)
    host.filter.change(Change(delete=gone))
    assert "masquerade" in " ".join(lacking(gateway_of(host)))
    assert run(gateway_of(host).to_apply()) == ["gateway.set_rules"]
    chain = [found.rule for found in host.filter.ruleset().rules if found.rule.chain == OUT_OF_SLICES]
    assert [each.owner for each in chain] == ["slice0", "slice0", NODE]
    assert chain[-1] == drops


def test_a_bridge_that_forwards_like_any_switch_is_made_secure_again(host: Host) -> None:
    bridge = host.switch.bridge(NETWORK.bridge)
    assert bridge is not None
    host.switch.set_bridge(replace(bridge, secure=False))
    assert lacking(gateway_of(host)) == [f"bridge {NETWORK.bridge}"]
    assert "gateway.set_bridge" in run(gateway_of(host).to_apply())
    assert host.switch.bridge(NETWORK.bridge) == bridge
    assert names(gateway_of(host).to_apply()) == []


def test_the_gateways_address_comes_back(host: Host) -> None:
    host.links.set_gateway_link(NETWORK.bridge, GatewayLink(frozenset({"10.9.9.9/24"}), up=False))
    assert run(gateway_of(host).to_apply()) == ["gateway.set_address"]
    assert host.links.gateway_link(NETWORK.bridge) == GatewayLink(frozenset({"10.100.1.1/24"}), up=True)


def test_another_lease_time_replaces_the_dhcp_server(host: Host) -> None:
    host.leases.serve(replace(NETWORK, lease_seconds=120))
    assert run(gateway_of(host).to_apply()) == ["gateway.serve_dhcp"]
    assert gateway_of(host).to_apply() == ()
