"""`--timeout` and `--no-wait` of the commands that wait: exit code 5, and a message about the work that continues."""

import time
from collections.abc import Callable

import pytest

from tests.cli.control_plane import ScriptedPlane, document, page, stream
from tests.cli.examples import ALLOCATION, PLACED, REQUESTED, allocation, event
from tests.cli.outcome import Outcome
from tests.cli.test_projections import LIST, REBUILD_SLOTS, VERIFY, VERIFYING, projection, rebuilding
from tests.cli.test_projections import REQUESTED as VERIFICATION

Run = Callable[..., Outcome]
PATH = f"/v1/allocations/{ALLOCATION}"
TASK = {"id": "t-1", "kind": "k", "state": "sent", "node_id": "n", "created_at": "2026-01-02T03:04:05Z"}


@pytest.fixture(autouse=True)
def endless(plane: ScriptedPlane) -> None:
    """Script a control plane with allocations, tasks, rebuilds and verifications that never end."""
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    plane.script(f"GET {PATH}/watch", stream(REQUESTED, PLACED, hold=True))
    plane.script(f"POST {PATH}/stop", document(allocation("stopping", version=8), 202))
    plane.script(f"POST {PATH}/start", document(allocation("starting", version=8), 202))
    plane.script(f"DELETE {PATH}", document(allocation("releasing", version=9), 202))
    plane.script("POST /v1/tasks", document(TASK, 202))
    plane.script("GET /v1/tasks/t-1", document(TASK))
    plane.script("GET /v1/tasks/t-1/watch", stream(event(1, "task.sent"), hold=True))
    plane.script(LIST, page(projection()), page(rebuilding(7)))
    plane.script(REBUILD_SLOTS, document(rebuilding(0), 202))
    plane.script(VERIFY, document(VERIFICATION, 202))
    plane.script(VERIFYING, document(VERIFICATION))


@pytest.mark.parametrize(
    ("words", "continues"),
    [
        (("allocations", "create", "--sku", "lab.small"), f"allocation {ALLOCATION} continues"),
        (("allocations", "stop", ALLOCATION), f"allocation {ALLOCATION} continues"),
        (("allocations", "start", ALLOCATION), f"allocation {ALLOCATION} continues"),
        (("allocations", "release", ALLOCATION, "--wait"), f"the release of {ALLOCATION} continues"),
        (("tasks", "create", "node.verify", "n"), "task t-1 continues"),
        (("tasks", "watch", "t-1"), "task t-1 continues"),
        (("projections", "rebuild", "slots"), "the rebuild of slots continues"),
        (("projections", "verify"), "the verification continues"),
    ],
)
def test_command_with_a_wait_that_times_out_ends_with_code_5_and_names_the_operation_that_continues(
    sliceplane: Run, words: tuple[str, ...], continues: str
) -> None:
    began = time.monotonic()
    done = sliceplane(*words, "--timeout", "1s")
    assert (done.code, done.out) == (5, ""), done.err
    assert f"because the time of --timeout is over; {continues}" in done.err
    assert "> " in done.err
    assert 1 <= time.monotonic() - began < 10


@pytest.mark.parametrize(
    "words",
    [
        ("allocations", "create", "--sku", "lab.small"),
        ("allocations", "stop", ALLOCATION),
        ("allocations", "start", ALLOCATION),
        ("allocations", "release", ALLOCATION),
        ("tasks", "create", "node.verify", "n"),
        ("projections", "rebuild", "slots"),
        ("projections", "verify"),
    ],
)
def test_command_with_option_no_wait_returns_after_its_request(
    plane: ScriptedPlane, sliceplane: Run, words: tuple[str, ...]
) -> None:
    done = sliceplane(*words, "--no-wait", "-o", "json")
    assert done.code == 0, done.err
    assert done.out
    assert plane.received[-1].method in {"POST", "DELETE"}


def test_timeout_that_is_not_a_duration_is_refused_without_a_request(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    done = sliceplane("allocations", "create", "--sku", "lab.small", "--timeout", "soon")
    assert (done.code, plane.received) == (2, [])
    assert "--timeout" in done.err
