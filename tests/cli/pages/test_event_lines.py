"""Event lines of the command line show the reason of the event, and its time with date and time zone."""

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
_GOLDEN: Final = Path(__file__).parents[2] / "golden" / "facts.json"
PATH: Final = f"/v1/allocations/{ALLOCATION}"


def _facts_with_a_reason() -> dict[str, tuple[dict[str, Any], str]]:
    """Return the golden example of every event schema with a reason, and the text of this reason."""
    found = {}
    for shape, fact in json.loads(_GOLDEN.read_text()).items():
        match fact:
            case {"reason": {"message": str(words)}} | {"reason": str(words)} | {"reason": str(words)}:
                found[shape] = (fact, words)
            case _:
                pass
    return found


REASONED: Final = _facts_with_a_reason()


@pytest.fixture
def time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time five hours behind UTC, so that the local date can differ from the UTC date."""
    monkeypatch.setenv("TZ", "XST5")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_recorded_example_events_of_failures_have_a_reason() -> None:
    assert {"allocation.failed/1", "slot.quarantined/1", "task.failed/1", "node.revoked/1"} <= REASONED.keys()


@pytest.mark.parametrize("shape", REASONED)
def test_event_line_shows_the_complete_reason_of_its_event(
    plane: ScriptedPlane, sliceplane: Run, shape: str
) -> None:
    fact, words = REASONED[shape]
    long = f"{words} {'because ' * 30}end"
    plane.script("GET /v1/events", page({**event(1, shape.partition("/")[0]), "data": _with(fact, long)}))
    [line] = sliceplane("events", "list").out.splitlines()
    assert long in line


def _with(fact: dict[str, Any], words: str) -> dict[str, Any]:
    match fact:
        case {"reason": {"message": str()}}:
            return {**fact, "reason": {**fact["reason"], "message": words}}
        case {"reason": str()}:
            return {**fact, "reason": words}
        case _:
            return {**fact, "reason": words}


@pytest.mark.parametrize("shape", REASONED)
def test_terminal_screen_of_dev_up_shows_the_reason_of_an_event(
    capsys: pytest.CaptureFixture[str], shape: str
) -> None:
    fact, words = REASONED[shape]
    shown = {**event(1, shape.partition("/")[0]), "data": fact}
    Screen().event(shown, shown)
    assert words in capsys.readouterr().out


def test_events_of_a_failed_allocation_show_the_failure_reason(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script(f"GET {PATH}/events", page(REQUESTED, PLACED, FAILED))
    assert "not ready: lab-a/0" in sliceplane("allocations", "events", ALLOCATION).out


def test_watch_of_an_allocation_that_fails_shows_the_reason_in_the_event_line(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(f"GET {PATH}/watch", stream(REQUESTED, PLACED, FAILED, REMOVED, hold=True))
    plane.script(f"GET {PATH}", document(allocation("failed")))
    assert "not ready: lab-a/0" in sliceplane("allocations", "watch", ALLOCATION).out


def test_event_line_shows_local_date_time_and_zone(
    time_zone: None, plane: ScriptedPlane, sliceplane: Run
) -> None:
    late = {**REQUESTED, "recorded_at": "2026-01-02T03:04:05.678Z"}
    next_day = {**PLACED, "recorded_at": "2026-01-02T05:00:00.001Z"}
    plane.script("GET /v1/events", page(late, next_day))
    first, second = sliceplane("events", "list").out.splitlines()
    assert first.split()[1:4] == ["2026-01-01", "22:04:05.678", "XST"]
    assert second.split()[1:4] == ["2026-01-02", "00:00:00.001", "XST"]


def test_history_diff_shows_each_change_with_local_date_time_and_zone(
    time_zone: None, plane: ScriptedPlane, sliceplane: Run
) -> None:
    point = {"position": 1, "time": "2026-01-02T03:04:05Z"}
    change = {
        "position": 1,
        "time": "2026-01-02T03:04:05.678Z",
        "type": "slot.released",
        "actor": "node:lab-a",
        "reason": "report 1",
        "fields": [],
    }
    body = {
        "kind": "slot",
        "name": "lab-a/0",
        "from": point,
        "to": point,
        "before": {},
        "changes": [change],
        "next_from": None,
    }
    plane.script("GET /v1/history/slot/lab-a/0/changes", document(body))
    out = sliceplane("history", "diff", "slot", "lab-a/0").out
    assert "2026-01-01 22:04:05.678 XST  slot.released" in out


def test_event_with_a_value_of_several_lines_is_printed_on_one_line(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    key = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\n-----END PUBLIC KEY-----\n"
    plane.script("GET /v1/events", page(event(1, "node.enrolled", public_key=key)))
    [line] = sliceplane("events", "list").out.splitlines()
    assert "public_key=-----BEGIN PUBLIC KEY----- MCowBQYDK2VwAyEA" in line


def test_event_line_shows_all_limits_that_were_set(plane: ScriptedPlane, sliceplane: Run) -> None:
    data = {"project": "vision", "limits": {"slots": 16, "price_per_hour": "60.00"}}
    plane.script("GET /v1/events", page({**event(1, "project.limits_set"), "data": data}))
    [line] = sliceplane("events", "list").out.splitlines()
    assert "project=vision slots=16 price_per_hour=60.00" in line
