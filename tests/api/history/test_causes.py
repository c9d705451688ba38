"""Causes and effects of an event among the events with its correlation id."""

from datetime import UTC, datetime
from uuid import UUID

from control_plane.api.views.causes import Event, causes_of
from events.envelope import Cause, Recorded
from events.nodes import NodeCordoned
from events.values import Epoch, NodeId, Position, StreamId

TIME = datetime(2026, 11, 1, tzinfo=UTC)


def event(position: int, cause: int | None) -> Event:
    """Return the event at a position that the event at the position `cause` caused."""
    causation = None if cause is None else UUID(int=cause)
    return Recorded(
        Position(position),
        UUID(int=position),
        StreamId("node-n1"),
        position,
        NodeCordoned(NodeId("n1"), "fan"),
        Cause("key:a", "request", UUID(int=99), TIME, causation_id=causation),
        TIME,
        Epoch(1),
    )


def test_causes_of_an_event_are_the_chain_back_to_the_first_event_and_effects_are_all_events_that_follow_from_it() -> (
    None
):
    events = [
        event(position, cause)
        for position, cause in ((1, None), (2, 1), (3, None), (4, 2), (5, 4), (6, 1), (7, 5), (8, 3))
    ]
    found = causes_of(events[3], events[:3], events[4:])
    assert [[each.position for each in part] for part in found] == [[2, 1], [5, 7], [3, 6, 8]]


def test_chain_of_causes_of_an_event_ends_at_a_cause_that_was_not_read() -> None:
    events = [event(5, 4), event(6, 5), event(7, 6)]
    found = causes_of(events[1], events[:1], events[2:])
    assert [[each.position for each in part] for part in found] == [[5], [7], []]
    assert causes_of(events[0], [], []) == ((), (), ())
