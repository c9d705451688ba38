"""Tests of the four network aspects of a slice (link, DHCP lease, OVS port, address translation) on every kind of host:
they apply the desired state, change nothing when repeated, detect drift, remove the slice and prove its absence.
"""

from dataclasses import replace

import pytest

from events.values import Ipv4Address, MacAddress
from node_agent.aspects.flows import cookie_of, port_number
from node_agent.aspects.foreign import STANDALONE
from node_agent.aspects.leases import LeaseAspect, ObservedAddress
from node_agent.aspects.links import Tap
from node_agent.aspects.ports import Port
from node_agent.host.slices import Aspect, SliceNetwork
from node_agent.host.snapshots import host_snapshot
from node_agent.packets.rules import Change
from tests.contract.network.hosts import Host
from tests.contract.network.slices import names, network, run, slice_on


def apply(aspects: tuple[Aspect, ...], slot: SliceNetwork) -> list[str]:
    return [name for aspect in aspects for name in run(aspect.to_apply(slice_on(slot)))]


def remove(aspects: tuple[Aspect, ...], slot: SliceNetwork) -> list[str]:
    return [name for aspect in reversed(aspects) for name in run(aspect.to_remove(slot))]


def stop(aspects: tuple[Aspect, ...], slot: SliceNetwork) -> list[str]:
    return [name for aspect in reversed(aspects) for name in run(aspect.to_stop(slot))]


def still_on(aspects: tuple[Aspect, ...], slot: SliceNetwork) -> list[str]:
    return [words for aspect in aspects for words in aspect.still_on(slot)]


def remains(aspects: tuple[Aspect, ...], slot: SliceNetwork) -> list[str]:
    return [words for aspect in aspects for words in aspect.remains(slot)]


def test_slice_network_is_made_in_five_steps_and_applying_it_again_takes_no_step(
    aspects: tuple[Aspect, ...],
) -> None:
    made = apply(aspects, network(0))
    assert made == ["link.add_tap", "lease.reserve", "port.add", "port.set_flows", "translation.set_rules"]
    assert apply(aspects, network(0)) == []


def test_removed_slice_network_leaves_nothing_and_removing_it_again_takes_no_step(
    aspects: tuple[Aspect, ...],
) -> None:
    apply(aspects, network(0))
    assert remove(aspects, network(0)) == [
        "translation.delete_rules",
        "port.delete_flows",
        "port.delete",
        "lease.withdraw",
        "link.delete",
    ]
    assert remains(aspects, network(0)) == []
    assert remove(aspects, network(0)) == []


def test_stopped_slice_keeps_only_its_dhcp_reservation(aspects: tuple[Aspect, ...]) -> None:
    slot = network(0)
    apply(aspects, slot)
    assert stop(aspects, slot) == [
        "translation.delete_rules",
        "port.delete_flows",
        "port.delete",
        "link.delete",
    ]
    assert still_on(aspects, slot) == []
    assert remains(aspects, slot) == [f"dhcp reservation slice0 of {slot.ip} for {slot.mac}"]
    assert stop(aspects, slot) == []


def test_stopped_slice_without_its_dhcp_reservation_gets_only_the_reservation_again(
    aspects: tuple[Aspect, ...],
) -> None:
    assert stop(aspects, network(0)) == ["lease.reserve"]
    assert still_on(aspects, network(0)) == []


def test_list_of_network_objects_that_a_stop_must_remove_contains_all_except_the_dhcp_reservation(
    aspects: tuple[Aspect, ...],
) -> None:
    apply(aspects, network(0))
    assert still_on(aspects, network(0)) == [
        each for each in remains(aspects, network(0)) if not each.startswith("dhcp reservation")
    ]


def test_list_of_a_slices_remaining_network_objects_contains_every_object_of_an_applied_slice(
    aspects: tuple[Aspect, ...],
) -> None:
    apply(aspects, network(0))
    assert remains(aspects, network(0)) == [
        "tap slice0",
        "dhcp reservation slice0 of 10.100.1.10 for 52:54:00:01:00:00",
        "ovs port slice0 on br-slice",
        "11 flows of slice0 on br-slice",
        "nft rule of slice0 in from_slices",
        "nft rule of slice0 in out_of_slices",
        "nft rule of slice0 in out_of_slices",
        "nft rule of slice0 in into_slices",
        "nft rule of slice0 in replies",
    ]


def test_removal_of_one_slots_network_leaves_the_other_slots_unchanged(aspects: tuple[Aspect, ...]) -> None:
    for index in range(3):
        apply(aspects, network(index))
    remove(aspects, network(1))
    assert apply(aspects, network(0)) == apply(aspects, network(2)) == []
    assert remains(aspects, network(1)) == []


def test_apply_of_a_slice_network_continues_after_a_crash_after_any_step(aspects: tuple[Aspect, ...]) -> None:
    """Only the first step of each plan runs; then the host is compared and a new plan is made, as after a crash."""
    done = []
    while steps := [step for aspect in aspects for step in aspect.to_apply(slice_on(network(0)))]:
        steps[0].run()
        done.append(steps[0].name)
    assert done == ["link.add_tap", "lease.reserve", "port.add", "port.set_flows", "translation.set_rules"]


@pytest.mark.parametrize(
    ("left_out", "repaired"),
    [
        # A port is bound to its device: its number is lost with the device.
        ("link", {"link", "port"}),
        ("lease", {"lease"}),
        ("port", {"port"}),
        ("translation", {"translation"}),
    ],
)
def test_apply_of_a_slice_network_repairs_only_the_part_that_differs(
    aspects: tuple[Aspect, ...], left_out: str, repaired: set[str]
) -> None:
    apply(aspects, network(0))
    (aspect,) = (each for each in aspects if each.name == left_out)
    run(aspect.to_remove(network(0)))
    assert {name.partition(".")[0] for name in apply(aspects, network(0))} == repaired
    assert apply(aspects, network(0)) == []


def test_deleted_openflow_flows_of_a_slice_are_set_again_and_its_ovs_port_stays(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects, network(0))
    host.switch.set_flows("br-slice", cookie_of(network(0).index), frozenset())
    assert apply(aspects, network(0)) == ["port.set_flows"]


def test_foreign_openflow_flow_with_a_slots_cookie_is_removed(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects, network(0))
    cookie = cookie_of(network(0).index)
    host.switch.set_flows("br-slice", cookie, host.switch.flows("br-slice")[cookie] | {STANDALONE})
    assert apply(aspects, network(0)) == ["port.set_flows"]
    assert STANDALONE not in host.switch.flows("br-slice")[cookie]


def test_ovs_port_with_another_number_is_deleted_and_added_again(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    slot = network(0)
    host.links.add_tap(Tap(slot.tap))
    host.switch.add_port(Port(slot.tap, slot.bridge, 77))
    steps = aspects[2].to_apply(slice_on(slot))
    assert run(steps) == ["port.delete", "port.add", "port.set_flows"]
    assert host.switch.port(slot.tap) == Port(slot.tap, slot.bridge, port_number(slot.index))


def test_ovs_port_is_replaced_and_passes_frames_after_its_tap_was_created_again(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    slot = network(0)
    apply(aspects, slot)
    assert host.lease(slot.tap, slot.mac) == slot.ip
    host.links.delete_link(slot.tap)
    host.links.add_tap(Tap(slot.tap))
    stale = Port(slot.tap, slot.bridge, None)
    assert host.switch.port(slot.tap) == stale, "its number leads to a deleted device"
    assert apply(aspects, slot) == ["port.delete_flows", "port.delete", "port.add", "port.set_flows"]
    assert host.lease(slot.tap, slot.mac) == slot.ip


def test_link_with_the_taps_name_and_another_kind_is_deleted_before_the_tap_is_added(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    host.plant_link("slice0")
    assert aspects[0].remains(network(0)) == ("veth link slice0",)
    assert run(aspects[0].to_apply(slice_on(network(0)))) == ["link.delete", "link.add_tap"]


def test_duplicate_nftables_rule_of_a_slice_is_repaired_in_one_step(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects, network(0))
    rules = tuple(found.rule for found in host.filter.ruleset().rules if found.rule.owner == network(0).tap)
    host.filter.change(Change(insert=rules))
    assert apply(aspects, network(0)) == ["translation.set_rules"]
    assert apply(aspects, network(0)) == []


def test_dhcp_reservation_of_a_slots_previous_address_is_withdrawn_before_the_new_one_is_made(
    aspects: tuple[Aspect, ...],
) -> None:
    apply(aspects, network(0))
    moved = replace(network(0), ip=Ipv4Address("10.100.1.99"))
    assert names(aspects[1].to_apply(slice_on(moved))) == ["lease.withdraw", "lease.reserve"]
    run(aspects[1].to_apply(slice_on(moved)))
    assert aspects[1].to_apply(slice_on(moved)) == ()
    run(aspects[1].to_remove(moved))


@pytest.mark.parametrize("shared", ["mac", "ip"])
def test_conflicting_dhcp_reservation_of_another_slot_is_withdrawn_before_the_new_one_is_made(
    host: Host, aspects: tuple[Aspect, ...], shared: str
) -> None:
    conflicting = network(1)
    wanted = replace(network(0), **{shared: getattr(conflicting, shared)})
    apply(aspects, conflicting)
    assert run(aspects[1].to_apply(slice_on(wanted))) == ["lease.withdraw", "lease.reserve"]
    run(aspects[1].to_remove(wanted))
    assert remains(aspects[1:2], wanted) == []


def test_guest_gets_its_reserved_address_and_its_dhcp_lease_is_cleared_with_the_slot(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    slot, leases = network(0), LeaseAspect(host.leases)
    apply(aspects, slot)
    assert leases.observe_address(slot) == ObservedAddress(None, "none")
    assert host.lease(slot.tap, slot.mac) == slot.ip
    assert leases.observe_address(slot) == ObservedAddress(slot.ip, "bound")
    assert remove(aspects, slot)[-3:] == ["lease.withdraw", "lease.clear", "link.delete"]
    assert remains(aspects, slot) == []


def test_dhcp_lease_without_a_reservation_is_a_leftover_and_is_cleared(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    slot = network(0)
    apply(aspects, slot)
    host.lease(slot.tap, slot.mac)
    (reservation,) = host.leases.reservations()
    host.leases.withdraw(reservation)
    assert remains(aspects[1:2], slot) == [f"dhcp lease of {slot.ip} to {slot.mac}"]
    assert names(aspects[1].to_remove(slot)) == ["lease.clear"]
    run(aspects[1].to_remove(slot))
    assert remains(aspects[1:2], slot) == []


def test_foreign_dhcp_lease_of_another_mac_on_a_slots_address_is_cleared_before_the_address_is_reserved(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    old, new = network(0), replace(network(0), mac=MacAddress("52:54:00:01:00:77"))
    apply(aspects, old)
    host.lease(old.tap, old.mac)
    assert LeaseAspect(host.leases).observe_address(new) == ObservedAddress(None, "foreign")
    assert run(aspects[1].to_apply(slice_on(new))) == ["lease.withdraw", "lease.clear", "lease.reserve"]
    assert LeaseAspect(host.leases).observe_address(new) == ObservedAddress(None, "none")
    run(aspects[1].to_remove(new))


def test_dhcp_lease_cleared_during_a_host_snapshot_is_absent_from_later_reads_in_the_snapshot(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    slot, leases = network(0), LeaseAspect(host.leases)
    apply(aspects, slot)
    host.lease(slot.tap, slot.mac)
    with host_snapshot():
        assert leases.observe_address(slot) == ObservedAddress(slot.ip, "bound")
        run(leases.to_remove(slot))
        assert leases.observe_address(slot) == ObservedAddress(None, "none")


def test_guest_without_a_dhcp_reservation_gets_no_address(host: Host, aspects: tuple[Aspect, ...]) -> None:
    slot = network(0)
    apply(aspects, slot)
    run(aspects[1].to_remove(slot))
    assert host.lease(slot.tap, slot.mac) is None


def test_tracked_connections_of_a_slice_are_removed_with_it(host: Host, aspects: tuple[Aspect, ...]) -> None:
    apply(aspects, network(0))
    host.connect(network(0).ip)
    host.connect(network(1).ip)
    assert f"1 tracked connections of {network(0).ip}" in remains(aspects, network(0))
    remove(aspects, network(0))
    assert remains(aspects, network(0)) == []
    assert len(host.filter.connections(network(1).ip)) == 1
