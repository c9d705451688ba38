"""`sliceplane tasks`: inspect, create, watch, retry and cancel node tasks."""

import json
import sys
from collections.abc import Callable

import pytest

from tests.cli.control_plane import Reply, ScriptedPlane, document, page, problem
from tests.cli.examples import ALLOCATION, BRING_UP, NODE, allocation, event
from tests.cli.outcome import Outcome
from tests.cli.terminal import run_on_terminal, without_escapes

Run = Callable[..., Outcome]
TASK = "01936c3e-7b21-7c40-8a5b-2f1d9c7e4a10"
STEP = {
    "task_id": TASK,
    "slot_id": "lab-a/0",
    "step": "port",
    "number": 2,
    "of": 5,
    "at": "2026-01-02T03:04:02Z",
}
PARKED = {
    "stream": f"allocation-{ALLOCATION}",
    "since": "2026-01-02T03:04:00Z",
    "error": "AssertionError: inconsistent history",
    "next_look_at": "2026-01-02T03:04:30Z",
}


def task(state: str = "sent", **changes: object) -> dict[str, object]:
    return {
        "id": TASK,
        "kind": "drift.report",
        "state": state,
        "node_id": "lab-a",
        "slot_id": "lab-a/0",
        "allocation_id": ALLOCATION,
        "attempt": 1,
        "cancelling": False,
        "sends": 1,
        "deliveries": 1,
        "created_at": "2026-01-02T03:04:00Z",
        "sent_at": "2026-01-02T03:04:00Z",
        "due_at": "2026-01-02T03:04:05Z",
        "ended_at": None,
        "reason": None,
        "result": None,
        "progress": None,
        "parked": None,
        **changes,
    }


DONE = task(
    "done",
    result={
        "kind": "drift.report",
        "drift": [
            {
                "aspect": "port",
                "steps": ["port.delete_flows", "port.add", "port.set_flows"],
                "evidence": [{"kind": "port.changed", "desired": "number 1000", "observed": "number 7"}],
            },
            {"aspect": "lease", "steps": ["lease.reserve"], "evidence": []},
        ],
    },
)
FAILED = task("failed", reason={"code": "host_unreadable", "message": "the switch did not answer"})


def stream_of(*messages: tuple[str, dict[str, object]]) -> Reply:
    """Return a server-sent event stream of events, which have a position, and progress messages, which have none."""
    lines = [": welcome\n\n"]
    for kind, body in messages:
        cursor = f"id: 1.{body['position']}\n" if "position" in body else ""
        lines.append(f"{cursor}event: {kind}\ndata: {json.dumps(body)}\n\n")
    return Reply("".join(lines).encode(), headers={"Content-Type": "text/event-stream"})


def test_tasks_list_prints_complete_ids_states_and_reasons(plane: ScriptedPlane, sliceplane: Run) -> None:
    stuck = task(parked=PARKED, progress=STEP, cancelling=True, attempt=2)
    plane.script("GET /v1/tasks", page(task(), FAILED, stuck))
    out = sliceplane("tasks", "list").out
    for part in (TASK, "drift.report", "lab-a/0", "the switch did not answer", "cancelling", "attempt 2"):
        assert part in out
    assert "parked: AssertionError: inconsistent history" in out
    assert "port (2 of 5)" in out


def test_task_filters_are_sent_as_query_parameters(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/tasks", page())
    filters = ("--node", "lab-a", "--slot", "lab-a/0", "--state", "failed", "--state", "refused")
    outcome = sliceplane("tasks", "list", *filters, "--kind", "slice.apply", "--allocation", ALLOCATION)
    assert outcome.out.strip() == "no tasks"
    query = "node=lab-a&slot=lab-a%2F0&allocation={}&state=failed&state=refused&kind=slice.apply&limit=50"
    assert plane.received[0].path == f"/v1/tasks?{query.format(ALLOCATION)}"


def test_show_of_a_finished_task_prints_its_target_attempts_and_result(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(f"GET /v1/tasks/{TASK}", document(DONE))
    out = sliceplane("tasks", "show", TASK).out
    for part in (
        TASK,
        "done",
        "slot lab-a/0",
        ALLOCATION,
        "once, fetched once, attempt 1",
        "port  port.delete_flows, port.add, port.set_flows",
    ):
        assert part in out


def test_printed_records_of_a_task_result_begin_with_their_kind_and_have_no_empty_fields(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    evidence = {"desired": "port 1000", "ingress_id": None, "kind": "port.absent", "observed": "no port"}
    drift = {"aspect": "port", "evidence": [evidence], "steps": ["port.add"]}
    result = {"drift": [drift], "kind": "drift.report"}
    plane.script(f"GET /v1/tasks/{TASK}", document(task("done", result=result)))
    lines = [" ".join(line.split()) for line in sliceplane("tasks", "show", TASK).out.splitlines()]
    assert lines[-2:] == ["drift port port.add", "port.absent port 1000 no port"]


def test_printed_checks_of_a_task_result_begin_with_their_name(plane: ScriptedPlane, sliceplane: Run) -> None:
    check = {"detail": "bridge br-slice", "name": "switch", "ok": True}
    result = {"checks": [check], "kind": "node.verify"}
    plane.script(f"GET /v1/tasks/{TASK}", document(task("done", result=result)))
    last = sliceplane("tasks", "show", TASK).out.splitlines()[-1]
    assert " ".join(last.split()) == "checks switch bridge br-slice ok"


def test_create_of_a_task_waits_and_prints_each_step_once(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("POST /v1/tasks", document(task("due"), 202))
    plane.script(f"GET /v1/tasks/{TASK}", document(task()), document(task()), document(DONE))
    requested, succeeded = event(1, "task.requested"), event(2, "task.succeeded")
    watch = stream_of(
        ("task.requested", requested), ("progress", STEP), ("progress", STEP), ("task.succeeded", succeeded)
    )
    plane.script(f"GET /v1/tasks/{TASK}/watch", watch)
    outcome = sliceplane("tasks", "create", "drift.report", "lab-a/0")
    assert json.loads(plane.requests("POST /v1/tasks")[0].body) == {
        "kind": "drift.report",
        "slot_id": "lab-a/0",
    }
    assert "done" in outcome.out
    assert outcome.err.count("port (2 of 5)") == 1, "a repeated step must be printed once"
    assert "task.succeeded" in outcome.err


def test_create_of_a_node_task_with_option_no_wait_returns_before_the_task_is_sent(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("POST /v1/tasks", document(task("due"), 202))
    outcome = sliceplane("tasks", "create", "node.verify", "lab-a", "--no-wait", "-o", "json")
    assert json.loads(plane.received[0].body) == {"kind": "node.verify", "node_id": "lab-a"}
    assert outcome.document == task("due")


def test_watch_of_a_failed_task_ends_with_code_5_the_reason_and_advice_to_retry(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(f"GET /v1/tasks/{TASK}", document(FAILED))
    outcome = sliceplane("tasks", "watch", TASK)
    assert outcome.code == 5
    assert "the switch did not answer" in outcome.err
    assert f"sliceplane tasks retry {TASK}" in outcome.err


@pytest.mark.parametrize("changes", [{"kind": "slice.apply"}, {"state": "superseded"}])
def test_watch_of_a_task_that_cannot_be_retried_gives_no_advice_to_retry(
    plane: ScriptedPlane, sliceplane: Run, changes: dict[str, str]
) -> None:
    plane.script(f"GET /v1/tasks/{TASK}", document({**FAILED, **changes}))
    outcome = sliceplane("tasks", "watch", TASK)
    assert outcome.code == 5
    assert "retry" not in outcome.err


def test_retry_and_cancel_of_a_task_print_the_new_state_and_send_idempotency_keys(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(f"POST /v1/tasks/{TASK}/retry", document(task("due"), 202))
    plane.script(f"POST /v1/tasks/{TASK}/cancel", document(task("cancelled"), 202))
    assert "due" in sliceplane("tasks", "retry", TASK).out
    assert "cancelled" in sliceplane("tasks", "cancel", TASK).out
    assert all("Idempotency-Key" in request.headers for request in plane.received)


def test_ledger_stream_parked_after_an_error_is_listed_until_it_is_retried(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("GET /v1/parked", page(PARKED), page())
    plane.script(f"POST /v1/parked/allocation-{ALLOCATION}/retry", document(PARKED, 202))
    assert "inconsistent history" in sliceplane("tasks", "parked").out
    assert sliceplane("tasks", "parked").out.strip() == "no parked streams"
    assert sliceplane("tasks", "retry", f"allocation-{ALLOCATION}").code == 0


def test_refused_retry_of_a_task_advises_to_list_tasks(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script(f"POST /v1/tasks/{TASK}/retry", problem(404, "unknown_task", "there is no task"))
    outcome = sliceplane("tasks", "retry", TASK)
    assert outcome.code == 1
    assert "sliceplane tasks list" in outcome.err


@pytest.mark.usefixtures("environment")
def test_tasks_list_on_a_terminal_of_80_columns_prints_complete_ids(plane: ScriptedPlane) -> None:
    plane.script("GET /v1/tasks", page(task()))
    code, shown = run_on_terminal(sys.executable, "-m", "control_plane.cli", "tasks", "list", columns=80)
    assert code == 0
    assert TASK in without_escapes(shown)


def test_create_of_an_allocation_prints_the_steps_of_its_node_while_it_waits(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    requested, placed, starting, ready, active = BRING_UP
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    messages = [
        *((str(each["type"]), each) for each in (requested, placed, starting)),
        ("progress", STEP),
        *((str(each["type"]), each) for each in (ready, active)),
    ]
    plane.script(f"GET /v1/allocations/{ALLOCATION}/watch", stream_of(*messages))
    plane.script(f"GET /v1/allocations/{ALLOCATION}", document(allocation("active")))
    plane.script("GET /v1/nodes/lab-a", document(NODE))
    outcome = sliceplane("allocations", "create", "--sku", "lab.small")
    assert outcome.code == 0
    assert "2.0 s  lab-a/0: port (2 of 5)" in outcome.err
