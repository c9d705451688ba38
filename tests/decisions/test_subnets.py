"""Subnets for hosts that are admitted together."""

from ipaddress import IPv4Network

from control_plane.decisions.subnets import free_subnet
from events.values import NodeId

POOL = IPv4Network("10.64.0.0/12")
TOGETHER = [NodeId(f"n{number}") for number in range(1000)]


def test_the_first_that_is_free_is_given() -> None:
    assert free_subnet(TOGETHER[0], POOL, {"10.64.1.0/24", "10.64.3.0/24"}, 0) == "10.64.2.0/24"


def test_hosts_that_met_hardly_meet_again() -> None:
    met = TOGETHER
    for lost_races in range(1, 8):
        chosen = [free_subnet(node, POOL, set(), lost_races) for node in met]
        met = [node for node, subnet in zip(met, chosen, strict=True) if chosen.count(subnet) > 1]
    assert met == []
