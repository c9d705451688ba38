"""Events listed and followed from the command line."""

from collections.abc import Callable

import pytest

from control_plane.cli.follow import Message, messages
from tests.cli.control_plane import Reply, ScriptedPlane, page, problem, stream
from tests.cli.examples import COMING_UP, event
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]
WATCH = "GET /v1/events/watch"
GONE = problem(410, "cursor_gone", "the ledger holds nothing at 1.5")


def resumed_from(plane: ScriptedPlane) -> list[str | None]:
    return [seen.headers.get("Last-Event-ID") for seen in plane.of(WATCH)]


def test_messages_are_read_as_the_standard_says() -> None:
    lines = [
        ": welcome",
        "",
        "id: 1.1",
        "event: x",
        "data: {",
        "data:}",
        "",
        ": alive",
        "",
        "id: 1.9",
        "",
        "data: cut",
    ]
    assert list(messages(lines)) == [Message("1.1", b"{\n}", "x"), Message("1.9", None)]


def test_drift_is_told_with_its_evidence(plane: ScriptedPlane, sliceplane: Run) -> None:
    drift = {
        "kind": "port.flows",
        "wanted": "11 flows",
        "found": "0 flows, missing: 11, strange: 0",
        "since": "x",
    }
    plane.answers("GET /v1/events", page(event(73, "slot.mended", slot_id="lab-a/0", drift=[drift, drift])))
    told = "port.flows: wanted 11 flows, found 0 flows, missing: 11, strange: 0"
    assert f"lab-a/0 {told}; {told}" in sliceplane("events", "list").out


def test_a_part_of_the_ledger_is_listed(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("GET /v1/events", page(*COMING_UP))
    outcome = sliceplane("events", "list", "--after", "7", "--limit", "10")
    assert plane.seen[0].path == "/v1/events?after=position%3A7&limit=10"
    assert len(outcome.out.splitlines()) == len(COMING_UP)


@pytest.mark.parametrize("command", ["list", "follow"])
def test_what_is_picked_is_asked_for(plane: ScriptedPlane, sliceplane: Run, command: str) -> None:
    plane.answers("GET /v1/events", page())
    plane.answers(WATCH, GONE)
    options = ("--stream", "node-n1", "--stream", "node-n2", "--type", "node.expected")
    more = (
        "--project",
        "default",
        "--actor",
        "key:alice",
        "--correlation",
        "00000000-0000-0000-0000-000000000001",
    )
    sliceplane("events", command, *options, *more)
    query = plane.seen[0].path.partition("?")[2]
    for part in (
        "stream=node-n1&stream=node-n2",
        "type=node.expected",
        "project=default",
        "actor=key%3Aalice",
    ):
        assert part in query
    assert "correlation=00000000-0000-0000-0000-000000000001" in query
    assert "after" not in query


@pytest.mark.parametrize(
    ("said", "asked"), [("4", "position%3A4"), ("1.4", "1.4"), ("position:4", "position%3A4")]
)
def test_following_starts_where_it_is_told(
    plane: ScriptedPlane, sliceplane: Run, said: str, asked: str
) -> None:
    plane.answers(WATCH, stream(*COMING_UP[3:]), GONE)
    outcome = sliceplane("events", "follow", "--after", said)
    assert plane.seen[0].path == f"/v1/events/watch?after={asked}"
    assert len(outcome.out.splitlines()) == 2


@pytest.mark.parametrize("said", ["yesterday", "-1", "1.", "1.2.3", ""])
def test_a_place_that_is_none_is_told_before_anything_is_asked(
    plane: ScriptedPlane, sliceplane: Run, said: str
) -> None:
    assert sliceplane("events", "follow", "--after", said).code == 2
    assert not plane.seen


def test_following_goes_on_behind_the_last_id(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers(WATCH, stream(*COMING_UP[:2]), Reply(lose=True), stream(*COMING_UP[1:]), GONE)
    outcome = sliceplane("events", "follow")
    assert resumed_from(plane) == [None, "1.2", "1.2", f"1.{COMING_UP[-1]['position']}"]
    assert len(outcome.out.splitlines()) == len(COMING_UP)


def test_an_id_without_an_event_moves_the_place_and_shows_nothing(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    told = stream(*COMING_UP[:1])
    plane.answers(WATCH, Reply(told.body + b"id: 1.900\n\n", headers=told.headers), GONE)
    outcome = sliceplane("events", "follow")
    assert resumed_from(plane) == [None, "1.900"]
    assert len(outcome.out.splitlines()) == 1


def test_a_place_that_is_gone_ends_it_with_the_reason(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers(WATCH, stream(*COMING_UP), GONE)
    outcome = sliceplane("events", "follow")
    assert outcome.code == 1
    assert "the ledger holds nothing at 1.5" in outcome.err
    assert "start again without --after" in outcome.err
