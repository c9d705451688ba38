"""Tests of foreign routes and policy rules: those that can take packets of slices are reported, and the others are
ignored.
"""

from typing import Final

import pytest

from events.values import Ipv4Address, Ipv4Subnet
from node_agent.packets.routing import (
    ANYWHERE,
    DEFAULT,
    LOCAL,
    MAIN,
    PolicyRule,
    Route,
    diverting_rules,
    foreign_routes,
    gateways_of,
    own_routes,
)

BRIDGE: Final = "br-slice"
SUBNET: Final = Ipv4Subnet("10.100.1.0/24")
SLICE: Final = Ipv4Subnet("10.100.1.10/32")
OTHER: Final = Ipv4Subnet("192.0.2.0/24")
ROUTER: Final = Ipv4Address("198.51.100.1")
USUAL: Final = (PolicyRule(0, table=LOCAL), PolicyRule(32766, table=MAIN), PolicyRule(32767, table=DEFAULT))
OWN: Final = own_routes(BRIDGE, SUBNET, Ipv4Address("10.100.1.1"))
BY_ROUTER: Final = Route("unicast", ANYWHERE, 77, ("wg0",), (ROUTER,))


@pytest.mark.parametrize(
    "route",
    [
        Route("blackhole", SLICE),
        Route("unreachable", SUBNET, metric=1),
        Route("unicast", SLICE, MAIN, ("eth7",)),
        Route("unicast", SLICE, MAIN, (BRIDGE,), (Ipv4Address("10.100.1.11"),)),
        Route("unicast", SLICE, MAIN, (BRIDGE, "eth7")),
        Route("unicast", SLICE, MAIN, (BRIDGE,), is_plain=False),
        Route("local", SLICE, LOCAL, ("slice0",)),
    ],
    ids=str,
)
def test_route_that_diverts_packets_for_slices_from_the_bridge_is_reported_as_foreign(route: Route) -> None:
    found = foreign_routes((*OWN, route), BRIDGE, SUBNET)
    assert found is not None
    assert (found.kind, found.observed) == ("foreign.route", str(route))


@pytest.mark.parametrize(
    "route",
    [
        Route("unicast", OTHER, MAIN, ("eth7",)),
        Route("blackhole", OTHER),
        # The kernel prefers the slices' own subnet to any larger one.
        Route("unicast", Ipv4Subnet("10.0.0.0/8"), MAIN, ("eth7",), (ROUTER,)),
        Route("unicast", SLICE, MAIN, (BRIDGE,)),
        Route("broadcast", Ipv4Subnet("10.100.1.255/32"), LOCAL, (BRIDGE,)),
        # No usual rule consults this table.
        Route("blackhole", SLICE, 77),
    ],
    ids=str,
)
def test_route_to_other_destinations_or_by_the_bridge_is_not_reported_as_foreign(route: Route) -> None:
    assert foreign_routes((*OWN, route), BRIDGE, SUBNET) is None


@pytest.mark.parametrize(
    "rule",
    [
        PolicyRule(100, "blackhole", 0, SLICE),
        PolicyRule(100, "unreachable", 0, to=SUBNET),
        PolicyRule(100, "prohibit", 0),
        PolicyRule(100, "goto", 0, SUBNET),
        PolicyRule(100, table=77),
        PolicyRule(100, table=77, source=Ipv4Subnet("10.0.0.0/8")),
        PolicyRule(100, table=77, source=SUBNET, partial=True),
        # VPNs add this rule: everything except their own packets.
        PolicyRule(100, table=77, marked=True, inverted=True),
    ],
    ids=str,
)
def test_routing_policy_rule_that_drops_or_diverts_packets_of_slices_is_reported(rule: PolicyRule) -> None:
    found = diverting_rules((*USUAL, rule), (*OWN, BY_ROUTER), SUBNET, BRIDGE)
    assert found is not None
    assert (found.kind, found.observed) == ("foreign.policy_rule", str(rule))


@pytest.mark.parametrize(
    "rule",
    [
        PolicyRule(100, "blackhole", 0, OTHER),
        PolicyRule(100, table=77, to=OTHER),
        PolicyRule(100, table=77, marked=True),
        PolicyRule(100, table=77, of_host=True),
        PolicyRule(100, table=77, source=SUBNET, inverted=True),
        PolicyRule(100, "nop", 0),
        # The rule has a table without routes, or with routes to other places.
        PolicyRule(100, table=78),
        PolicyRule(100, table=79),
        PolicyRule(100, table=MAIN, partial=True),
    ],
    ids=str,
)
def test_foreign_routing_policy_rule_that_does_not_affect_packets_of_slices_is_not_reported(
    rule: PolicyRule,
) -> None:
    routes = (*OWN, BY_ROUTER, Route("unicast", OTHER, 79, ("wg0",)))
    assert diverting_rules((*USUAL, rule), routes, SUBNET, BRIDGE) is None


def test_missing_policy_rule_for_the_main_routing_table_is_reported_even_if_rules_for_some_packets_remain() -> (
    None
):
    left = (USUAL[0], PolicyRule(100, table=MAIN, partial=True), PolicyRule(101, table=MAIN, source=OTHER))
    found = diverting_rules(left, OWN, SUBNET, BRIDGE)
    assert found is not None
    assert found.observed == "no rule that looks up table 254"


def test_default_gateway_of_a_host_is_that_of_its_preferred_default_route() -> None:
    backup = Route("unicast", ANYWHERE, MAIN, ("eth0",), (Ipv4Address("198.51.100.2"),), metric=900)
    preferred = Route("unicast", ANYWHERE, MAIN, ("eth0",), (ROUTER,), metric=100)
    assert gateways_of((backup, preferred), "eth0") == {ROUTER}
    assert gateways_of((backup, preferred), "eth1") == frozenset()
    assert gateways_of((), "eth0") == frozenset()
