"""Skipping an event in a read model: it is permitted only if the read model is stopped at this event."""

import pytest

from control_plane.decisions.projections import skip
from control_plane.decisions.refusals import Conflict
from events.values import Position


@pytest.mark.parametrize(
    ("stopped_at", "message"),
    [
        ((), "read model slots is not stopped; there is no event to skip"),
        ((7,), "read model slots is stopped at position 7, not at position 5; no event was skipped"),
    ],
)
def test_skip_of_an_event_at_which_the_read_model_is_not_stopped_is_refused_with_the_state_of_the_read_model(
    stopped_at: tuple[int, ...], message: str
) -> None:
    with pytest.raises(Conflict) as refused:
        skip("slots", Position(5), "a reason", frozenset(map(Position, stopped_at)))
    [objection] = refused.value.objections
    assert (objection.code, objection.message) == ("not_stopped_at_position", message)
