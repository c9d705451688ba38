"""`sliceplane projections`: what people see while a read model is rebuilt or verified, and how each command ends."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from tests.cli.control_plane import Reply, ScriptedPlane, document, page, problem
from tests.cli.outcome import Outcome
from tests.cli.terminal import on_a_terminal, plain

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
    "asked_by": "key:a",
    "position": None,
    "upto": None,
}
ASKED: dict[str, object] = {
    **VERIFICATION,
    "state": "asked",
    "asked_at": "2026-01-02T03:04:05Z",
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
    order = {
        "ordered_at": "2026-01-02T03:04:05Z",
        "ordered_by": "key:a",
        "position": position,
        "stopped": None,
    }
    return projection(name, state="rebuilding", rebuild={**order, **changes})


def test_the_list_tells_where_each_is_and_what_stops_it(plane: ScriptedPlane, sliceplane: Run) -> None:
    holdings = projection("holdings", state="stopped", position=16, stopped=STOP, skipped=[3, 5])
    plane.answers(LIST, page(projection(), holdings))
    out = sliceplane("projections", "list").out
    for part in (
        "read.slot",
        "in the append",
        "16 (19984 behind)",
        "position 17: UnreadableEvent",
        "over 3, 5",
    ):
        assert part in out
    assert sliceplane("projections", "list", "--json").document == {
        "items": [projection(), holdings],
        "next_cursor": None,
    }


def test_a_rebuild_is_watched_until_it_is_swapped_in(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers(
        LIST, *(page(each) for each in (projection(), rebuilding(0), rebuilding(9_000), projection()))
    )
    plane.answers(REBUILD_SLOTS, document(rebuilding(0), 202))
    outcome = sliceplane("projections", "rebuild", "slots")
    assert outcome.code == 0
    assert "slots is rebuilt and live in" in outcome.err
    assert "read.slot" in outcome.out


def test_all_of_them_are_ordered_before_any_is_waited_for(plane: ScriptedPlane, sliceplane: Run) -> None:
    both = page(projection(), projection("holdings"))
    plane.answers(LIST, both, page(projection(), rebuilding(7, "holdings")), both)
    for name in ("slots", "holdings"):
        plane.answers(f"POST /v1/projections/{name}/rebuild", document(rebuilding(0, name), 202))
    outcome = sliceplane("projections", "rebuild", "--all", "--json")
    assert [seen.method for seen in plane.seen][:3] == ["GET", "POST", "POST"]
    assert outcome.document == {"items": [projection(), projection("holdings")], "next_cursor": None}
    assert outcome.err == ""


def test_the_rebuild_that_somebody_orders_next_is_not_waited_for(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.answers(LIST, page(projection()), page(rebuilding(4, ordered_at="2026-01-02T03:09:00Z")))
    plane.answers(REBUILD_SLOTS, document(rebuilding(0), 202))
    assert sliceplane("projections", "rebuild", "slots").code == 0


def test_an_event_that_stops_a_rebuild_is_told_at_once_with_what_to_do(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.answers(LIST, page(projection()), page(rebuilding(16, stopped=STOP)))
    plane.answers(REBUILD_SLOTS, document(rebuilding(0), 202))
    outcome = sliceplane("projections", "rebuild", "slots")
    assert outcome.code == 5
    for part in (
        "slots stopped at position 17: UnreadableEvent: slot.painted is not known",
        "sliceplane events list --after 16 --limit 1",
        "sliceplane projections retry slots",
        "sliceplane projections skip slots 17 --reason",
        "the live tables stay",
    ):
        assert part in outcome.err


def test_unknown_names_are_told_together_with_those_that_there_are(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.answers(LIST, page(projection(), projection("holdings")))
    outcome = sliceplane("projections", "rebuild", "slots", "slot", "nothing")
    assert outcome.code == 2
    assert "'slot', 'nothing'" in outcome.err
    assert "slots, holdings" in outcome.err
    assert not plane.of(REBUILD_SLOTS)


@pytest.mark.parametrize(
    "words",
    [
        ("rebuild",),
        ("rebuild", "slots", "--all"),
        ("skip", "slots", "17"),
        ("skip", "slots", "0", "--reason", "x"),
    ],
)
def test_wrong_usage_asks_nothing(plane: ScriptedPlane, sliceplane: Run, words: tuple[str, ...]) -> None:
    assert sliceplane("projections", *words).code == 2
    assert not plane.seen


def test_a_control_plane_that_restarts_is_waited_for(plane: ScriptedPlane, sliceplane: Run) -> None:
    away = [Reply(lose=True)] * 5
    plane.answers(LIST, page(projection()), page(rebuilding(4)), *away, page(projection()))
    plane.answers(REBUILD_SLOTS, document(rebuilding(0), 202))
    outcome = sliceplane("projections", "rebuild", "slots")
    assert outcome.code == 0
    assert "connected again" in outcome.err


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_ctrl_c_stops_the_watching_and_says_that_the_rebuild_goes_on(
    plane: ScriptedPlane, environment: None, flags: tuple[str, ...]
) -> None:
    plane.answers(LIST, page(projection()), page(rebuilding(4)))
    plane.answers(REBUILD_SLOTS, document(rebuilding(0), 202))
    words = [*SLICEPLANE, "projections", "rebuild", "slots", *flags]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    plane.await_request(LIST, 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert "stopped watching; the rebuild of slots goes on" in err
    assert "sliceplane projections list" in err
    assert "Traceback" not in err


def test_equal_tables_are_told_with_their_position(plane: ScriptedPlane, sliceplane: Run) -> None:
    running = {**ASKED, "state": "running", "position": 4_000, "upto": LAST}
    plane.answers(VERIFY, document(ASKED, 202))
    plane.answers(
        VERIFYING,
        *(document(each) for each in (ASKED, running, {**ASKED, "state": "equal", "position": LAST})),
    )
    outcome = sliceplane("projections", "verify")
    assert (outcome.code, outcome.out) == (0, "equal at position 20000\n")


def different(code: str, *differences: Mapping[str, object]) -> dict[str, object]:
    """The answer of a verification that found these, with this advice."""
    advice = {"code": code, "message": "words of the control plane"}
    return {
        **ASKED,
        "state": "different",
        "position": LAST,
        "differences": [*differences],
        "advice": advice,
    }


def test_the_first_difference_of_each_table_is_told_with_its_key_and_both_values(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.answers(VERIFY, document(ASKED, 202))
    plane.answers(VERIFYING, document(different("rebuild", SLOT_DIFFERS)))
    plane.answers(LIST, page(projection(), projection("holdings")))
    outcome = sliceplane("projections", "verify")
    assert outcome.code == 1
    assert "read.slot  first difference at slot_id=node-a/1" in outcome.out
    told = [line.split() for line in outcome.out.splitlines()]
    assert ["state", "free", "claimed"] in told
    assert ["allocation_id", "null", "alc-1"] in told
    assert "1 table not equal to the replayed ledger" in outcome.err
    assert "sliceplane projections rebuild slots" in outcome.err


@pytest.mark.parametrize("code", ["keep_evidence", "advice_of_a_newer_release"])
def test_advice_for_a_changed_ledger_is_to_keep_a_copy_and_never_to_rebuild_or_skip(
    plane: ScriptedPlane, sliceplane: Run, code: str
) -> None:
    plane.answers(VERIFY, document(ASKED, 202))
    plane.answers(VERIFYING, document(different(code, HEAD_IS_MISSING, SLOT_DIFFERS)))
    outcome = sliceplane("projections", "verify")
    assert outcome.code == 1
    assert "ledger.head  the ledger was changed  first difference at stream_id=slot-node-a/1" in outcome.out
    assert "stream_id=slot-node-a/1: this row is missing" in outcome.out
    assert "2 tables not equal to the replayed ledger" in outcome.err
    for part in (
        "words of the control plane",
        "copy the database",
        "ledger.head: written only by appends",
    ):
        assert part in outcome.err
    assert "sliceplane projections" not in outcome.err


def test_a_program_gets_the_differences_as_they_came(plane: ScriptedPlane, sliceplane: Run) -> None:
    found = different("rebuild", SLOT_DIFFERS)
    plane.answers(VERIFY, document(ASKED, 202))
    plane.answers(VERIFYING, document(found))
    plane.answers(LIST, page(projection()))
    outcome = sliceplane("projections", "verify", "--json")
    assert (outcome.code, outcome.document) == (1, found)
    assert json.loads(outcome.err)["exit_code"] == 1


def test_a_verification_that_cannot_go_on_names_the_event(plane: ScriptedPlane, sliceplane: Run) -> None:
    stopped = {"projection": "slots", "position": 17, "error": "UnreadableEvent: slot.painted is not known"}
    plane.answers(VERIFY, document(ASKED, 202))
    plane.answers(VERIFYING, document({**ASKED, "state": "stopped", "stopped": stopped}))
    outcome = sliceplane("projections", "verify")
    assert outcome.code == 5
    assert "stopped at position 17, in slots: UnreadableEvent" in outcome.err
    assert "events list --after 16 --limit 1" in outcome.err


def test_skipping_and_trying_again_are_asked_and_shown(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("POST /v1/projections/slots/skip", document(projection(skipped=[17])))
    plane.answers("POST /v1/projections/slots/retry", document(projection()))
    outcome = sliceplane("projections", "skip", "slots", "17", "--reason", "not ours")
    assert "passes over 17" in outcome.out
    assert plane.seen[0].body == b'{"position":17,"reason":"not ours"}'
    assert sliceplane("projections", "retry", "slots").code == 0


def test_a_refusal_says_where_to_look(plane: ScriptedPlane, sliceplane: Run) -> None:
    refusal = problem(409, "not_stopped", "projection slots is not stopped")
    plane.answers("POST /v1/projections/slots/retry", refusal)
    outcome = sliceplane("projections", "retry", "slots")
    assert outcome.code == 1
    assert "sliceplane projections list" in outcome.err


@pytest.mark.parametrize(
    ("columns", "way"), [(32, ("slots", "80 %")), (120, ("rebuilding slots", "16,000 of 20,000"))]
)
def test_a_terminal_shows_how_far_it_is_with_its_rate_and_then_the_result(
    plane: ScriptedPlane, environment: None, columns: int, way: tuple[str, ...]
) -> None:
    looks = [rebuilding(position) for position in range(0, LAST, 4_000)]
    plane.answers(LIST, *(page(each) for each in (projection(), *looks, projection())))
    plane.answers(REBUILD_SLOTS, document(rebuilding(0), 202))
    code, shown = on_a_terminal(*SLICEPLANE, "projections", "rebuild", "slots", columns=columns)
    assert code == 0
    for part in (*way, "events/s", "slots is rebuilt and live"):
        assert part in plain(shown)


@pytest.mark.parametrize("columns", [30, 120])
def test_a_narrow_terminal_cuts_no_value_of_a_difference(
    plane: ScriptedPlane, environment: None, columns: int
) -> None:
    found = different("rebuild", SLOT_DIFFERS)
    plane.answers(VERIFY, document(ASKED, 202))
    plane.answers(VERIFYING, document(found))
    plane.answers(LIST, page(projection()))
    code, shown = on_a_terminal(*SLICEPLANE, "projections", "verify", columns=columns)
    assert code == 1
    for part in ("claimed", "alc-1", "free", "null"):
        assert part in plain(shown)
