"""What every host refuses, and what it says of itself: the simulated one as the real one."""

import pytest

from node_agent.flows import cookie_of, flows_of
from node_agent.leases import Reservation
from node_agent.links import OtherLink, Tap
from node_agent.ports import Port
from node_agent.rules import ACCEPT, Change, rule
from node_agent.slices import HostRefused
from tests.contract.network.hosts import Host
from tests.contract.network.slices import NETWORK, network


def test_a_tap_is_found_as_it_was_added(host: Host) -> None:
    host.links.add_tap(Tap("slice0", mtu=1400))
    assert host.links.link("slice0") == Tap("slice0", mtu=1400, up=True, owner=0)
    host.links.set_tap(Tap("slice0", mtu=1500, up=False))
    assert host.links.link("slice0") == Tap("slice0", mtu=1500, up=False, owner=0)


def test_a_link_is_added_once_and_deleted_as_often_as_you_like(host: Host) -> None:
    host.links.add_tap(Tap("slice0"))
    with pytest.raises(HostRefused, match="slice0"):
        host.links.add_tap(Tap("slice0"))
    host.links.delete_link("slice0")
    host.links.delete_link("slice0")
    assert host.links.link("slice0") is None


def test_a_tap_that_is_not_there_cannot_be_set(host: Host) -> None:
    with pytest.raises(HostRefused, match="slice0"):
        host.links.set_tap(Tap("slice0"))


def test_a_link_of_another_kind_is_found_as_such(host: Host) -> None:
    host.plant_link("slice0")
    assert host.links.link("slice0") == OtherLink("slice0", "veth")


def test_a_port_needs_its_device_and_is_not_there_when_refused(host: Host) -> None:
    with pytest.raises(HostRefused, match="slice0"):
        host.switch.add_port(Port("slice0", NETWORK.bridge, 1000))
    assert host.switch.port("slice0") is None


def test_a_port_needs_its_bridge(host: Host) -> None:
    host.links.add_tap(Tap("slice0"))
    with pytest.raises(HostRefused, match="br-none"):
        host.switch.add_port(Port("slice0", "br-none", 1000))
    assert host.switch.port("slice0") is None


def test_a_ports_name_and_number_are_taken_once(host: Host) -> None:
    for name in ("slice0", "slice1"):
        host.links.add_tap(Tap(name))
    port = Port("slice0", NETWORK.bridge, 1000)
    host.switch.add_port(port)
    with pytest.raises(HostRefused, match="slice0"):
        host.switch.add_port(port)
    with pytest.raises(HostRefused, match="slice1"):
        host.switch.add_port(Port("slice1", NETWORK.bridge, 1000))
    assert host.switch.port("slice0") == port
    assert host.switch.port("slice1") is None


def test_flows_are_read_back_as_they_were_set_and_belong_to_their_cookie(host: Host) -> None:
    for index in (0, 1):
        host.switch.set_flows(NETWORK.bridge, cookie_of(network(index).index), flows_of(network(index)))
    host.switch.set_flows(NETWORK.bridge, cookie_of(network(0).index), frozenset())
    assert host.switch.flows(NETWORK.bridge) == {cookie_of(network(1).index): flows_of(network(1))}


def test_a_bridge_that_is_not_there_has_no_flows_and_takes_none(host: Host) -> None:
    assert host.switch.flows("br-none") == {}
    with pytest.raises(HostRefused, match="br-none"):
        host.switch.set_flows("br-none", cookie_of(network(0).index), flows_of(network(0)))


def test_a_transaction_of_rules_is_refused_whole(host: Host) -> None:
    before = host.filter.ruleset()
    good, bad = rule("inet", "forward", "slice0", ACCEPT), rule("inet", "nowhere", "slice0", ACCEPT)
    with pytest.raises(HostRefused):
        host.filter.change(Change(insert=(good, bad)))
    assert host.filter.ruleset() == before


def test_a_rule_is_deleted_once(host: Host) -> None:
    host.filter.change(Change(insert=(rule("inet", "forward", "slice0", ACCEPT),)))
    found = tuple(each for each in host.filter.ruleset().rules if each.rule.owner == "slice0")
    host.filter.change(Change(delete=found))
    with pytest.raises(HostRefused):
        host.filter.change(Change(delete=found))


@pytest.mark.parametrize(
    "twin",
    [
        Reservation("slice0", network(1).mac, network(1).ip),
        Reservation("slice1", network(0).mac, network(1).ip),
        Reservation("slice1", network(1).mac, network(0).ip),
    ],
    ids=["name", "mac", "address"],
)
def test_a_reservations_name_mac_and_address_are_taken_once(host: Host, twin: Reservation) -> None:
    first = Reservation("slice0", network(0).mac, network(0).ip)
    host.leases.reserve(first)
    with pytest.raises(HostRefused, match="reserved already"):
        host.leases.reserve(twin)
    assert host.leases.reservations() == {first}
    host.leases.withdraw(first)
    host.leases.withdraw(first)
    assert host.leases.reservations() == frozenset()
