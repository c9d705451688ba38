"""Earlier states of slots and nodes, computed from the first event and the last of each type, and their differences."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, get_args
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.time_travel.differences import Difference, Json, differences
from control_plane.time_travel.holders import held_at
from control_plane.time_travel.moment import moment as moment_of
from events import nodes, orders, slots
from events.claims import Claim
from events.drift import DriftFound, OpenDrift
from events.facts import Fact, FailedBringUp, Reason, RemainingSlot
from events.values import (
    AllocationId,
    IngressId,
    InvalidValue,
    Ipv4Address,
    Ipv4Subnet,
    MacAddress,
    NetworkMode,
    NodeId,
    PciAddress,
    Position,
    ProjectId,
    SkuName,
    SlotId,
    StreamId,
)
from read_models.holdings import Holding
from read_models.inline import NODES, SLOTS
from read_models.rows import Patched, folded

SLOT, NODE = SlotId("lab-a/0"), NodeId("lab-a")
word = st.sampled_from(["a", "b", "c"])
words = st.lists(word, max_size=2).map(tuple)
number = st.integers(1, 3)
moment = st.sampled_from([datetime(2026, 3, day, tzinfo=UTC) for day in (1, 2, 3)])
reason = st.builds(Reason, word, word)
ingress_id = st.none() | st.just(IngressId("ing-01jd3v6w8xf0r9k2m4n6p8q0s3"))
found = st.builds(DriftFound, word, word, word, moment, ingress_id)
open_ = st.builds(OpenDrift, word, word, word, moment, ingress_id, blocks=st.booleans())
repaired = st.lists(found, min_size=1, max_size=2).map(tuple)
drift = st.lists(open_, min_size=1, max_size=2).map(tuple)
ip = word.map(Ipv4Address)
ips = st.lists(ip, max_size=2).map(tuple)
addresses = st.lists(st.builds(nodes.PublicAddress, ip, word, number, number), max_size=2).map(tuple)
network = st.builds(
    slots.SlotNetwork,
    word,
    word.map(MacAddress),
    word.map(Ipv4Address),
    word.map(Ipv4Subnet),
    word.map(Ipv4Address),
    word,
)
pci = st.lists(word.map(PciAddress), max_size=2).map(tuple)
device = st.builds(
    slots.SlotDevice,
    word.map(PciAddress),
    word,
    st.none() | word,
    st.none() | word,
    st.none() | number,
    model=st.none() | word,
    fabric_metadata=st.none() | st.builds(slots.FabricMetadata, link_layer=word, rate_mbit=number),
    evidence=st.lists(st.builds(slots.DeviceEvidence, word, word), max_size=2).map(tuple),
)
checked = st.builds(slots.CheckedDevice, word.map(PciAddress), words, st.none() | st.booleans())
approved_hardware = st.builds(
    slots.ApprovedHardware,
    number,
    number,
    st.none() | number,
    st.lists(
        st.builds(
            slots.ApprovedDevice,
            *(word.map(PciAddress), word, st.none() | word, st.none() | number, st.none() | word),
            *(st.none() | word.map(PciAddress), st.none() | word.map(PciAddress), st.none() | number),
            *(st.none() | word, st.none() | number, st.none() | word, st.none() | word),
        ),
        max_size=2,
    ).map(tuple),
)
allocation = word.map(AllocationId)
use = st.builds(slots.SlotUse, word.map(ProjectId), word, number, number, number, word)
failures = st.lists(
    st.builds(FailedBringUp, st.just(SLOT), allocation, reason, moment), min_size=1, max_size=2
).map(tuple)
discovered = st.builds(
    slots.SlotDiscovered, st.just(SLOT), st.just(NODE), st.builds(slots.SlotHardware, number, number, word)
)
of_slot: tuple[st.SearchStrategy[Fact], ...] = (
    discovered,
    st.builds(slots.SlotApproved, st.just(SLOT), words.map(lambda each: tuple(map(SkuName, each))), network),
    st.builds(slots.SlotSkusChanged, st.just(SLOT), words.map(lambda each: tuple(map(SkuName, each)))),
    st.builds(
        slots.SlotDevicesDescribed, st.just(SLOT), st.lists(device, max_size=2).map(tuple), st.none() | number
    ),
    st.builds(slots.SlotDevicesGranted, st.just(SLOT), st.just(NODE), pci, pci, pci),
    st.builds(slots.SlotRetired, st.just(SLOT), word),
    st.builds(slots.SlotReinstated, st.just(SLOT), words.map(lambda each: tuple(map(SkuName, each)))),
    st.builds(slots.SlotReprovisioned, st.just(SLOT), word, network, network),
    st.builds(slots.SlotHardwareApproved, st.just(SLOT), approved_hardware),
    st.builds(slots.SlotClaimed, st.just(SLOT), allocation, st.none() | use),
    st.builds(slots.SlotReleasing, st.just(SLOT), allocation),
    st.builds(slots.SlotQuarantined, st.just(SLOT), allocation, reason, words),
    st.builds(slots.SlotReleased, st.just(SLOT), allocation, words, st.none() | use),
    st.builds(slots.SlotDevicesChecked, st.just(SLOT), allocation, st.lists(checked, max_size=2).map(tuple)),
    st.builds(slots.SlotForceReleased, st.just(SLOT), allocation, word, words, st.none() | use),
    st.builds(slots.SlotDegraded, st.just(SLOT), drift),
    st.builds(slots.SlotRecovered, st.just(SLOT)),
    st.builds(slots.SlotRepaired, st.just(SLOT), repaired),
    st.builds(slots.SlotBringUpFailed, st.just(SLOT), failures),
    st.builds(slots.SlotBringUpSucceeded, st.just(SLOT), allocation),
    st.builds(slots.SlotExcluded, st.just(SLOT), reason, failures),
    st.builds(slots.SlotReadmitted, st.just(SLOT), reason),
)
mac_pool = st.builds(nodes.MacPool, word.map(MacAddress), word.map(MacAddress))
node_network = st.builds(nodes.NodeNetwork, word, word, st.none() | mac_pool)
registered = st.builds(nodes.NodeRegistered, st.just(NODE), word.map(Ipv4Subnet), word, word, moment)
unsupported_mode = st.builds(nodes.UnsupportedMode, st.sampled_from(get_args(NetworkMode)), word)
modes = st.lists(unsupported_mode, max_size=2, unique_by=lambda each: each.mode).map(tuple)
of_node: tuple[st.SearchStrategy[Fact], ...] = (
    st.builds(nodes.EnrolmentReopened, st.just(NODE), word, moment),
    registered,
    st.builds(nodes.NodeRemoved, st.just(NODE), word.map(Ipv4Subnet)),
    st.builds(nodes.NodeEnrolled, st.just(NODE), word, word, number, word),
    st.builds(nodes.AgentSuperseded, st.just(NODE), number, number, moment),
    st.builds(nodes.NodeRevoked, st.just(NODE), word),
    st.builds(nodes.NodeInspected, st.just(NODE), word, word, st.booleans(), words, words, modes),
    st.builds(nodes.NodeNetworkChanged, st.just(NODE), node_network),
    st.builds(nodes.NodeAddressesChanged, st.just(NODE), addresses, ips, ips),
    st.builds(nodes.NodeDegraded, st.just(NODE), drift),
    st.builds(nodes.NodeRecovered, st.just(NODE)),
    st.builds(nodes.NodeRepaired, st.just(NODE), repaired),
    st.builds(nodes.NodeBringUpFailed, st.just(NODE), failures),
    st.builds(nodes.NodeBringUpSucceeded, st.just(NODE), st.just(SLOT), allocation),
    st.builds(nodes.NodeExcluded, st.just(NODE), reason, failures),
    st.builds(nodes.NodeReadmitted, st.just(NODE), reason),
    st.builds(nodes.NodeCordoned, st.just(NODE), word),
    st.builds(nodes.NodeUncordoned, st.just(NODE), word),
    st.builds(nodes.NodeDrainStarted, st.just(NODE), word, moment, st.none() | moment),
    st.builds(
        nodes.NodeDrainEnded,
        st.just(NODE),
        word,
        st.lists(st.builds(RemainingSlot, st.just(SLOT), reason), max_size=2).map(tuple),
    ),
    st.builds(nodes.NodeReportsThrottled, st.just(NODE), moment, number, number),
    st.builds(nodes.NodeReportsResumed, st.just(NODE), moment, number, number),
    st.builds(nodes.NodeHeadRefused, st.just(NODE), reason, st.just(nodes.HeadEvidence("held", "refused"))),
    st.builds(orders.OrderRefused, st.just(NODE), st.just(SLOT), st.just(UUID(int=1)), reason),
    st.builds(orders.MessageRefused, st.just(NODE), st.just(UUID(int=1)), reason),
)


def histories(
    first: st.SearchStrategy[Fact], others: Iterable[st.SearchStrategy[Fact]]
) -> st.SearchStrategy[list[tuple[int, Fact]]]:
    """Return a Hypothesis strategy for event streams, with events in any order, even one that cannot occur."""
    rest = st.lists(st.one_of(*others), max_size=25)
    return st.builds(lambda born, then: list(enumerate([born, *then], 1)), first, rest)


def decisive(history: Sequence[tuple[int, Fact]]) -> list[tuple[int, Fact]]:
    """Return the events that determine a state: the first one and the last one of each type, in stream order."""
    last = {type(fact): version for version, fact in history}
    return [(version, fact) for version, fact in history if version == 1 or last[type(fact)] == version]


@given(histories(discovered, of_slot))
def test_slot_row_follows_from_its_first_event_and_the_last_event_of_each_type(
    history: list[tuple[int, Fact]],
) -> None:
    assert made(SLOTS, decisive(history)) == made(SLOTS, history)


@given(histories(registered, of_node))
def test_node_row_follows_from_its_first_event_and_the_last_event_of_each_type(
    history: list[tuple[int, Fact]],
) -> None:
    assert made(NODES, decisive(history)) == made(NODES, history)


def made(model: Patched, history: Sequence[tuple[int, Fact]]) -> dict[str, Any] | None:
    return folded(model.table, model.patches(history))


def test_generated_histories_cover_every_event_type_of_slots_and_nodes() -> None:
    assert len(of_slot) == len(get_args(slots.SlotFact))
    assert len(of_node) == len(NODES.facts)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(json_values)
def test_comparison_of_a_json_value_with_itself_finds_no_differences(value: Json) -> None:
    assert differences(value, value) == []


@given(json_values, json_values)
def test_comparison_of_two_swapped_json_values_finds_the_reversed_differences(one: Json, other: Json) -> None:
    there, back = differences(one, other), differences(other, one)
    assert {(each.path, each.after, each.before) for each in there} == set(back)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, [("/b", 2, 3)]),
        (None, {"a": {"b": "x"}, "c": None, "d": []}, [("/a/b", None, "x")]),
        ({"s": [{"ready": False}]}, {"s": [{"ready": True}]}, [("/s/0/ready", False, True)]),
        ({"s": ["a", "b"]}, {"s": ["a"]}, [("/s/1", "b", None)]),
        ({"a/b": 1, "c~d": 1}, {"a/b": 2, "c~d": 2}, [("/a~1b", 1, 2), ("/c~0d", 1, 2)]),
    ],
)
def test_comparison_of_two_states_lists_each_different_field_once_with_its_path(
    before: Json, after: Json, found: list[Difference]
) -> None:
    assert differences(before, after) == found


def test_claim_is_held_by_the_last_stream_that_took_it_until_it_is_freed() -> None:
    mac, ip = Claim("mac", "d/m"), Claim("ip", "s/i")
    one, other = StreamId("slot-a/0"), StreamId("slot-a/1")
    history = [
        Holding(mac, Position(2), one),
        Holding(ip, Position(3), one),
        Holding(mac, Position(5), None),
        Holding(mac, Position(8), other),
    ]
    held = {at: {each.stream for each in held_at(history, Position(at))} for at in range(1, 9)}
    assert held == {1: set(), 2: {one}, 3: {one}, 4: {one}, 5: {one}, 6: {one}, 7: {one}, 8: {one, other}}
    assert [each.claim for each in held_at(history, Position(6))] == [ip]


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ("position:0", 0),
        ("position:41", 41),
        ("2026-11-21T09:30:00Z", datetime(2026, 11, 21, 9, 30, tzinfo=UTC)),
        ("2026-11-21t10:30:00.5+01:00", datetime(2026, 11, 21, 9, 30, 0, 500_000, tzinfo=UTC)),
    ],
)
def test_text_of_a_time_or_of_a_ledger_position_is_parsed_to_its_value(raw: str, named: object) -> None:
    assert moment_of(raw) == named


@given(st.text(max_size=40))
def test_arbitrary_text_is_parsed_as_a_time_or_position_or_refused(raw: str) -> None:
    for text in (raw, f"position:{raw}", f"2026-11-21T09:30:0{raw}"):
        with suppress(InvalidValue):
            assert moment_of(text) is not None
