"""A slice with a rate, on every kind of host: its meters come before its flows, change alone, and leave with it."""

from collections.abc import Callable

import pytest

from node_agent.flows import cookie_of, flows_of
from node_agent.meters import Meter, from_slice, meters_of, to_slice
from node_agent.ports import Port
from node_agent.slices import Aspect, SliceNetwork
from tests.contract.network.hosts import Host
from tests.contract.network.slices import NETWORK, names, network, run, slice_on

FREE, LIMITED = network(0), network(0, rate_mbit=100)
FASTER = network(0, rate_mbit=250)


@pytest.fixture
def port(aspects: tuple[Aspect, ...]) -> Aspect:
    """The aspect that limits, over a slot that has its link."""
    run(aspects[0].to_apply(slice_on(FREE)))
    return aspects[2]


def make(port: Aspect, wanted: SliceNetwork) -> list[str]:
    return run(port.to_apply(slice_on(wanted)))


def test_a_slice_with_a_rate_has_its_meters_before_its_flows_and_is_made_once(
    port: Aspect, host: Host
) -> None:
    assert make(port, LIMITED) == ["port.add", "port.set_meters", "port.set_flows"]
    assert host.switch.meters(NETWORK.bridge) == {1: Meter(100_000, 80_000), 2: Meter(100_000, 80_000)}
    assert host.switch.flows(NETWORK.bridge) == {cookie_of(LIMITED.index): flows_of(LIMITED)}
    assert make(port, LIMITED) == []


def test_a_slice_without_a_rate_has_no_meter(port: Aspect, host: Host) -> None:
    assert make(port, FREE) == ["port.add", "port.set_flows"]
    assert host.switch.meters(NETWORK.bridge) == {}


def test_another_rate_changes_the_meters_alone(port: Aspect, host: Host) -> None:
    make(port, LIMITED)
    assert make(port, FASTER) == ["port.set_meters"]
    assert host.switch.meters(NETWORK.bridge) == meters_of(FASTER)
    assert host.switch.flows(NETWORK.bridge) == {cookie_of(FASTER.index): flows_of(FASTER)}


def test_a_rate_comes_with_its_meters_first_and_goes_with_them_last(port: Aspect, host: Host) -> None:
    make(port, FREE)
    assert make(port, LIMITED) == ["port.set_meters", "port.set_flows"]
    assert make(port, FREE) == ["port.set_flows", "port.delete_meters"]
    assert host.switch.meters(NETWORK.bridge) == {}
    assert host.switch.flows(NETWORK.bridge) == {cookie_of(FREE.index): flows_of(FREE)}


@pytest.mark.parametrize("road", ["to_remove", "to_stop"])
def test_the_meters_leave_with_the_slice_and_remain_by_name_until_then(
    road: str, port: Aspect, host: Host
) -> None:
    make(port, LIMITED)
    assert port.remains(FREE)[-1] == port.still_on(FREE)[-1] == "2 meters of slice0 on br-slice"
    assert run(getattr(port, road)(FREE)) == ["port.delete_flows", "port.delete_meters", "port.delete"]
    assert host.switch.meters(NETWORK.bridge) == {}
    assert port.remains(FREE) == port.still_on(FREE) == ()


def test_a_meter_that_was_left_behind_is_taken_away_alone(port: Aspect, host: Host) -> None:
    make(port, FREE)
    host.switch.add_meter(NETWORK.bridge, to_slice(FREE.index), Meter(9, 9))
    [step] = port.to_apply(slice_on(FREE))
    assert step.mends is not None
    assert (step.name, step.mends.wanted) == ("port.delete_meters", "no meter")
    assert step.mends.found == "meter 2: 9 kbit/s, 9 kbit at once"
    step.run()
    assert port.to_apply(slice_on(FREE)) == ()


def half_changed(host: Host) -> None:
    host.switch.change_meter(NETWORK.bridge, from_slice(LIMITED.index), Meter(9, 9))


def half_gone(host: Host) -> None:
    host.switch.delete_meter(NETWORK.bridge, from_slice(LIMITED.index))


def gone(host: Host) -> None:
    for number in meters_of(LIMITED):
        host.switch.delete_meter(NETWORK.bridge, number)


@pytest.mark.parametrize(
    ("harm", "mended"),
    [
        (half_changed, ["port.set_meters"]),
        (half_gone, ["port.set_meters", "port.set_flows"]),
        (gone, ["port.set_meters", "port.set_flows"]),
    ],
)
def test_a_meter_that_somebody_changed_or_deleted_is_put_back_and_so_are_its_flows(
    harm: Callable[[Host], None], mended: list[str], port: Aspect, host: Host
) -> None:
    make(port, LIMITED)
    harm(host)
    assert make(port, LIMITED) == mended
    assert host.switch.meters(NETWORK.bridge) == meters_of(LIMITED)
    assert make(port, LIMITED) == []


def test_a_crash_after_any_step_leaves_no_flow_that_lets_ip_pass_unlimited(port: Aspect, host: Host) -> None:
    """Steps are run one by one, each followed by a new comparison, as after a crash."""
    unlimited = flows_of(FREE) - flows_of(LIMITED)
    while steps := port.to_apply(slice_on(LIMITED)):
        steps[0].run()
        assert not unlimited & host.switch.flows(NETWORK.bridge).get(cookie_of(LIMITED.index), frozenset())


def test_a_port_that_is_made_anew_keeps_its_meters(port: Aspect, host: Host) -> None:
    make(port, LIMITED)
    host.switch.delete_port(LIMITED.tap)
    host.switch.add_port(Port(LIMITED.tap, NETWORK.bridge, 77))
    steps = names(port.to_apply(slice_on(LIMITED)))
    assert steps == ["port.delete_flows", "port.delete", "port.add", "port.set_flows"]


def test_slots_do_not_touch_one_anothers_meters(aspects: tuple[Aspect, ...], host: Host) -> None:
    others = [network(1, rate_mbit=1), network(2, rate_mbit=2)]
    for slot in (LIMITED, *others):
        for aspect in aspects:
            run(aspect.to_apply(slice_on(slot)))
    for aspect in reversed(aspects):
        run(aspect.to_remove(LIMITED))
    assert host.switch.meters(NETWORK.bridge) == meters_of(others[0]) | meters_of(others[1])
    assert [names(aspect.to_apply(slice_on(slot))) for slot in others for aspect in aspects] == [[]] * 8
