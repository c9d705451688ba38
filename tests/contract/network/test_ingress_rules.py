"""Tests of ingress rules on every kind of host: each rule is made, repaired and closed without changing others."""

from dataclasses import replace

import pytest

from events.values import Ipv4Address
from node_agent.host.drift import differences
from node_agent.host.slices import Aspect, Slice
from node_agent.packets.rules import MAPPED, MAPPING, Change, Rule
from tasks.orders import Mapping
from tests.contract.network.hosts import Host
from tests.contract.network.slices import address_mapping, names, network, port_mapping, run, slice_on

SLOT = network(0)
SSH = port_mapping(1, "203.0.113.7", 20022)
WEB = port_mapping(2, "203.0.113.7", 20080, 80, "198.51.100.0/24", "192.0.2.1/32")
ALL = address_mapping(3, "203.0.113.9", "198.51.100.0/24")
UNMAPPED = ["translation.unmap", "translation.flush_connections"]


def translation(aspects: tuple[Aspect, ...]) -> Aspect:
    [found] = [each for each in aspects if each.name == "translation"]
    return found


def apply(aspects: tuple[Aspect, ...], wanted: Slice) -> list[str]:
    return [name for aspect in aspects for name in run(aspect.to_apply(wanted))]


def rules(host: Host, ingress: Mapping | None = None) -> list[str]:
    """Return the nftables chains that contain rules of the slot's ingress rule `ingress`; without `ingress`, those that
    contain nftables rules of the slot which belong to no ingress rule.
    """
    owner = SLOT.tap if ingress is None else f"{SLOT.tap} {ingress.ingress_id}"
    return sorted(found.rule.chain for found in host.filter.ruleset().rules if found.rule.owner == owner)


@pytest.fixture(params=[SSH, WEB, ALL], ids=["a port", "a port for some", "an address"])
def ingress(request: pytest.FixtureRequest) -> Mapping:
    found: Mapping = request.param
    return found


def test_ingress_rule_is_made_in_one_step_and_applying_it_again_takes_no_step(
    host: Host, aspects: tuple[Aspect, ...], ingress: Mapping
) -> None:
    apply(aspects, slice_on(SLOT))
    assert apply(aspects, slice_on(SLOT, ingress)) == ["translation.map"]
    assert apply(aspects, slice_on(SLOT, ingress)) == []
    assert rules(host, ingress) == [MAPPED] * max(1, len(ingress.sources)) + [MAPPING]


def test_closed_ingress_rule_leaves_nothing_and_other_ingress_rules_stay(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects, slice_on(SLOT, SSH, WEB))
    before = host.filter.ruleset().rules
    assert apply(aspects, slice_on(SLOT, WEB)) == UNMAPPED
    assert rules(host, SSH) == []
    kept = [found for found in before if str(SSH.ingress_id) not in found.rule.owner]
    assert [found for found in host.filter.ruleset().rules if found in kept] == kept


def test_drift_of_one_ingress_rule_is_reported_and_repaired_without_changing_other_ingress_rules(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects, slice_on(SLOT, SSH, WEB))
    lost = tuple(found for found in host.filter.ruleset().rules if str(WEB.ingress_id) in found.rule.owner)
    host.filter.change(Change(delete=lost[:1]))
    steps = translation(aspects).to_apply(slice_on(SLOT, SSH, WEB))
    assert [(each.kind, each.ingress_id) for each in differences(steps)] == [
        ("ingress.changed", WEB.ingress_id)
    ]
    assert names(steps) == ["translation.map"]
    run(steps)
    assert apply(aspects, slice_on(SLOT, SSH, WEB)) == []


def test_ingress_rule_without_an_order_is_foreign_and_is_removed(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects, slice_on(SLOT, SSH))
    foreign = Rule("inet", MAPPED, f"{SLOT.tap} other", '[{"accept":null}]')
    host.filter.change(Change(insert=(foreign,)))
    steps = translation(aspects).to_apply(slice_on(SLOT, SSH))
    assert [(each.kind, each.ingress_id) for each in differences(steps)] == [("ingress.foreign", None)]
    assert run(steps) == UNMAPPED
    assert apply(aspects, slice_on(SLOT, SSH)) == []


def test_source_network_that_an_ingress_rule_no_longer_allows_has_no_nftables_rule(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects, slice_on(SLOT, WEB))
    fewer = port_mapping(2, "203.0.113.7", 20080, 80, "192.0.2.1/32")
    assert apply(aspects, slice_on(SLOT, fewer)) == ["translation.map", "translation.flush_connections"]
    assert rules(host, fewer) == [MAPPED, MAPPING]


def test_ingress_rules_are_removed_when_their_slot_is_removed_or_stopped(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    for end in ("to_remove", "to_stop"):
        apply(aspects, slice_on(SLOT, SSH, ALL))
        remains = translation(aspects).remains(SLOT)
        assert f"nft rule of slice0 {SSH.ingress_id} in mapping" in remains
        run(getattr(translation(aspects), end)(SLOT))
        assert translation(aspects).remains(SLOT) == ()


def test_ingress_rules_of_other_slots_stay_when_a_slot_is_removed(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    other = network(1)
    apply(aspects, slice_on(SLOT, SSH))
    apply(aspects, slice_on(other, port_mapping(9, "203.0.113.7", 20023)))
    run(translation(aspects).to_remove(other))
    assert apply(aspects, slice_on(SLOT, SSH)) == []


def test_closing_an_ingress_rule_flushes_only_its_own_tracked_connections(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects, slice_on(SLOT, SSH, WEB))
    for public_port, port in ((20022, 22), (20080, 80)):
        host.connect_inbound(Ipv4Address("203.0.113.7"), public_port, SLOT.ip, port)
    host.connect(SLOT.ip)
    apply(aspects, slice_on(SLOT, WEB))
    left = {(each.destination_port, each.target_port) for each in host.filter.connections(SLOT.ip)}
    assert left == {(20080, 80), (4000, 4000)}


def test_tracked_connections_of_an_ingress_rule_are_flushed_although_the_agent_crashed_while_closing_it(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects, slice_on(SLOT, SSH, WEB))
    host.connect_inbound(Ipv4Address("203.0.113.7"), 20022, SLOT.ip, 22)
    run(translation(aspects).to_apply(slice_on(SLOT, WEB))[:1])
    assert rules(host, SSH) == []
    [drift] = differences(translation(aspects).to_apply(slice_on(SLOT, WEB)))
    assert (drift.kind, drift.observed) == (
        "ingress.foreign",
        "1 tracked connections that no ingress rule of the slot's order permits",
    )
    assert apply(aspects, slice_on(SLOT, WEB)) == ["translation.flush_connections"]
    assert host.filter.connections(SLOT.ip) == ()
    assert apply(aspects, slice_on(SLOT, WEB)) == []


def test_tracked_connections_of_a_closed_ingress_rule_are_flushed_before_another_ingress_rule_is_made(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects, slice_on(SLOT, SSH))
    host.connect_inbound(Ipv4Address("203.0.113.7"), 20022, SLOT.ip, 22)
    steps = translation(aspects).to_apply(slice_on(SLOT, WEB))
    assert names(steps) == [*UNMAPPED, "translation.map"]
    run(steps[:-1])
    assert host.filter.connections(SLOT.ip) == ()


def test_tracked_connections_of_a_slices_last_ingress_rule_are_flushed_after_a_crash_at_its_closing(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects, slice_on(SLOT, SSH))
    host.connect_inbound(Ipv4Address("203.0.113.7"), 20022, SLOT.ip, 22)
    closed = replace(slice_on(SLOT), ingress_changed=True)
    run(translation(aspects).to_apply(closed)[:1])
    assert apply(aspects, closed) == ["translation.flush_connections"]
    assert host.filter.connections(SLOT.ip) == ()


def test_missing_nftables_rules_of_a_slice_are_set_before_its_tracked_connections_are_flushed(
    host: Host, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects, slice_on(SLOT, SSH))
    host.connect_inbound(Ipv4Address("203.0.113.7"), 20022, SLOT.ip, 22)
    own = tuple(found for found in host.filter.ruleset().rules if found.rule.owner == SLOT.tap)
    host.filter.change(Change(delete=own))
    steps = names(translation(aspects).to_apply(slice_on(SLOT, WEB)))
    assert steps == [
        "translation.unmap",
        "translation.set_rules",
        "translation.flush_connections",
        "translation.map",
    ]
