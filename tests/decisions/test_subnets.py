"""Choice of free subnets for nodes that are registered concurrently."""

from ipaddress import IPv4Network

from control_plane.decisions.fleet.registration import free_subnet
from events.values import NodeId

POOL = IPv4Network("10.64.0.0/12")
TOGETHER = [NodeId(f"n{number}") for number in range(1000)]


def test_node_gets_the_first_free_subnet_of_the_pool() -> None:
    assert free_subnet(TOGETHER[0], POOL, {"10.64.1.0/24", "10.64.3.0/24"}, 0) == "10.64.2.0/24"


def test_nodes_that_lost_a_race_for_a_subnet_choose_different_subnets_in_later_attempts() -> None:
    competing = TOGETHER
    for lost_races in range(1, 8):
        chosen = [free_subnet(node, POOL, set(), lost_races) for node in competing]
        competing = [node for node, subnet in zip(competing, chosen, strict=True) if chosen.count(subnet) > 1]
    assert competing == []
