"""`sliceplane events list` and `sliceplane events follow`: filters, start positions, output and reconnects."""

from collections.abc import Callable

import pytest

from tests.cli.control_plane import Reply, ScriptedPlane, page, problem, stream
from tests.cli.examples import BRING_UP, event
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]
WATCH = "GET /v1/events/watch"
GONE = problem(410, "cursor_expired", "the ledger holds nothing at 1.5")


def resumed_from(plane: ScriptedPlane) -> list[str | None]:
    return [request.headers.get("Last-Event-ID") for request in plane.requests(WATCH)]


def test_event_line_of_a_repair_shows_the_evidence_of_each_drift(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    drift = {
        "kind": "port.flows",
        "desired": "11 flows",
        "observed": "0 flows, missing: 11, strange: 0",
        "since": "x",
    }
    plane.script("GET /v1/events", page(event(73, "slot.repaired", slot_id="lab-a/0", drift=[drift, drift])))
    shown = "port.flows: desired 11 flows, observed 0 flows, missing: 11, strange: 0"
    assert f"lab-a/0 {shown}; {shown}" in sliceplane("events", "list").out


def test_events_list_sends_its_start_and_limit_and_prints_a_line_per_event(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("GET /v1/events", page(*BRING_UP))
    outcome = sliceplane("events", "list", "--after", "7", "--limit", "10")
    assert plane.received[0].path == "/v1/events?after=position%3A7&limit=10"
    assert len(outcome.out.splitlines()) == len(BRING_UP)


@pytest.mark.parametrize("command", ["list", "follow"])
def test_event_filters_are_sent_as_query_parameters(
    plane: ScriptedPlane, sliceplane: Run, command: str
) -> None:
    plane.script("GET /v1/events", page())
    plane.script(WATCH, GONE)
    options = ("--stream", "node-n1", "--stream", "node-n2", "--type", "node.registered")
    more = (
        "--project",
        "default",
        "--actor",
        "key:alice",
        "--correlation",
        "00000000-0000-0000-0000-000000000001",
    )
    sliceplane("events", command, *options, *more)
    query = plane.received[0].path.partition("?")[2]
    for part in (
        "stream=node-n1&stream=node-n2",
        "type=node.registered",
        "project=default",
        "actor=key%3Aalice",
    ):
        assert part in query
    assert "correlation=00000000-0000-0000-0000-000000000001" in query
    assert "after" not in query


@pytest.mark.parametrize(
    ("given", "sent"), [("4", "position%3A4"), ("1.4", "1.4"), ("position:4", "position%3A4")]
)
def test_events_follow_starts_after_the_given_position_or_cursor(
    plane: ScriptedPlane, sliceplane: Run, given: str, sent: str
) -> None:
    plane.script(WATCH, stream(*BRING_UP[3:]), GONE)
    outcome = sliceplane("events", "follow", "--after", given)
    assert plane.received[0].path == f"/v1/events/watch?after={sent}"
    assert len(outcome.out.splitlines()) == 2


@pytest.mark.parametrize("given", ["yesterday", "-1", "1.", "1.2.3", ""])
def test_events_follow_after_an_invalid_position_is_refused_without_a_request(
    plane: ScriptedPlane, sliceplane: Run, given: str
) -> None:
    assert sliceplane("events", "follow", "--after", given).code == 2
    assert not plane.received


def test_events_follow_reconnects_after_the_last_received_id(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script(WATCH, stream(*BRING_UP[:2]), Reply(lose=True), stream(*BRING_UP[1:]), GONE)
    outcome = sliceplane("events", "follow")
    assert resumed_from(plane) == [None, "1.2", "1.2", f"1.{BRING_UP[-1]['position']}"]
    assert len(outcome.out.splitlines()) == len(BRING_UP)


def test_events_follow_prints_nothing_for_an_id_without_an_event_and_reconnects_after_that_id(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    events = stream(*BRING_UP[:1])
    plane.script(WATCH, Reply(events.body + b"id: 1.900\n\n", headers=events.headers), GONE)
    outcome = sliceplane("events", "follow")
    assert resumed_from(plane) == [None, "1.900"]
    assert len(outcome.out.splitlines()) == 1


def test_event_that_contains_a_unicode_line_separator_is_received_as_one_event_stream_message(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    # Only CR and LF end a line of an event stream (WHATWG HTML, section 9.2.6); `str.splitlines` has more line ends.
    events = stream({**BRING_UP[0], "reason": "one two"})
    plane.script(
        WATCH, Reply(events.body.replace(b"one two", "one\u2028two".encode()), headers=events.headers), GONE
    )
    outcome = sliceplane("events", "follow")
    assert resumed_from(plane) == [None, f"1.{BRING_UP[0]['position']}"]
    assert (outcome.out.count("\n"), outcome.code) == (1, 1)
    assert "the ledger holds nothing at 1.5" in outcome.err


def test_events_follow_with_an_expired_cursor_ends_with_the_reason_and_advice(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(WATCH, stream(*BRING_UP), GONE)
    outcome = sliceplane("events", "follow")
    assert outcome.code == 1
    assert "the ledger holds nothing at 1.5" in outcome.err
    assert "start again without --after" in outcome.err
