"""The command line derives the state of an allocation and the duration of each state from events."""

import msgspec

from control_plane.client.answers import Event
from control_plane.client.timeline import Timeline
from tests.cli.examples import (
    ALLOCATION,
    BRING_UP,
    FAILED,
    PLACED,
    RELEASED,
    RELEASING,
    REMOVED,
    REQUESTED,
    STARTING,
    event,
)


def _timeline_of(*events: dict[str, object]) -> Timeline:
    timeline = Timeline(ALLOCATION)
    for each in events:
        timeline = timeline.then(msgspec.convert(each, Event))
    return timeline


def test_state_durations_are_computed_from_the_times_in_the_ledger() -> None:
    timeline = _timeline_of(*BRING_UP)
    assert timeline.state == "active"
    assert timeline.durations() == (("requested", 0.0), ("placed", 0.25), ("provisioning", 4.75))


def test_watch_of_an_allocation_ends_only_after_the_allocation_is_released() -> None:
    assert not _timeline_of(*BRING_UP, RELEASING, REMOVED).over
    assert _timeline_of(*BRING_UP, RELEASING, REMOVED, RELEASED).over


def test_watch_of_a_failed_allocation_ends_only_after_its_slices_are_removed() -> None:
    assert not _timeline_of(REQUESTED, PLACED, FAILED).over
    assert _timeline_of(REQUESTED, PLACED, FAILED, REMOVED).over


def test_watch_of_a_replaced_and_failed_allocation_ends_after_both_nodes_prove_their_slots_empty() -> None:
    replaced = event(5, "allocation.replaced", 2.0, slots=[{"slot_id": "lab-b/0"}], vacated=["lab-a/0"])
    timeline = _timeline_of(REQUESTED, PLACED, STARTING, replaced)
    assert (timeline.state, timeline.remaining) == ("placed", 2)
    assert not _timeline_of(REQUESTED, PLACED, STARTING, replaced, FAILED, REMOVED).over
    assert _timeline_of(REQUESTED, PLACED, STARTING, replaced, FAILED, REMOVED, REMOVED).over


def test_allocation_with_an_interrupted_slice_becomes_active_again_after_its_restart() -> None:
    interrupted = event(12, "allocation.slice_interrupted", 30.0, slot_id="lab-a/0")
    restarted = event(13, "allocation.slice_starting", 31.0, slot_id="lab-a/0")
    assert _timeline_of(*BRING_UP, interrupted, restarted).state == "starting"
    assert (
        _timeline_of(*BRING_UP, interrupted, restarted, event(14, "allocation.activated", 35.0)).state
        == "active"
    )


def test_events_of_other_allocations_do_not_change_the_timeline() -> None:
    foreign = {**event(15, "allocation.failed"), "stream": "allocation-alc-other"}
    assert _timeline_of(*BRING_UP, foreign).state == "active"
