"""Tests of a slice with a rate limit on every kind of host: its OpenFlow meters are made before its flows, change
separately from them, and are removed with the slice.
"""

from collections.abc import Callable

import pytest

from node_agent.aspects.flows import cookie_of, flows_of
from node_agent.aspects.meters import Meter, from_slice, meters_of, to_slice
from node_agent.aspects.ports import Port
from node_agent.host.slices import Aspect, SliceNetwork
from tests.contract.network.hosts import Host
from tests.contract.network.slices import NETWORK, names, network, run, slice_on

FREE, LIMITED = network(0), network(0, rate_mbit=100)
FASTER = network(0, rate_mbit=250)


@pytest.fixture
def port(aspects: tuple[Aspect, ...]) -> Aspect:
    """The agent's OVS port aspect, which also sets the rate limit of a slice. The link of the slot exists already."""
    run(aspects[0].to_apply(slice_on(FREE)))
    return aspects[2]


def make(port: Aspect, wanted: SliceNetwork) -> list[str]:
    return run(port.to_apply(slice_on(wanted)))


def test_slice_with_a_rate_limit_gets_its_meters_before_its_flows_and_applying_it_again_takes_no_step(
    port: Aspect, host: Host
) -> None:
    assert make(port, LIMITED) == ["port.add", "port.set_meters", "port.set_flows"]
    assert host.switch.meters(NETWORK.bridge) == {1: Meter(100_000, 80_000), 2: Meter(100_000, 80_000)}
    assert host.switch.flows(NETWORK.bridge) == {cookie_of(LIMITED.index): flows_of(LIMITED)}
    assert make(port, LIMITED) == []


def test_slice_without_a_rate_limit_has_no_openflow_meter(port: Aspect, host: Host) -> None:
    assert make(port, FREE) == ["port.add", "port.set_flows"]
    assert host.switch.meters(NETWORK.bridge) == {}


def test_changed_rate_limit_of_a_slice_changes_only_its_openflow_meters(port: Aspect, host: Host) -> None:
    make(port, LIMITED)
    assert make(port, FASTER) == ["port.set_meters"]
    assert host.switch.meters(NETWORK.bridge) == meters_of(FASTER)
    assert host.switch.flows(NETWORK.bridge) == {cookie_of(FASTER.index): flows_of(FASTER)}


def test_openflow_meters_are_made_before_the_flows_that_use_them_and_deleted_after_these_flows(
    port: Aspect, host: Host
) -> None:
    make(port, FREE)
    assert make(port, LIMITED) == ["port.set_meters", "port.set_flows"]
    assert make(port, FREE) == ["port.set_flows", "port.delete_meters"]
    assert host.switch.meters(NETWORK.bridge) == {}
    assert host.switch.flows(NETWORK.bridge) == {cookie_of(FREE.index): flows_of(FREE)}


@pytest.mark.parametrize("end", ["to_remove", "to_stop"])
def test_openflow_meters_of_a_slice_are_listed_as_its_objects_until_they_are_removed_with_the_slice(
    end: str, port: Aspect, host: Host
) -> None:
    make(port, LIMITED)
    assert port.remains(FREE)[-1] == port.still_on(FREE)[-1] == "2 meters of slice0 on br-slice"
    assert run(getattr(port, end)(FREE)) == ["port.delete_flows", "port.delete_meters", "port.delete"]
    assert host.switch.meters(NETWORK.bridge) == {}
    assert port.remains(FREE) == port.still_on(FREE) == ()


def test_openflow_meter_of_a_slice_that_has_no_rate_limit_is_deleted(port: Aspect, host: Host) -> None:
    make(port, FREE)
    host.switch.add_meter(NETWORK.bridge, to_slice(FREE.index), Meter(9, 9))
    [step] = port.to_apply(slice_on(FREE))
    assert step.repairs is not None
    assert (step.name, step.repairs.desired) == ("port.delete_meters", "no meter")
    assert step.repairs.observed == "meter 2: 9 kbit/s, burst of 9 kbit"
    step.run()
    assert port.to_apply(slice_on(FREE)) == ()


def one_changed(host: Host) -> None:
    host.switch.change_meter(NETWORK.bridge, from_slice(LIMITED.index), Meter(9, 9))


def one_deleted(host: Host) -> None:
    host.switch.delete_meter(NETWORK.bridge, from_slice(LIMITED.index))


def all_deleted(host: Host) -> None:
    for number in meters_of(LIMITED):
        host.switch.delete_meter(NETWORK.bridge, number)


@pytest.mark.parametrize(
    ("fault", "repaired"),
    [
        (one_changed, ["port.set_meters"]),
        (one_deleted, ["port.set_meters", "port.set_flows"]),
        (all_deleted, ["port.set_meters", "port.set_flows"]),
    ],
)
def test_changed_or_deleted_openflow_meter_of_a_slice_is_restored_with_its_flows(
    fault: Callable[[Host], None], repaired: list[str], port: Aspect, host: Host
) -> None:
    make(port, LIMITED)
    fault(host)
    assert make(port, LIMITED) == repaired
    assert host.switch.meters(NETWORK.bridge) == meters_of(LIMITED)
    assert make(port, LIMITED) == []


def test_crash_after_any_step_of_a_rate_limited_slices_plan_leaves_no_flow_that_passes_ip_unlimited(
    port: Aspect, host: Host
) -> None:
    """Only the first step of each plan runs; then the host is compared and a new plan is made, as after a crash."""
    unlimited = flows_of(FREE) - flows_of(LIMITED)
    while steps := port.to_apply(slice_on(LIMITED)):
        steps[0].run()
        assert not unlimited & host.switch.flows(NETWORK.bridge).get(cookie_of(LIMITED.index), frozenset())


def test_ovs_port_that_is_created_again_keeps_its_openflow_meters(port: Aspect, host: Host) -> None:
    make(port, LIMITED)
    host.switch.delete_port(LIMITED.tap)
    host.switch.add_port(Port(LIMITED.tap, NETWORK.bridge, 77))
    steps = names(port.to_apply(slice_on(LIMITED)))
    assert steps == ["port.delete_flows", "port.delete", "port.add", "port.set_flows"]


def test_openflow_meters_of_other_slots_stay_when_a_slot_is_removed(
    aspects: tuple[Aspect, ...], host: Host
) -> None:
    others = [network(1, rate_mbit=1), network(2, rate_mbit=2)]
    for slot in (LIMITED, *others):
        for aspect in aspects:
            run(aspect.to_apply(slice_on(slot)))
    for aspect in reversed(aspects):
        run(aspect.to_remove(LIMITED))
    assert host.switch.meters(NETWORK.bridge) == meters_of(others[0]) | meters_of(others[1])
    assert [names(aspect.to_apply(slice_on(slot))) for slot in others for aspect in aspects] == [[]] * 8
