"""Lines of events: each shows its reason, and its time with date and zone."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.embedded.screen import Screen
from tests.cli.control_plane import ScriptedPlane, document, page, stream
from tests.cli.examples import ALLOCATION, FAILED, PLACED, REMOVED, REQUESTED, allocation, event
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]
_GOLDEN: Final = Path(__file__).parents[1] / "golden" / "facts.json"
PATH: Final = f"/v1/allocations/{ALLOCATION}"


def _facts_with_a_reason() -> dict[str, tuple[dict[str, Any], str]]:
    """Every stored shape that has a reason, with its example and the words of its reason."""
    found = {}
    for shape, fact in json.loads(_GOLDEN.read_text()).items():
        match fact:
            case {"reason": {"message": str(words)}} | {"reason": str(words)} | {"why": str(words)}:
                found[shape] = (fact, words)
            case _:
                pass
    return found


REASONED: Final = _facts_with_a_reason()


@pytest.fixture
def time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Five hours behind UTC: another day than in UTC for some of it."""
    monkeypatch.setenv("TZ", "XST5")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_examples_of_events_with_a_reason_include_those_of_failures() -> None:
    assert {"allocation.failed/1", "slot.withheld/1", "task.failed/1", "node.revoked/1"} <= REASONED.keys()


@pytest.mark.parametrize("shape", REASONED)
def test_line_of_an_event_with_a_reason_shows_the_whole_reason(
    plane: ScriptedPlane, sliceplane: Run, shape: str
) -> None:
    fact, words = REASONED[shape]
    long = f"{words} {'because ' * 30}end"
    plane.answers("GET /v1/events", page({**event(1, shape.partition("/")[0]), "data": _with(fact, long)}))
    [line] = sliceplane("events", "list").out.splitlines()
    assert long in line


def _with(fact: dict[str, Any], words: str) -> dict[str, Any]:
    match fact:
        case {"reason": {"message": str()}}:
            return {**fact, "reason": {**fact["reason"], "message": words}}
        case {"reason": str()}:
            return {**fact, "reason": words}
        case _:
            return {**fact, "why": words}


@pytest.mark.parametrize("shape", REASONED)
def test_up_shows_the_reason_of_an_event_with_a_reason(
    capsys: pytest.CaptureFixture[str], shape: str
) -> None:
    fact, words = REASONED[shape]
    shown = {**event(1, shape.partition("/")[0]), "data": fact}
    Screen().event(shown, shown)
    assert words in capsys.readouterr().out


def test_events_of_a_failed_allocation_show_why_it_failed(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers(f"GET {PATH}/events", page(REQUESTED, PLACED, FAILED))
    assert "not ready: lab-a/0" in sliceplane("allocations", "events", ALLOCATION).out


def test_watching_an_allocation_that_fails_shows_why_on_the_line_of_the_event(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.answers(f"GET {PATH}/watch", stream(REQUESTED, PLACED, FAILED, REMOVED, hold=True))
    plane.answers(f"GET {PATH}", document(allocation("failed")))
    assert "not ready: lab-a/0" in sliceplane("allocations", "watch", ALLOCATION).out


def test_an_event_line_has_the_local_date_and_the_zone(
    time_zone: None, plane: ScriptedPlane, sliceplane: Run
) -> None:
    late = {**REQUESTED, "recorded_at": "2026-01-02T03:04:05.678Z"}
    next_day = {**PLACED, "recorded_at": "2026-01-02T05:00:00.001Z"}
    plane.answers("GET /v1/events", page(late, next_day))
    first, second = sliceplane("events", "list").out.splitlines()
    assert first.split()[1:4] == ["2026-01-01", "22:04:05.678", "XST"]
    assert second.split()[1:4] == ["2026-01-02", "00:00:00.001", "XST"]


def test_a_change_in_the_history_has_the_local_date_and_the_zone(
    time_zone: None, plane: ScriptedPlane, sliceplane: Run
) -> None:
    place = {"position": 1, "time": "2026-01-02T03:04:05Z"}
    change = {
        "position": 1,
        "time": "2026-01-02T03:04:05.678Z",
        "type": "slot.released",
        "actor": "node:lab-a",
        "why": "report 1",
        "fields": [],
    }
    body = {
        "kind": "slot",
        "name": "lab-a/0",
        "from": place,
        "to": place,
        "before": {},
        "changes": [change],
        "next_from": None,
    }
    plane.answers("GET /v1/history/slot/lab-a/0/changes", document(body))
    out = sliceplane("history", "diff", "slot", "lab-a/0").out
    assert "2026-01-01 22:04:05.678 XST  slot.released" in out
