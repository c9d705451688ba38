"""Tests that each difference from the desired network is reported as drift with its kind and its evidence, on every
kind of host, and that there is no drift after the repair.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from events.values import Ipv4Address, MacAddress
from node_agent.aspects.flows import cookie_of
from node_agent.aspects.foreign import STANDALONE
from node_agent.aspects.gateway import GatewayLink
from node_agent.aspects.leases import Reservation
from node_agent.aspects.links import Tap
from node_agent.aspects.meters import Meter, to_slice
from node_agent.host.drift import differences
from node_agent.host.slices import Aspect, Difference
from node_agent.packets.rules import Change
from tasks.drift import DriftKind
from tests.contract.network.hosts import SETTINGS, Host, aspects_of, gateway_of
from tests.contract.network.slices import NETWORK, network, port_mapping, run, slice_on

InjectedFault = Callable[[Host], None]
SLOT: Final = network(0, rate_mbit=100)
ELSEWHERE: Final = Ipv4Address("192.0.2.77")


def without_tap(host: Host) -> None:
    host.links.delete_link(SLOT.tap)


def tap_down(host: Host) -> None:
    host.links.set_tap(Tap(SLOT.tap, up=False))


def enslaved(host: Host) -> None:
    host.plant_master(SLOT.tap)


def unreserved(host: Host) -> None:
    for each in host.leases.reservations():
        host.leases.withdraw(each)


def reserved_for_another(host: Host) -> None:
    unreserved(host)
    host.leases.reserve(Reservation("slice3", network(3).mac, SLOT.ip))


def without_port(host: Host) -> None:
    host.switch.delete_port(SLOT.tap)


def without_flows(host: Host) -> None:
    host.switch.set_flows(SLOT.bridge, cookie_of(SLOT.index), frozenset())


def another_rate(host: Host) -> None:
    host.switch.change_meter(SLOT.bridge, to_slice(SLOT.index), Meter(9, 9))


def rules_twice(host: Host) -> None:
    own = tuple(each.rule for each in host.filter.ruleset().rules if each.rule.owner == SLOT.tap)
    host.filter.change(Change(insert=own))


def leased_by_another(host: Host) -> None:
    """Make a guest with another MAC obtain a DHCP lease of the slot's address, then restore everything except the
    lease.
    """
    foreign = replace(SLOT, mac=MacAddress("52:54:00:01:00:77"))
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(foreign)))
    assert host.lease(SLOT.tap, foreign.mac) == SLOT.ip
    unreserved(host)
    host.leases.reserve(Reservation(SLOT.tap, SLOT.mac, SLOT.ip))
    for aspect in aspects_of(host):
        if aspect.name != "lease":
            run(aspect.to_apply(slice_on(SLOT)))


def in_a_vlan(host: Host) -> None:
    host.plant_vlan(SLOT.tap, 7)


OF_SLOTS: Final[list[tuple[DriftKind, InjectedFault]]] = [
    ("link.absent", without_tap),
    ("link.changed", tap_down),
    ("link.changed", enslaved),
    ("lease.unreserved", unreserved),
    ("lease.conflicting", reserved_for_another),
    ("lease.foreign", leased_by_another),
    ("port.absent", without_port),
    ("port.changed", in_a_vlan),
    ("port.flows", without_flows),
    ("port.meter", another_rate),
    ("rules.changed", rules_twice),
]


def standalone(host: Host) -> None:
    found = host.switch.bridge(NETWORK.bridge)
    assert found is not None
    host.switch.set_bridge(replace(found, secure=False))


def in_band(host: Host) -> None:
    found = host.switch.bridge(NETWORK.bridge)
    assert found is not None
    host.switch.set_bridge(replace(found, in_band=True))


def mirrored(host: Host) -> None:
    host.plant_foreign_objects()


def bridge_not_forwarding(host: Host) -> None:
    host.stop_forwarding(NETWORK.bridge)


def uplink_not_forwarding(host: Host) -> None:
    host.stop_forwarding(NETWORK.uplink)


def foreign_flows(host: Host) -> None:
    host.switch.set_flows(NETWORK.bridge, 0x77, frozenset({replace(STANDALONE, priority=9)}))


def without_address(host: Host) -> None:
    host.links.set_gateway_link(NETWORK.bridge, GatewayLink(frozenset(), up=True))


def without_masquerade(host: Host) -> None:
    found = tuple(each for each in host.filter.ruleset().rules if each.rule.chain == "source_nat")
    assert found
    host.filter.change(Change(delete=found))


OF_NODES: Final[list[tuple[DriftKind, InjectedFault]]] = [
    ("bridge.changed", standalone),
    ("bridge.changed", in_band),
    ("bridge.changed", mirrored),
    ("bridge.foreign_flows", foreign_flows),
    ("gateway.address", without_address),
    ("gateway.forwarding", bridge_not_forwarding),
    ("gateway.forwarding", uplink_not_forwarding),
    ("gateway.rules", without_masquerade),
]


def differing(aspects: tuple[Aspect, ...]) -> dict[DriftKind, Difference]:
    found = differences(step for aspect in aspects for step in aspect.to_apply(slice_on(SLOT)))
    return {each.kind: each for each in found}


@pytest.mark.parametrize(("kind", "fault"), OF_SLOTS)
def test_drift_of_a_slot_is_reported_with_kind_and_evidence_and_repaired(
    host: Host, aspects: tuple[Aspect, ...], kind: DriftKind, fault: InjectedFault
) -> None:
    for aspect in aspects:
        run(aspect.to_apply(slice_on(SLOT)))
    fault(host)
    found = differing(aspects)
    assert kind in found
    assert found[kind].desired != found[kind].observed
    for aspect in aspects:
        run(aspect.to_apply(slice_on(SLOT)))
    assert differing(aspects) == {}


@pytest.mark.parametrize(("kind", "fault"), OF_NODES)
def test_drift_of_the_node_is_reported_with_kind_and_evidence_and_repaired(
    host: Host, kind: DriftKind, fault: InjectedFault
) -> None:
    gateway = gateway_of(host)
    fault(host)
    found = {each.kind: each for each in differences(gateway.to_apply())}
    assert kind in found
    assert found[kind].desired != found[kind].observed
    run(gateway.to_apply())
    assert gateway.to_apply() == ()


def test_foreign_mirror_and_controller_of_the_ovs_bridge_are_reported_by_name(host: Host) -> None:
    host.plant_foreign_objects()
    [changed] = [each for each in differences(gateway_of(host).to_apply()) if each.kind == "bridge.changed"]
    assert changed.observed == f"{changed.desired}, with controller tcp:127.0.0.1:9, mirror spy"
    run(gateway_of(host).to_apply())


@pytest.mark.parametrize(
    ("to", "port", "found"),
    [
        (SLOT.ip, 2299, ["the destination of packets is translated to 10.100.1.10"]),
        (ELSEWHERE, 2222, ["the destination of packets is translated to 192.0.2.77"]),
        (ELSEWHERE, 2299, ["the destination of packets is translated to 192.0.2.77"]),
    ],
    ids=["into the slices' network", "from an ingress", "from what slices send"],
)
def test_nat_rule_of_a_foreign_nftables_table_is_reported_if_it_affects_slices(
    host: Host, to: Ipv4Address, port: int, found: list[str]
) -> None:
    translation = aspects_of(host)[3]
    run(translation.to_apply(slice_on(SLOT, port_mapping(1, "198.51.100.7", 2222))))
    host.plant_diversion(to, port)
    reported = [(each.kind, each.observed) for each in gateway_of(host).lost()]
    host.remove_diversion()
    at = "ip other pre (prerouting), handle 2"
    assert reported == [("foreign.rules", f"{at}: {each}") for each in found]
    assert gateway_of(host).lost() == ()


@pytest.mark.parametrize(
    ("source", "destination", "found"),
    [
        ("0.0.0.0/0", "10.100.1.0/24", ["drop 0.0.0.0/0 to 10.100.1.0/24 (fwd)"]),
        ("10.0.0.0/8", "192.0.2.0/24", ["drop 10.0.0.0/8 to 192.0.2.0/24 (fwd)"]),
        ("10.200.0.0/16", "192.0.2.0/24", []),
    ],
    ids=["to the slices", "from a network that has theirs", "between other networks"],
)
def test_ipsec_policy_is_reported_if_it_selects_the_network_of_the_slices(
    host: Host, source: str, destination: str, found: list[str]
) -> None:
    host.plant_policy(source, destination)
    reported = [(each.kind, each.observed) for each in gateway_of(host).lost()]
    host.remove_policy(source, destination)
    assert reported == [("foreign.xfrm_policy", each) for each in found]
    assert gateway_of(host).lost() == ()


def test_node_uplink_without_a_default_route_is_reported_as_lost(host: Host) -> None:
    elsewhere = replace(NETWORK, uplink="nowhere0")
    host.network = elsewhere
    try:
        [lost] = gateway_of(host).lost()
    finally:
        host.network = NETWORK
    assert (lost.kind, lost.desired) == ("uplink.lost", "a default route by nowhere0")


def test_node_uplink_without_a_carrier_is_reported_as_lost_despite_its_default_route(host: Host) -> None:
    host.plant_link_without_carrier("unplugged0")
    host.network = replace(NETWORK, uplink="unplugged0")
    try:
        unplugged = [each.kind for each in gateway_of(host).lost()]
        host.plug_in("unplugged0")
        plugged_in = [each.kind for each in gateway_of(host).lost()]
    finally:
        host.network = NETWORK
        host.links.delete_link("unplugged0")
    assert (unplugged, plugged_in) == (["uplink.lost"], [])


def test_disabled_ip_forwarding_is_reported_with_the_name_of_its_link(host: Host) -> None:
    host.stop_forwarding(NETWORK.bridge)
    [off] = differences(gateway_of(host).to_apply())
    assert off.observed == "IPv4 forwarding off for br-slice"
    run(gateway_of(host).to_apply())


OF_SLOT: Final = {"port", "switch port"}


@pytest.mark.parametrize("name", [name for name, setting in SETTINGS.items() if setting.of in OF_SLOT])
def test_foreign_setting_of_a_slices_ovs_port_is_reported_and_removed(
    host: Host, aspects: tuple[Aspect, ...], name: str
) -> None:
    for aspect in aspects:
        run(aspect.to_apply(slice_on(SLOT)))
    host.set_in_switch(SLOT.tap, SETTINGS[name])
    found = differing(aspects)
    # The switch implements policing by a queueing discipline of the link.
    assert {*found} - {"link.changed"} == {"port.changed"}
    assert found["port.changed"].observed == f"{found['port.changed'].desired}, with {SETTINGS[name].found}"
    for aspect in aspects:
        run(aspect.to_apply(slice_on(SLOT)))
    assert differing(aspects) == {}


@pytest.mark.parametrize("name", [name for name, setting in SETTINGS.items() if setting.of not in OF_SLOT])
def test_foreign_setting_of_the_ovs_bridge_is_reported_and_removed_and_the_slices_port_stays(
    host: Host, aspects: tuple[Aspect, ...], name: str
) -> None:
    for aspect in aspects:
        run(aspect.to_apply(slice_on(SLOT)))
    gateway, setting = gateway_of(host), SETTINGS[name]
    host.set_in_switch(SLOT.tap, setting)
    # The switch implements policing by a queueing discipline of the link.
    [found] = (each for each in differences(gateway.to_apply()) if each.kind != "gateway.link")
    assert found.kind == ("bridge.foreign_port" if setting.of == "ports" else "bridge.changed")
    assert setting.found in found.observed
    run(gateway.to_apply())
    run(gateway.to_apply())
    assert gateway.to_apply() == ()
    assert differing(aspects) == {}


DAMAGES: Final = {
    "mode 000": "chmod 000 {file}",
    "writable for all users": "chmod 666 {file}",
    "another owner": "chown dnsmasq {file}",
    "another syntax": "echo 52:54:00:01:00:00,set:x,10.100.1.10,infinite > {file}",
    "a comment": "echo '# mine' >> {file}",
    "a link": "mv {file} {folder}/../moved; ln -s {folder}/../moved {file}",
    "a folder": "rm {file}; mkdir -p {file}/below",
    "a pipe": "rm {file}; mkfifo {file}",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_dhcp_reservation_changed_by_another_program_is_reported_and_written_again(
    host: Host, aspects: tuple[Aspect, ...], name: str
) -> None:
    for aspect in aspects:
        run(aspect.to_apply(slice_on(SLOT)))
    assert differing(aspects) == {}
    host.damage_reservation(SLOT.tap, DAMAGES[name])
    found = differing(aspects)
    assert list(found) == ["lease.unreserved"]
    for aspect in aspects:
        run(aspect.to_apply(slice_on(SLOT)))
    assert differing(aspects) == {}
    assert host.lease(SLOT.tap, SLOT.mac) == SLOT.ip


@pytest.mark.parametrize("name", DAMAGES)
def test_dhcp_reservation_changed_by_another_program_is_a_leftover_until_it_is_removed(
    host: Host, aspects: tuple[Aspect, ...], name: str
) -> None:
    [leases] = [aspect for aspect in aspects if aspect.name == "lease"]
    run(leases.to_apply(slice_on(SLOT)))
    host.damage_reservation(SLOT.tap, DAMAGES[name])
    assert len(leases.remains(SLOT)) == 1
    run(leases.to_remove(SLOT))
    assert leases.remains(SLOT) == ()


FOREIGN_FILES: Final = {
    "a reservation of no slot": "echo 52:54:00:99:99:99,10.100.1.99 > {folder}/other; chmod 644 {folder}/other",
    "options": "echo 3,192.0.2.1 > {folder}/options",
    "a pipe": "mkfifo {folder}/pipe",
    "the folder's mode": "chmod 700 {folder}",
}


@pytest.mark.parametrize("name", FOREIGN_FILES)
def test_foreign_file_in_the_dhcp_reservation_folder_is_reported_and_removed(
    host: Host, aspects: tuple[Aspect, ...], name: str
) -> None:
    for aspect in aspects:
        run(aspect.to_apply(slice_on(SLOT)))
    gateway = gateway_of(host)
    assert gateway.to_apply() == ()
    host.damage_reservation(SLOT.tap, FOREIGN_FILES[name])
    [found] = differences(gateway.to_apply())
    assert (found.kind, found.desired) == ("gateway.dhcp", "no DHCP reservations except those of slots")
    run(gateway.to_apply())
    assert gateway.to_apply() == ()
    assert differing(aspects) == {}
    assert host.lease(SLOT.tap, SLOT.mac) == SLOT.ip


def test_another_dhcp_server_on_the_bridge_is_reported_by_its_process_and_left_running(host: Host) -> None:
    gateway = gateway_of(host)
    assert gateway.lost() == ()
    host.plant_dhcp_server()
    found = [(each.kind, each.observed) for each in gateway.lost()]
    host.remove_dhcp_server()
    [(kind, words)] = found
    assert kind == "foreign.dhcp_server"
    assert "process" in words
    assert "dnsmasq" in words
    assert gateway.to_apply() == ()
    assert gateway.lost() == ()


def test_foreign_manager_of_open_vswitch_is_reported_by_its_target_and_not_removed(host: Host) -> None:
    gateway = gateway_of(host)
    host.plant_manager("ptcp:6640:127.0.0.1")
    found = [(each.kind, each.observed) for each in gateway.lost()]
    host.plant_manager()
    assert found == [("foreign.switch_manager", "managers ptcp:6640:127.0.0.1")]
    assert gateway.to_apply() == ()
    assert gateway.lost() == ()
