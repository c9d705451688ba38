"""Tests of foreign changes of a host's routing and uplink: they are found and named, and the agent's own routes are
repaired.
"""

from typing import Final

import pytest

from node_agent.host.drift import differences
from tasks.drift import DriftKind
from tests.agent.eventually import eventually
from tests.contract.network.hosts import Host, gateway_of
from tests.contract.network.slices import run
from tests.contract.network.traffic.interference import Interference

REPAIRED: Final[dict[Interference, tuple[DriftKind, str]]] = {
    "subnet route deleted": ("gateway.route", "missing: unicast 10.100.1.0/24 dev br-slice"),
    "local route deleted": ("gateway.route", "missing: local 10.100.1.1/32 dev br-slice table 255"),
    "static neighbour": ("gateway.neighbour", "10.100.1.10 at 02:00:00:00:00:99"),
}
REPORTED: Final[dict[Interference, tuple[DriftKind, str]]] = {
    "blackhole": ("foreign.route", "blackhole 10.100.1.10/32"),
    "route elsewhere": ("foreign.route", "unicast 10.100.1.0/25 via 198.51.100.1 dev uplink0"),
    "rule that drops": ("foreign.policy_rule", "100: from 10.100.1.0/24 blackhole"),
    "rule to another table": ("foreign.policy_rule", "100: from all to 10.100.1.0/24 lookup 77"),
    "main rule deleted": ("foreign.policy_rule", "no rule that looks up table 254"),
    "macvlan on the bridge": ("foreign.upper_link", "macvlan link spy0"),
    "uplink throttled": ("foreign.uplink_qdisc", "qdisc tbf at its root"),
    "uplink filtered": ("foreign.uplink_qdisc", "bpf filter that is there"),
}


@pytest.mark.parametrize("interference", REPAIRED)
def test_foreign_change_of_the_agents_own_routes_is_drift_and_is_repaired(
    host: Host, interference: Interference
) -> None:
    host.interfere(interference)
    assert [(each.kind, each.observed) for each in differences(gateway_of(host).to_apply())] == [
        REPAIRED[interference]
    ]
    run(gateway_of(host).to_apply())
    assert gateway_of(host).to_apply() == ()
    assert gateway_of(host).lost() == ()


@pytest.mark.parametrize("interference", REPORTED)
def test_foreign_change_of_a_hosts_routing_is_reported_by_name_and_left_unchanged(
    host: Host, interference: Interference
) -> None:
    host.interfere(interference)
    try:
        assert gateway_of(host).to_apply() == ()
        assert [(each.kind, each.observed) for each in gateway_of(host).lost()] == [REPORTED[interference]]
    finally:
        host.end_interference(interference)
    assert gateway_of(host).lost() == ()


@pytest.mark.parametrize("interference", ["uplink MTU", "uplink without ARP"])
def test_uplink_that_changed_since_the_agent_started_is_reported_until_the_change_is_undone(
    host: Host, interference: Interference
) -> None:
    gateway = gateway_of(host)
    assert gateway.lost() == ()
    host.interfere(interference)
    try:
        assert [each.kind for each in gateway.lost()] == ["uplink.changed"]
        assert gateway_of(host).lost() == (), "an agent that starts accepts what it finds"
    finally:
        host.end_interference(interference)
    assert gateway.lost() == ()


def test_default_gateway_that_answers_no_arp_is_reported_until_it_answers(host: Host) -> None:
    gateway = gateway_of(host)
    host.interfere("silent gateway")
    try:
        eventually(lambda: [each.kind for each in gateway.lost()] == ["uplink.unresponsive"], 15.0)
    finally:
        host.end_interference("silent gateway")
    eventually(lambda: gateway.lost() == (), 15.0)
