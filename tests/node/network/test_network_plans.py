"""Tests of the plans for a slot's network: they change any observed state of a host to the desired state, and a second
plan changes nothing.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from events.values import MAX_SLOTS, Ipv4Address, MacAddress, SlotIndex
from node_agent.aspects.flows import Flow, cookie_of, flows_of, gateway_mac
from node_agent.aspects.leases import ObservedAddress, ObservedLease, Reservation, observe
from node_agent.aspects.links import OtherLink, Tap
from node_agent.aspects.meters import Meter, foreign_meters, from_slice, meters_of, to_slice
from node_agent.aspects.ports import Port, PortAspect
from node_agent.aspects.translations import rules_of
from node_agent.host.slices import Aspect, SliceNetwork
from node_agent.packets.rules import ACCEPT, Rule, rule
from tests.contract.network.hosts import Simulated, aspects_of, gateway_of
from tests.contract.network.slices import GATEWAY, NETWORK, names, network, run, slice_on

SLOT, NEIGHBOUR = network(0), network(1, rate_mbit=1)
LIMITED = network(0, rate_mbit=100)
WANTED = st.sampled_from([SLOT, LIMITED, network(0, rate_mbit=7)])
MACS = st.sampled_from([SLOT.mac, MacAddress("52:54:00:01:00:66")])
ADDRESSES = st.sampled_from([SLOT.ip, Ipv4Address("10.100.1.66")])
TAPS = st.builds(
    Tap,
    st.just(SLOT.tap),
    mtu=st.sampled_from([1400, 1500]),
    up=st.booleans(),
    owner=st.sampled_from([None, 0, 1000]),
    mute=st.booleans(),
)
LINKS = st.none() | TAPS | st.just(OtherLink(SLOT.tap, "veth"))
PORTS = st.none() | st.builds(
    Port, st.just(SLOT.tap), st.just(SLOT.bridge), st.sampled_from([None, 77, 1000])
)
METERS = st.dictionaries(
    st.sampled_from([from_slice(SLOT.index), to_slice(SLOT.index)]),
    st.sampled_from([Meter(9, 9), *meters_of(LIMITED).values()]),
)
FLOWS = st.sets(
    st.sampled_from(
        sorted({*flows_of(SLOT), *flows_of(LIMITED), Flow(1, frozenset(), "NORMAL")}, key=repr),
    )
)
RULES = st.lists(
    st.sampled_from([*rules_of(SLOT, "uplink0"), rule("inet", "forward", SLOT.tap, ACCEPT)]), max_size=6
)
RESERVATIONS = st.none() | st.builds(Reservation, st.just(SLOT.tap), MACS, ADDRESSES)
LEASES = st.sets(st.builds(ObservedLease, MACS, ADDRESSES, st.booleans()), max_size=3)


_METER: Final = re.compile(r"meter:(\d+)")


@st.composite
def hosts(draw: st.DrawFn) -> Simulated:
    """Simulated hosts with a prepared network, a slice in the next slot, and an arbitrary network state of the tested
    slot.
    """
    host = Simulated(NETWORK)
    run(gateway_of(host).to_apply())
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(NEIGHBOUR)))
    plant_network(host, draw(LINKS), draw(PORTS))
    plant_permissions(host, draw(METERS), draw(FLOWS))
    plant_memory(host, draw(RULES), draw(RESERVATIONS), draw(LEASES))
    return host


def plant_network(host: Simulated, link: Tap | OtherLink | None, port: Port | None) -> None:
    with host.host.change() as state:
        match link:
            case Tap():
                state.taps.append(link)
            case OtherLink():
                state.others.append(link)
            case None:
                pass
        if port is not None:
            state.ports.append(port)


def plant_permissions(host: Simulated, meters: Mapping[int, Meter], flows: Iterable[Flow]) -> None:
    """Add the OpenFlow meters and flows to the simulated host. Flows that use a missing meter are left out, because no
    switch accepts such a flow.
    """
    for number, meter in meters.items():
        host.switch.add_meter(SLOT.bridge, number, meter)
    held = [flow for flow in flows if not (named := _METER.findall(flow.actions)) or int(named[0]) in meters]
    host.switch.set_flows(SLOT.bridge, cookie_of(SLOT.index), frozenset(held))


def plant_memory(
    host: Simulated, rules: list[Rule], reservation: Reservation | None, leases: Iterable[ObservedLease]
) -> None:
    with host.host.change() as state:
        state.leases.extend(leases)
        if reservation is not None:
            state.reservations.append(reservation)
        for each in rules:
            last = max(found.handle for found in state.nat)
            state.nat.insert(0, replace(state.nat[0], rule=each, handle=last + 1))


def apply(aspects: Iterable[Aspect], slot: SliceNetwork) -> list[str]:
    return [name for aspect in aspects for name in run(aspect.to_apply(slice_on(slot)))]


@given(hosts(), WANTED)
def test_network_of_an_applied_slice_has_no_drift_and_the_neighbour_slice_is_unchanged(
    host: Simulated, wanted: SliceNetwork
) -> None:
    aspects = aspects_of(host)
    apply(aspects, wanted)
    assert apply(aspects, wanted) == []
    assert apply(aspects, NEIGHBOUR) == []


@given(hosts())
def test_network_of_a_removed_slice_leaves_nothing_and_the_neighbour_slice_is_unchanged(
    host: Simulated,
) -> None:
    aspects = aspects_of(host)
    for aspect in reversed(aspects):
        run(aspect.to_remove(SLOT))
    assert [words for aspect in aspects for words in aspect.remains(SLOT)] == []
    assert [names(aspect.to_remove(SLOT)) for aspect in aspects] == [[]] * len(aspects)
    assert apply(aspects, NEIGHBOUR) == []


@given(hosts(), WANTED, st.data())
def test_network_plan_of_a_slice_that_was_interrupted_at_any_step_is_continued(
    host: Simulated, wanted: SliceNetwork, data: st.DataObject
) -> None:
    aspects = aspects_of(host)
    last = data.draw(st.integers(0, len(aspects) - 1))
    apply(aspects[:last], wanted)
    steps = aspects[last].to_apply(slice_on(wanted))
    run(steps[: data.draw(st.integers(0, len(steps)))])
    apply(aspects, wanted)
    assert apply(aspects, wanted) == []


@given(hosts())
def test_list_of_a_slices_remaining_network_objects_is_empty_exactly_if_its_removal_has_no_step(
    host: Simulated,
) -> None:
    """For each `Aspect` of the slot's network, `remains` lists objects exactly if `to_remove` returns steps."""
    for aspect in aspects_of(host):
        assert bool(aspect.remains(SLOT)) == bool(aspect.to_remove(SLOT))


@given(LEASES)
def test_address_of_a_slice_is_observed_as_bound_only_with_a_valid_dhcp_lease_of_its_mac_and_address(
    leases: set[ObservedLease],
) -> None:
    seen = observe(SLOT.mac, SLOT.ip, frozenset(leases))
    bound = ObservedLease(SLOT.mac, SLOT.ip, expired=False) in leases
    other = any(lease.mac == SLOT.mac and lease.ip != SLOT.ip and not lease.expired for lease in leases)
    if bound and not other:
        assert seen == ObservedAddress(SLOT.ip, "bound")
    if not bound:
        assert seen.lease_state != "bound"


def test_openflow_flows_of_an_earlier_slice_are_deleted_before_the_ovs_port_of_a_slice_is_added() -> None:
    host = Simulated(NETWORK)
    run(gateway_of(host).to_apply())
    earlier = replace(SLOT, ip=Ipv4Address("10.100.1.66"))
    host.switch.set_flows(SLOT.bridge, cookie_of(SLOT.index), flows_of(earlier))
    steps = names(PortAspect(host.switch).to_apply(slice_on(SLOT)))
    assert steps == ["port.delete_flows", "port.add", "port.set_flows"]


def test_slice_with_an_expired_dhcp_lease_has_no_observed_address() -> None:
    leases = frozenset({ObservedLease(SLOT.mac, SLOT.ip, expired=True)})
    assert observe(SLOT.mac, SLOT.ip, leases) == ObservedAddress(None, "expired")


def test_openflow_flows_of_two_slots_share_no_match() -> None:
    mine, others = ({flow.match for flow in flows_of(slot)} for slot in (SLOT, NEIGHBOUR))
    assert mine.isdisjoint(others)


def test_every_openflow_flow_of_a_slot_drops_or_passes_frames_between_its_ovs_port_and_the_gateway() -> None:
    for flow in flows_of(SLOT):
        fields = dict(flow.match)
        ends = (fields["in_port"], flow.actions)
        assert ends in {("1000", "LOCAL"), ("LOCAL", "output:1000"), ("1000", "drop")}


def test_rate_limit_of_a_slice_adds_meters_only_to_the_ip_flows_of_both_directions() -> None:
    limited = flows_of(LIMITED) - flows_of(SLOT)
    assert {(dict(flow.match)["in_port"], flow.actions) for flow in limited} == {
        ("1000", "meter:1,LOCAL"),
        ("LOCAL", "meter:2,output:1000"),
    }
    assert {flow.match for flow in limited} == {flow.match for flow in flows_of(SLOT) - flows_of(LIMITED)}


def test_every_openflow_meter_number_belongs_to_exactly_one_slot() -> None:
    slots = [SlotIndex(index) for index in range(MAX_SLOTS)]
    numbers = [number for index in slots for number in (from_slice(index), to_slice(index))]
    assert sorted(numbers) == list(range(1, 2 * MAX_SLOTS + 1))
    assert foreign_meters([*numbers, 2 * MAX_SLOTS + 1]) == (2 * MAX_SLOTS + 1,)


def test_mac_of_a_nodes_gateway_is_derived_from_its_ip_address() -> None:
    assert gateway_mac(GATEWAY) == "02:53:0a:64:01:01"
