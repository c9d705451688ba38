"""Decisions about taking a node out of service: cordon, drain and uncordon."""

from datetime import timedelta

import pytest

from control_plane.decisions.fleet.drain import (
    INCOMPLETE_AFTER,
    OccupiedSlot,
    Release,
    cordon,
    next_step,
    occupied,
    remaining_slots,
    start,
    uncordon,
)
from control_plane.decisions.placing.explanation import node_blocked
from control_plane.decisions.refusals import Conflict
from events.facts import Reason, RemainingSlot
from events.nodes import NodeCordoned, NodeDrainEnded, NodeDrainStarted, NodeUncordoned
from events.slot_states import Claimed, Discovered, Free, Quarantined, Releasing
from events.values import allocation_of, new_uuid, node_id, slot_id
from tests.decisions.histories import ID, NOW

NODE = node_id("lab-a")
S0, S1 = slot_id("lab-a/0"), slot_id("lab-a/1")
OTHER = allocation_of(new_uuid())
WHY = "its firmware is old"
MINUTE = timedelta(minutes=1)
LEFT = Reason("absence_not_proved", "node lab-a still finds 1 leftover of the slice: tap slice0")
WAITING = NodeDrainStarted(NODE, WHY, NOW, None)
RELEASING = NodeDrainStarted(NODE, WHY, NOW, NOW + MINUTE)
LIMIT = NOW + MINUTE + INCOMPLETE_AFTER
GONE = Reason(
    "node_unreachable",
    f"the node is unreachable and has not proved that the slice of {ID} is removed; start its agent, or force-release "
    "the slot",
)
PENDING = Reason("removal_pending", f"the node has not proved yet that the slice of {ID} is removed")


def test_cordon_closes_a_node_once_and_keeps_its_first_reason() -> None:
    assert cordon(NODE, None, WHY) == (NodeCordoned(NODE, WHY),)
    assert cordon(NODE, "another", WHY) == ()


def test_uncordon_opens_a_cordoned_node_and_cancels_its_drain() -> None:
    left = (RemainingSlot(S0, PENDING),)
    assert uncordon(NODE, WHY, None, "done", ()) == (NodeUncordoned(NODE, "done"),)
    assert uncordon(NODE, WHY, WAITING, "done", left) == (
        NodeDrainEnded(NODE, "cancelled", left),
        NodeUncordoned(NODE, "done"),
    )
    with pytest.raises(Conflict, match="node lab-a is not cordoned"):
        uncordon(NODE, None, None, "done", ())


def test_drain_cordons_the_node_unless_it_is_cordoned() -> None:
    started = NodeDrainStarted(NODE, WHY, NOW, None)
    assert start(NODE, None, None, WHY, now=NOW, release_after=None) == (NodeCordoned(NODE, WHY), started)
    assert start(NODE, "before", None, WHY, now=NOW, release_after=None) == (started,)


def test_another_drain_during_a_drain_changes_only_its_reason_and_release_time() -> None:
    later = NOW + MINUTE
    assert start(NODE, WHY, WAITING, "now", now=later, release_after=timedelta()) == (
        NodeDrainStarted(NODE, "now", NOW, later),
    )
    assert start(NODE, WHY, RELEASING, "wait", now=later, release_after=None) == (
        NodeDrainStarted(NODE, "wait", NOW, None),
    )
    assert start(NODE, WHY, WAITING, "again", now=later, release_after=None) == ()


def test_drain_waits_for_slots_that_are_claimed_releasing_or_quarantined() -> None:
    states = (Discovered(), Free(), Claimed(ID), Releasing(ID), Quarantined(ID, LEFT))
    assert [state for state in states if occupied(S0, state)] == [*states[2:]]


@pytest.mark.parametrize("drain", [WAITING, RELEASING])
def test_drain_ends_empty_at_any_time_once_no_slot_is_occupied(drain: NodeDrainStarted) -> None:
    for now in (NOW, NOW + 2 * MINUTE, LIMIT + MINUTE):
        assert next_step(drain, [], now, reachable=False) == NodeDrainEnded(NODE, "empty", ())


def test_drain_without_release_time_waits_without_limit_until_allocations_end() -> None:
    held = [OccupiedSlot(S0, Claimed(ID)), OccupiedSlot(S1, Quarantined(ID, LEFT))]
    assert next_step(WAITING, held, LIMIT + timedelta(days=9), reachable=True) is None


def test_drain_releases_each_allocation_from_its_release_time_on() -> None:
    release = Release(OTHER, Reason("node_drained", f"node lab-a is drained: {WHY}"))
    held = [OccupiedSlot(S0, Releasing(ID)), OccupiedSlot(S1, Claimed(OTHER))]
    assert next_step(RELEASING, held, NOW + MINUTE - timedelta(microseconds=1), reachable=True) is None
    assert next_step(RELEASING, held, NOW + MINUTE, reachable=True) == release
    assert next_step(RELEASING, held, LIMIT + MINUTE, reachable=True) == release


def test_drain_ends_incomplete_at_the_limit_with_a_reason_for_each_slot() -> None:
    held = [OccupiedSlot(S0, Releasing(ID)), OccupiedSlot(S1, Quarantined(ID, LEFT))]
    assert next_step(RELEASING, held, LIMIT - timedelta(microseconds=1), reachable=True) is None
    for reachable, reason in ((True, PENDING), (False, GONE)):
        ended = NodeDrainEnded(NODE, "incomplete", (RemainingSlot(S0, reason), RemainingSlot(S1, LEFT)))
        assert next_step(RELEASING, held, LIMIT, reachable=reachable) == ended


@pytest.mark.parametrize(
    ("drain", "end"),
    [
        (WAITING, "the drain waits until the allocation ends by itself"),
        (RELEASING, f"the drain releases the allocation at {(NOW + MINUTE).isoformat()}"),
    ],
)
def test_claimed_slot_shows_whether_the_drain_releases_its_allocation(
    drain: NodeDrainStarted, end: str
) -> None:
    [found] = remaining_slots(drain, [OccupiedSlot(S0, Claimed(ID))], reachable=True)
    assert found.reason == Reason("slot_in_use", f"allocation {ID} holds the slot; {end}")


def test_refusal_of_a_cordoned_node_names_the_reason_of_the_cordon() -> None:
    message = node_blocked(NODE, "cordoned", WHY).message
    assert message.startswith(f"nothing is placed on node lab-a now (cordoned: {WHY}); omit the node")
    assert "(cordoned)" in node_blocked(NODE, "cordoned", None).message
    assert "cordoned" not in node_blocked(NODE, "unreachable", WHY).message
