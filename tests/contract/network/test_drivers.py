"""Tests of network requests that every host refuses, and of the data that a host reports about itself. The simulated
host and the real host must behave alike.
"""

from typing import Final

import pytest

from node_agent.aspects.flows import cookie_of, flows_of
from node_agent.aspects.leases import Reservation
from node_agent.aspects.links import LinkAspect, OtherLink, Tap
from node_agent.aspects.meters import Meter, from_slice, meters_of, to_slice
from node_agent.aspects.ports import Port
from node_agent.host.slices import HostRefused
from node_agent.packets.rules import ACCEPT, Change, rule
from tests.contract.network.hosts import Host
from tests.contract.network.slices import NETWORK, network, slice_on

LIMIT: Final = Meter(1000, 800)


def test_tap_is_read_back_with_the_settings_with_which_it_was_added_or_changed(host: Host) -> None:
    host.links.add_tap(Tap("slice0", mtu=1400))
    assert host.links.link("slice0") == Tap("slice0", mtu=1400, up=True, owner=0)
    host.links.set_tap(Tap("slice0", mtu=1500, up=False))
    assert host.links.link("slice0") == Tap("slice0", mtu=1500, up=False, owner=0)


def test_tap_with_many_queues_differs_from_a_tap_with_one_queue_and_is_replaced(host: Host) -> None:
    host.links.add_tap(Tap("slice0", many=True))
    assert host.links.link("slice0") == Tap("slice0", many=True)
    (deleting, adding) = LinkAspect(host.links, host.bus).to_apply(slice_on(network(0)))
    assert deleting.repairs is not None
    assert "multi-queue" in deleting.repairs.observed
    deleting.run()
    adding.run()
    assert host.links.link("slice0") == Tap("slice0")


def test_adding_an_existing_network_link_is_refused_and_deleting_an_absent_link_is_not(host: Host) -> None:
    host.links.add_tap(Tap("slice0"))
    with pytest.raises(HostRefused, match="slice0"):
        host.links.add_tap(Tap("slice0"))
    host.links.delete_link("slice0")
    host.links.delete_link("slice0")
    assert host.links.link("slice0") is None


def test_changing_the_settings_of_an_absent_tap_is_refused(host: Host) -> None:
    with pytest.raises(HostRefused, match="slice0"):
        host.links.set_tap(Tap("slice0"))


def test_network_link_that_is_not_a_tap_is_read_with_its_kind(host: Host) -> None:
    host.plant_link("slice0")
    assert host.links.link("slice0") == OtherLink("slice0", "veth")


def test_ovs_port_without_its_network_device_is_refused_and_not_added(host: Host) -> None:
    with pytest.raises(HostRefused, match="slice0"):
        host.switch.add_port(Port("slice0", NETWORK.bridge, 1000))
    assert host.switch.port("slice0") is None


def test_ovs_port_without_its_bridge_is_refused_and_not_added(host: Host) -> None:
    host.links.add_tap(Tap("slice0"))
    with pytest.raises(HostRefused, match="br-none"):
        host.switch.add_port(Port("slice0", "br-none", 1000))
    assert host.switch.port("slice0") is None


def test_ovs_port_with_a_name_or_number_in_use_is_refused(host: Host) -> None:
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


def test_openflow_flows_are_read_back_by_cookie_as_they_were_set(host: Host) -> None:
    for index in (0, 1):
        host.switch.set_flows(NETWORK.bridge, cookie_of(network(index).index), flows_of(network(index)))
    host.switch.set_flows(NETWORK.bridge, cookie_of(network(0).index), frozenset())
    assert host.switch.flows(NETWORK.bridge) == {cookie_of(network(1).index): flows_of(network(1))}


def test_absent_ovs_bridge_has_no_flows_and_refuses_new_flows(host: Host) -> None:
    assert host.switch.flows("br-none") == {}
    with pytest.raises(HostRefused, match="br-none"):
        host.switch.set_flows("br-none", cookie_of(network(0).index), flows_of(network(0)))


def test_openflow_meters_are_read_back_as_they_were_added_and_changed(host: Host) -> None:
    host.switch.add_meter(NETWORK.bridge, 1, LIMIT)
    host.switch.add_meter(NETWORK.bridge, 2, LIMIT)
    host.switch.change_meter(NETWORK.bridge, 2, Meter(400_000_000, 1))
    assert host.switch.meters(NETWORK.bridge) == {1: LIMIT, 2: Meter(400_000_000, 1)}
    host.switch.delete_meter(NETWORK.bridge, 1)
    host.switch.delete_meter(NETWORK.bridge, 1)
    assert host.switch.meters(NETWORK.bridge) == {2: Meter(400_000_000, 1)}


def test_openflow_meter_with_a_number_in_use_and_change_of_an_absent_meter_are_refused(host: Host) -> None:
    with pytest.raises(HostRefused, match="br-slice"):
        host.switch.change_meter(NETWORK.bridge, 1, LIMIT)
    host.switch.add_meter(NETWORK.bridge, 1, LIMIT)
    with pytest.raises(HostRefused, match="br-slice"):
        host.switch.add_meter(NETWORK.bridge, 1, Meter(9, 9))
    assert host.switch.meters(NETWORK.bridge) == {1: LIMIT}


def test_absent_ovs_bridge_has_no_meters_and_refuses_new_meters(host: Host) -> None:
    assert host.switch.meters("br-none") == {}
    for change in (host.switch.add_meter, host.switch.change_meter):
        with pytest.raises(HostRefused, match="br-none"):
            change("br-none", 1, LIMIT)
    with pytest.raises(HostRefused, match="br-none"):
        host.switch.delete_meter("br-none", 1)


def test_setting_flows_one_of_which_uses_an_absent_meter_is_refused_and_changes_no_flow(host: Host) -> None:
    limited, cookie = network(0, rate_mbit=1), cookie_of(network(0).index)
    host.switch.set_flows(NETWORK.bridge, cookie, flows_of(network(0)))
    host.switch.add_meter(NETWORK.bridge, from_slice(limited.index), LIMIT)
    with pytest.raises(HostRefused, match="br-slice"):
        host.switch.set_flows(NETWORK.bridge, cookie, flows_of(limited))
    assert host.switch.flows(NETWORK.bridge) == {cookie: flows_of(network(0))}


def test_deleting_an_openflow_meter_deletes_only_the_flows_that_use_it(host: Host) -> None:
    limited, cookie = network(0, rate_mbit=1), cookie_of(network(0).index)
    for number, meter in meters_of(limited).items():
        host.switch.add_meter(NETWORK.bridge, number, meter)
    host.switch.set_flows(NETWORK.bridge, cookie, flows_of(limited))
    assert host.switch.flows(NETWORK.bridge) == {cookie: flows_of(limited)}
    host.switch.delete_meter(NETWORK.bridge, to_slice(limited.index))
    (deleted,) = flows_of(limited) - host.switch.flows(NETWORK.bridge)[cookie]
    assert deleted.actions == "meter:2,output:1000"


def test_nftables_change_with_one_invalid_rule_is_refused_and_changes_no_rule(host: Host) -> None:
    before = host.filter.ruleset()
    good, bad = rule("inet", "forward", "slice0", ACCEPT), rule("inet", "nowhere", "slice0", ACCEPT)
    with pytest.raises(HostRefused):
        host.filter.change(Change(insert=(good, bad)))
    assert host.filter.ruleset() == before


def test_deleting_an_nftables_rule_that_was_already_deleted_is_refused(host: Host) -> None:
    host.filter.change(Change(insert=(rule("inet", "forward", "slice0", ACCEPT),)))
    found = tuple(each for each in host.filter.ruleset().rules if each.rule.owner == "slice0")
    host.filter.change(Change(delete=found))
    with pytest.raises(HostRefused):
        host.filter.change(Change(delete=found))


@pytest.mark.parametrize(
    "conflicting",
    [
        Reservation("slice0", network(1).mac, network(1).ip),
        Reservation("slice1", network(0).mac, network(1).ip),
        Reservation("slice1", network(1).mac, network(0).ip),
    ],
    ids=["name", "mac", "address"],
)
def test_dhcp_reservation_with_a_name_mac_or_address_in_use_is_refused(
    host: Host, conflicting: Reservation
) -> None:
    first = Reservation("slice0", network(0).mac, network(0).ip)
    host.leases.reserve(first)
    with pytest.raises(HostRefused, match="reserved already"):
        host.leases.reserve(conflicting)
    assert host.leases.reservations() == {first}
    host.leases.withdraw(first)
    host.leases.withdraw(first)
    assert host.leases.reservations() == frozenset()
