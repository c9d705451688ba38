"""The states of an allocation, folded from its events."""

import msgspec

from control_plane.cli.answers import Event
from control_plane.cli.story import Story
from tests.cli.examples import (
    ALLOCATION,
    COMING_UP,
    FAILED,
    PLACED,
    RELEASED,
    RELEASING,
    REMOVED,
    REQUESTED,
    STARTING,
    event,
)


def _told(*events: dict[str, object]) -> Story:
    story = Story(ALLOCATION)
    for each in events:
        story = story.then(msgspec.convert(each, Event))
    return story


def test_the_times_of_the_states_are_the_ledgers() -> None:
    story = _told(*COMING_UP)
    assert story.state == "active"
    assert story.durations() == (("requested", 0.0), ("placed", 0.25), ("provisioning", 4.75))


def test_a_released_allocation_is_over() -> None:
    assert not _told(*COMING_UP, RELEASING, REMOVED).over
    assert _told(*COMING_UP, RELEASING, REMOVED, RELEASED).over


def test_a_failed_allocation_is_over_when_its_slots_are_empty() -> None:
    assert not _told(REQUESTED, PLACED, FAILED).over
    assert _told(REQUESTED, PLACED, FAILED, REMOVED).over


def test_allocation_placed_on_another_node_waits_for_the_proofs_of_both() -> None:
    replaced = event(5, "allocation.replaced", 2.0, slots=[{"slot_id": "lab-b/0"}], vacated=["lab-a/0"])
    story = _told(REQUESTED, PLACED, STARTING, replaced)
    assert (story.state, story.remaining) == ("placed", 2)
    assert not _told(REQUESTED, PLACED, STARTING, replaced, FAILED, REMOVED).over
    assert _told(REQUESTED, PLACED, STARTING, replaced, FAILED, REMOVED, REMOVED).over


def test_a_slice_that_comes_back_makes_the_allocation_active_again() -> None:
    interrupted = event(12, "allocation.slice_interrupted", 30.0, slot_id="lab-a/0")
    restarted = event(13, "allocation.slice_starting", 31.0, slot_id="lab-a/0")
    assert _told(*COMING_UP, interrupted, restarted).state == "starting"
    assert (
        _told(*COMING_UP, interrupted, restarted, event(14, "allocation.activated", 35.0)).state == "active"
    )


def test_events_of_other_streams_move_nothing() -> None:
    foreign = {**event(15, "allocation.failed"), "stream": "allocation-alc-other"}
    assert _told(*COMING_UP, foreign).state == "active"
