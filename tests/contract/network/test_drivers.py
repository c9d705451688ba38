"""What every host refuses, and what it says of itself: the simulated one as the real one."""

from typing import Final

import pytest

from node_agent.flows import cookie_of, flows_of
from node_agent.leases import Reservation
from node_agent.links import LinkAspect, OtherLink, Tap
from node_agent.meters import Meter, from_slice, meters_of, to_slice
from node_agent.ports import Port
from node_agent.rules import ACCEPT, Change, rule
from node_agent.slices import HostRefused
from tests.contract.network.hosts import Host
from tests.contract.network.slices import NETWORK, network, slice_on

LIMIT: Final = Meter(1000, 800)


def test_a_tap_is_found_as_it_was_added(host: Host) -> None:
    host.links.add_tap(Tap("slice0", mtu=1400))
    assert host.links.link("slice0") == Tap("slice0", mtu=1400, up=True, owner=0)
    host.links.set_tap(Tap("slice0", mtu=1500, up=False))
    assert host.links.link("slice0") == Tap("slice0", mtu=1500, up=False, owner=0)


def test_a_tap_of_many_queues_is_another_than_one_of_one(host: Host) -> None:
    host.links.add_tap(Tap("slice0", many=True))
    assert host.links.link("slice0") == Tap("slice0", many=True)
    (deleting, adding) = LinkAspect(host.links, host.bus).to_apply(slice_on(network(0)))
    assert deleting.mends is not None
    assert "many queues" in deleting.mends.found
    deleting.run()
    adding.run()
    assert host.links.link("slice0") == Tap("slice0")


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


def test_meters_are_read_back_as_they_were_made_and_changed(host: Host) -> None:
    host.switch.add_meter(NETWORK.bridge, 1, LIMIT)
    host.switch.add_meter(NETWORK.bridge, 2, LIMIT)
    host.switch.change_meter(NETWORK.bridge, 2, Meter(400_000_000, 1))
    assert host.switch.meters(NETWORK.bridge) == {1: LIMIT, 2: Meter(400_000_000, 1)}
    host.switch.delete_meter(NETWORK.bridge, 1)
    host.switch.delete_meter(NETWORK.bridge, 1)
    assert host.switch.meters(NETWORK.bridge) == {2: Meter(400_000_000, 1)}


def test_a_meters_number_is_taken_once_and_only_one_that_is_there_can_be_changed(host: Host) -> None:
    with pytest.raises(HostRefused, match="br-slice"):
        host.switch.change_meter(NETWORK.bridge, 1, LIMIT)
    host.switch.add_meter(NETWORK.bridge, 1, LIMIT)
    with pytest.raises(HostRefused, match="br-slice"):
        host.switch.add_meter(NETWORK.bridge, 1, Meter(9, 9))
    assert host.switch.meters(NETWORK.bridge) == {1: LIMIT}


def test_a_bridge_that_is_not_there_has_no_meters_and_takes_none(host: Host) -> None:
    assert host.switch.meters("br-none") == {}
    for change in (host.switch.add_meter, host.switch.change_meter):
        with pytest.raises(HostRefused, match="br-none"):
            change("br-none", 1, LIMIT)
    with pytest.raises(HostRefused, match="br-none"):
        host.switch.delete_meter("br-none", 1)


def test_flows_need_the_meters_that_they_name_and_are_refused_whole(host: Host) -> None:
    limited, cookie = network(0, rate_mbit=1), cookie_of(network(0).index)
    host.switch.set_flows(NETWORK.bridge, cookie, flows_of(network(0)))
    host.switch.add_meter(NETWORK.bridge, from_slice(limited.index), LIMIT)
    with pytest.raises(HostRefused, match="br-slice"):
        host.switch.set_flows(NETWORK.bridge, cookie, flows_of(limited))
    assert host.switch.flows(NETWORK.bridge) == {cookie: flows_of(network(0))}


def test_a_meter_takes_the_flows_that_name_it_along_and_no_others(host: Host) -> None:
    limited, cookie = network(0, rate_mbit=1), cookie_of(network(0).index)
    for number, meter in meters_of(limited).items():
        host.switch.add_meter(NETWORK.bridge, number, meter)
    host.switch.set_flows(NETWORK.bridge, cookie, flows_of(limited))
    assert host.switch.flows(NETWORK.bridge) == {cookie: flows_of(limited)}
    host.switch.delete_meter(NETWORK.bridge, to_slice(limited.index))
    (gone,) = flows_of(limited) - host.switch.flows(NETWORK.bridge)[cookie]
    assert gone.actions == "meter:2,output:1000"


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
