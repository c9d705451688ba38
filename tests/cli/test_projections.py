"""`sliceplane projections`: progress of a rebuild or verification, exit codes and advice."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from tests.cli.control_plane import Reply, ScriptedPlane, document, page, problem
from tests.cli.outcome import Outcome
from tests.cli.terminal import run_on_terminal, without_escapes

Run = Callable[..., Outcome]
SLICEPLANE = (sys.executable, "-m", "control_plane.cli")
LAST = 20_000
STOP = {
    "position": 17,
    "since": "2026-01-02T03:04:05Z",
    "error": "UnreadableEvent: slot.painted is not known",
}
LIST = "GET /v1/projections"
REBUILD_SLOTS = "POST /v1/projections/slots/rebuild"
VERIFICATION = {
    "id": "019341f0-0000-7000-8000-000000000000",
    "requested_by": "key:a",
    "position": None,
    "upto": None,
}
REQUESTED: dict[str, object] = {
    **VERIFICATION,
    "state": "asked",
    "requested_at": "2026-01-02T03:04:05Z",
    "differences": [],
    "stopped": None,
}
VERIFY, VERIFYING = "POST /v1/verifications", f"GET /v1/verifications/{VERIFICATION['id']}"
SLOT_DIFFERS = {
    "kind": "read_model",
    "table": "read.slot",
    "key": {"slot_id": "node-a/1"},
    "columns": ["state", "allocation_id"],
    "live": {"slot_id": "node-a/1", "state": "free", "allocation_id": None, "vcpus": 1},
    "replayed": {"slot_id": "node-a/1", "state": "claimed", "allocation_id": "alc-1", "vcpus": 1},
}
HEAD_IS_MISSING = {
    "kind": "ledger",
    "table": "ledger.head",
    "key": {"stream_id": "slot-node-a/1"},
    "columns": ["stream_id", "version"],
    "live": None,
    "replayed": {"stream_id": "slot-node-a/1", "version": 4},
}


def projection(name: str = "slots", **changes: object) -> dict[str, object]:
    return {
        "name": name,
        "tables": [f"read.{name[:-1]}"],
        "inline": name == "slots",
        "state": "live",
        "position": None if name == "slots" else LAST,
        "last_position": LAST,
        "stopped": None,
        "skipped": [],
        "rebuild": None,
        **changes,
    }


def rebuilding(position: int, name: str = "slots", **changes: object) -> dict[str, object]:
    rebuild = {
        "requested_at": "2026-01-02T03:04:05Z",
        "requested_by": "key:a",
        "position": position,
        "stopped": None,
    }
    return projection(name, state="rebuilding", rebuild={**rebuild, **changes})


def test_projections_list_prints_position_lag_stop_and_skipped_events(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    holdings = projection("holdings", state="stopped", position=16, stopped=STOP, skipped=[3, 5])
    plane.script(LIST, page(projection(), holdings))
    out = sliceplane("projections", "list").out
    for part in (
        "read.slot",
        "updated by each append",
        "16 (19984 behind)",
        "position 17: UnreadableEvent",
        "skips events at these positions on request: 3, 5",
    ):
        assert part in out
    assert sliceplane("projections", "list", "-o", "json").document == {
        "items": [projection(), holdings],
        "next_cursor": None,
    }


def test_projections_rebuild_waits_until_the_rebuilt_tables_are_live(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(
        LIST, *(page(each) for each in (projection(), rebuilding(0), rebuilding(9_000), projection()))
    )
    plane.script(REBUILD_SLOTS, document(rebuilding(0), 202))
    outcome = sliceplane("projections", "rebuild", "slots")
    assert outcome.code == 0
    assert "slots is rebuilt and live in" in outcome.err
    assert "read.slot" in outcome.out


def test_projections_rebuild_with_option_all_requests_every_rebuild_before_it_waits(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    both = page(projection(), projection("holdings"))
    plane.script(LIST, both, page(projection(), rebuilding(7, "holdings")), both)
    for name in ("slots", "holdings"):
        plane.script(f"POST /v1/projections/{name}/rebuild", document(rebuilding(0, name), 202))
    outcome = sliceplane("projections", "rebuild", "--all", "-o", "json")
    assert [request.method for request in plane.received][:3] == ["GET", "POST", "POST"]
    assert outcome.document == {"items": [projection(), projection("holdings")], "next_cursor": None}
    assert outcome.err == ""


def test_projections_rebuild_does_not_wait_for_a_later_rebuild_of_the_same_projection(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(LIST, page(projection()), page(rebuilding(4, requested_at="2026-01-02T03:09:00Z")))
    plane.script(REBUILD_SLOTS, document(rebuilding(0), 202))
    assert sliceplane("projections", "rebuild", "slots").code == 0


def test_projections_rebuild_stopped_by_an_event_ends_with_code_5_and_advice(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(LIST, page(projection()), page(rebuilding(16, stopped=STOP)))
    plane.script(REBUILD_SLOTS, document(rebuilding(0), 202))
    outcome = sliceplane("projections", "rebuild", "slots")
    assert outcome.code == 5
    for part in (
        "slots stopped at position 17: UnreadableEvent: slot.painted is not known",
        "sliceplane events list --after 16 --limit 1",
        "sliceplane projections retry slots",
        "sliceplane projections skip slots 17 --reason",
        "the live tables remain",
    ):
        assert part in outcome.err


def test_unknown_projection_names_are_refused_with_the_list_of_projections(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(LIST, page(projection(), projection("holdings")))
    outcome = sliceplane("projections", "rebuild", "slots", "slot", "nothing")
    assert outcome.code == 2
    assert "'slot', 'nothing'" in outcome.err
    assert "slots, holdings" in outcome.err
    assert not plane.requests(REBUILD_SLOTS)


@pytest.mark.parametrize(
    "words",
    [
        ("rebuild",),
        ("rebuild", "slots", "--all"),
        ("skip", "slots", "17"),
        ("skip", "slots", "0", "--reason", "x"),
    ],
)
def test_wrong_usage_of_projections_ends_with_code_2_without_a_request(
    plane: ScriptedPlane, sliceplane: Run, words: tuple[str, ...]
) -> None:
    assert sliceplane("projections", *words).code == 2
    assert not plane.received


def test_projections_rebuild_keeps_waiting_after_a_restart_of_the_control_plane(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    unreachable = [Reply(lose=True)] * 5
    plane.script(LIST, page(projection()), page(rebuilding(4)), *unreachable, page(projection()))
    plane.script(REBUILD_SLOTS, document(rebuilding(0), 202))
    outcome = sliceplane("projections", "rebuild", "slots")
    assert outcome.code == 0
    assert "reconnected" in outcome.err


@pytest.mark.parametrize(
    "flags",
    [
        (),
        (
            "-o",
            "json",
        ),
    ],
)
def test_ctrl_c_during_projections_rebuild_ends_the_command_and_reports_that_the_rebuild_continues(
    plane: ScriptedPlane, environment: None, flags: tuple[str, ...]
) -> None:
    plane.script(LIST, page(projection()), page(rebuilding(4)))
    plane.script(REBUILD_SLOTS, document(rebuilding(0), 202))
    words = [*SLICEPLANE, "projections", "rebuild", "slots", *flags]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    plane.await_request(LIST, 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert "stopped watching; the rebuild of slots continues" in err
    assert "sliceplane projections list" in err
    assert "Traceback" not in err


def test_projections_verify_without_differences_prints_the_verified_position(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    running = {**REQUESTED, "state": "running", "position": 4_000, "upto": LAST}
    plane.script(VERIFY, document(REQUESTED, 202))
    plane.script(
        VERIFYING,
        *(document(each) for each in (REQUESTED, running, {**REQUESTED, "state": "equal", "position": LAST})),
    )
    outcome = sliceplane("projections", "verify")
    assert (outcome.code, outcome.out) == (
        0,
        "all tables are equal to the replayed ledger at position 20000\n",
    )


def different(code: str, *differences: Mapping[str, object]) -> dict[str, object]:
    """Return the API response of a projection verification with these differences and an advice with this code."""
    advice = {"code": code, "message": "text from the control plane"}
    return {
        **REQUESTED,
        "state": "different",
        "position": LAST,
        "differences": [*differences],
        "advice": advice,
    }


def test_projections_verify_prints_the_first_difference_of_each_table_with_key_and_both_values(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(VERIFY, document(REQUESTED, 202))
    plane.script(VERIFYING, document(different("rebuild", SLOT_DIFFERS)))
    plane.script(LIST, page(projection(), projection("holdings")))
    outcome = sliceplane("projections", "verify")
    assert outcome.code == 1
    assert "read.slot  first difference at slot_id=node-a/1" in outcome.out
    rows = [line.split() for line in outcome.out.splitlines()]
    assert ["state", "free", "claimed"] in rows
    assert ["allocation_id", "null", "alc-1"] in rows
    assert "1 table differs from the replayed ledger" in outcome.err
    assert "sliceplane projections rebuild slots" in outcome.err


@pytest.mark.parametrize("code", ["keep_evidence", "advice_of_a_newer_release"])
def test_projections_verify_of_a_changed_ledger_advises_to_copy_the_database_and_not_to_rebuild_or_skip(
    plane: ScriptedPlane, sliceplane: Run, code: str
) -> None:
    plane.script(VERIFY, document(REQUESTED, 202))
    plane.script(VERIFYING, document(different(code, HEAD_IS_MISSING, SLOT_DIFFERS)))
    outcome = sliceplane("projections", "verify")
    assert outcome.code == 1
    assert "ledger.head  the ledger was changed  first difference at stream_id=slot-node-a/1" in outcome.out
    assert "stream_id=slot-node-a/1: this row is missing" in outcome.out
    assert "2 tables differ from the replayed ledger" in outcome.err
    for part in (
        "text from the control plane",
        "copy the database",
        "only appends to the ledger may change ledger.head",
    ):
        assert part in outcome.err
    assert "sliceplane projections" not in outcome.err


def test_projections_verify_with_option_json_prints_the_differences_unchanged(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    found = different("rebuild", SLOT_DIFFERS)
    plane.script(VERIFY, document(REQUESTED, 202))
    plane.script(VERIFYING, document(found))
    plane.script(LIST, page(projection()))
    outcome = sliceplane("projections", "verify", "-o", "json")
    assert (outcome.code, outcome.document) == (1, found)
    assert json.loads(outcome.err)["exit_code"] == 1


def test_projections_verify_stopped_by_an_event_ends_with_code_5_and_the_position_of_the_event(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    stopped = {"projection": "slots", "position": 17, "error": "UnreadableEvent: slot.painted is not known"}
    plane.script(VERIFY, document(REQUESTED, 202))
    plane.script(VERIFYING, document({**REQUESTED, "state": "stopped", "stopped": stopped}))
    outcome = sliceplane("projections", "verify")
    assert outcome.code == 5
    assert "stopped at position 17, in slots: UnreadableEvent" in outcome.err
    assert "events list --after 16 --limit 1" in outcome.err


def test_projections_skip_and_retry_send_their_requests_and_print_the_projection(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("POST /v1/projections/slots/skip", document(projection(skipped=[17])))
    plane.script("POST /v1/projections/slots/retry", document(projection()))
    outcome = sliceplane("projections", "skip", "slots", "17", "--reason", "not ours")
    assert "skips events at these positions on request: 17" in outcome.out
    assert plane.received[0].body == b'{"position":17,"reason":"not ours"}'
    assert sliceplane("projections", "retry", "slots").code == 0


def test_refused_retry_of_a_projection_advises_to_list_projections(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    refusal = problem(409, "projection_not_stopped", "projection slots is not stopped")
    plane.script("POST /v1/projections/slots/retry", refusal)
    outcome = sliceplane("projections", "retry", "slots")
    assert outcome.code == 1
    assert "sliceplane projections list" in outcome.err


@pytest.mark.parametrize(
    ("columns", "progress"), [(32, ("slots", "80 %")), (120, ("rebuilding slots", "16,000 of 20,000"))]
)
def test_projections_rebuild_on_a_terminal_shows_progress_with_rate_and_then_the_result(
    plane: ScriptedPlane, environment: None, columns: int, progress: tuple[str, ...]
) -> None:
    steps = [rebuilding(position) for position in range(0, LAST, 4_000)]
    plane.script(LIST, *(page(each) for each in (projection(), *steps, projection())))
    plane.script(REBUILD_SLOTS, document(rebuilding(0), 202))
    code, shown = run_on_terminal(*SLICEPLANE, "projections", "rebuild", "slots", columns=columns)
    assert code == 0
    for part in (*progress, "events/s", "slots is rebuilt and live"):
        assert part in without_escapes(shown)


@pytest.mark.parametrize("columns", [30, 120])
def test_projections_verify_on_a_narrow_terminal_prints_complete_values(
    plane: ScriptedPlane, environment: None, columns: int
) -> None:
    found = different("rebuild", SLOT_DIFFERS)
    plane.script(VERIFY, document(REQUESTED, 202))
    plane.script(VERIFYING, document(found))
    plane.script(LIST, page(projection()))
    code, shown = run_on_terminal(*SLICEPLANE, "projections", "verify", columns=columns)
    assert code == 1
    for part in ("claimed", "alc-1", "free", "null"):
        assert part in without_escapes(shown)
