"""`sliceplane tasks`: what nodes are to do, and what an admin does about it."""

import json
import sys
from collections.abc import Callable

import pytest

from tests.cli.control_plane import Reply, ScriptedPlane, document, page, problem
from tests.cli.examples import ALLOCATION, COMING_UP, NODE, allocation, event
from tests.cli.outcome import Outcome
from tests.cli.terminal import on_a_terminal, plain

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
    "error": "AssertionError: it makes no sense",
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
                "evidence": [{"kind": "port.changed", "wanted": "number 1000", "found": "number 7"}],
            },
            {"aspect": "lease", "steps": ["lease.reserve"], "evidence": []},
        ],
    },
)
FAILED = task("failed", reason={"code": "host_unreadable", "message": "the switch did not answer"})


def told(*messages: tuple[str, dict[str, object]]) -> Reply:
    """A stream of events, and of messages that are none."""
    lines = [": welcome\n\n"]
    for kind, body in messages:
        cursor = f"id: 1.{body['position']}\n" if "position" in body else ""
        lines.append(f"{cursor}event: {kind}\ndata: {json.dumps(body)}\n\n")
    return Reply("".join(lines).encode(), headers={"Content-Type": "text/event-stream"})


def test_the_list_shows_whole_ids_states_and_reasons(plane: ScriptedPlane, sliceplane: Run) -> None:
    stuck = task(parked=PARKED, progress=STEP, cancelling=True, attempt=2)
    plane.answers("GET /v1/tasks", page(task(), FAILED, stuck))
    out = sliceplane("tasks", "list").out
    for part in (TASK, "drift.report", "lab-a/0", "the switch did not answer", "cancelling", "try 2"):
        assert part in out
    assert "parked: AssertionError: it makes no sense" in out
    assert "port (2 of 5)" in out


def test_what_is_picked_is_asked_for(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("GET /v1/tasks", page())
    picks = ("--node", "lab-a", "--slot", "lab-a/0", "--state", "failed", "--state", "refused")
    outcome = sliceplane("tasks", "list", *picks, "--kind", "slice.apply", "--allocation", ALLOCATION)
    assert outcome.out.strip() == "no tasks"
    query = "node=lab-a&slot=lab-a%2F0&allocation={}&state=failed&state=refused&kind=slice.apply&limit=50"
    assert plane.seen[0].path == f"/v1/tasks?{query.format(ALLOCATION)}"


def test_a_page_tells_what_came_of_it(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers(f"GET /v1/tasks/{TASK}", document(DONE))
    out = sliceplane("tasks", "show", TASK).out
    for part in (
        TASK,
        "done",
        "slot lab-a/0",
        ALLOCATION,
        "once, fetched 1 times, try 1",
        "port  port.delete_flows, port.add, port.set_flows",
    ):
        assert part in out


def test_asking_waits_and_shows_the_steps(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("POST /v1/tasks", document(task("due"), 202))
    plane.answers(f"GET /v1/tasks/{TASK}", document(task()), document(task()), document(DONE))
    asked, succeeded = event(1, "task.asked"), event(2, "task.succeeded")
    watch = told(("task.asked", asked), ("progress", STEP), ("progress", STEP), ("task.succeeded", succeeded))
    plane.answers(f"GET /v1/tasks/{TASK}/watch", watch)
    outcome = sliceplane("tasks", "ask", "drift.report", "lab-a/0")
    assert json.loads(plane.of("POST /v1/tasks")[0].body) == {"kind": "drift.report", "slot_id": "lab-a/0"}
    assert "done" in outcome.out
    assert outcome.err.count("port (2 of 5)") == 1, "a step is told once"
    assert "task.succeeded" in outcome.err


def test_a_node_is_asked_without_waiting(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("POST /v1/tasks", document(task("due"), 202))
    outcome = sliceplane("tasks", "ask", "node.verify", "lab-a", "--no-wait", "--json")
    assert json.loads(plane.seen[0].body) == {"kind": "node.verify", "node_id": "lab-a"}
    assert outcome.document == task("due")


def test_what_was_not_done_ends_with_code_5(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers(f"GET /v1/tasks/{TASK}", document(FAILED))
    outcome = sliceplane("tasks", "watch", TASK)
    assert outcome.code == 5
    assert "the switch did not answer" in outcome.err
    assert f"sliceplane tasks retry {TASK}" in outcome.err


@pytest.mark.parametrize("over", [{"kind": "slice.apply"}, {"state": "superseded"}])
def test_nobody_is_told_to_try_again_what_would_be_refused(
    plane: ScriptedPlane, sliceplane: Run, over: dict[str, str]
) -> None:
    plane.answers(f"GET /v1/tasks/{TASK}", document({**FAILED, **over}))
    outcome = sliceplane("tasks", "watch", TASK)
    assert outcome.code == 5
    assert "retry" not in outcome.err


def test_retry_and_cancel_show_how_it_stands(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers(f"POST /v1/tasks/{TASK}/retry", document(task("due"), 202))
    plane.answers(f"POST /v1/tasks/{TASK}/cancel", document(task("cancelled"), 202))
    assert "due" in sliceplane("tasks", "retry", TASK).out
    assert "cancelled" in sliceplane("tasks", "cancel", TASK).out
    assert all("Idempotency-Key" in seen.headers for seen in plane.seen)


def test_a_parked_stream_is_listed_and_looked_at_again(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("GET /v1/parked", page(PARKED), page())
    plane.answers(f"POST /v1/parked/allocation-{ALLOCATION}/retry", document(PARKED, 202))
    assert "it makes no sense" in sliceplane("tasks", "parked").out
    assert sliceplane("tasks", "parked").out.strip() == "nothing is parked"
    assert sliceplane("tasks", "retry", f"allocation-{ALLOCATION}").code == 0


def test_a_refusal_says_what_to_do(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers(f"POST /v1/tasks/{TASK}/retry", problem(404, "unknown_task", "there is no task"))
    outcome = sliceplane("tasks", "retry", TASK)
    assert outcome.code == 1
    assert "sliceplane tasks list" in outcome.err


@pytest.mark.usefixtures("environment")
def test_a_terminal_of_80_columns_cuts_no_id(plane: ScriptedPlane) -> None:
    plane.answers("GET /v1/tasks", page(task()))
    code, shown = on_a_terminal(sys.executable, "-m", "control_plane.cli", "tasks", "list", columns=80)
    assert code == 0
    assert TASK in plain(shown)


def test_waiting_for_an_allocation_shows_the_steps_of_its_node(plane: ScriptedPlane, sliceplane: Run) -> None:
    requested, placed, starting, ready, active = COMING_UP
    plane.answers("POST /v1/allocations", document(allocation("placed"), 202))
    messages = [
        *((str(each["type"]), each) for each in (requested, placed, starting)),
        ("progress", STEP),
        *((str(each["type"]), each) for each in (ready, active)),
    ]
    plane.answers(f"GET /v1/allocations/{ALLOCATION}/watch", told(*messages))
    plane.answers(f"GET /v1/allocations/{ALLOCATION}", document(allocation("active")))
    plane.answers("GET /v1/nodes/lab-a", document(NODE))
    outcome = sliceplane("allocations", "create", "--sku", "lab.small")
    assert outcome.code == 0
    assert "2.0 s  lab-a/0: port (2 of 5)" in outcome.err
