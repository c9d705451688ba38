"""How a command says that it did not do what was asked: exit code, reasons, what to do next."""

import json
from collections.abc import Callable

import pytest

from control_plane.version import release
from tests.cli.control_plane import Reply, ScriptedPlane, document, problem
from tests.cli.examples import ALLOCATION, allocation
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]
CREATE = ("allocations", "create", "--sku", "lab.small", "--no-wait")


@pytest.mark.parametrize(
    ("status", "code"), [(401, 3), (403, 3), (404, 1), (409, 1), (410, 1), (422, 1), (500, 4), (503, 4)]
)
def test_each_status_has_its_exit_code(plane: ScriptedPlane, sliceplane: Run, status: int, code: int) -> None:
    plane.answers("GET /v1/nodes", problem(status, "why", "because"))
    assert sliceplane("nodes", "list").code == code


def test_every_reason_is_shown_with_what_to_do_next(plane: ScriptedPlane, sliceplane: Run) -> None:
    more = ("unknown_image", "no image is named x", "/image")
    plane.answers("POST /v1/allocations", problem(404, "unknown_sku", "no SKU is named lab.small", more))
    outcome = sliceplane(*CREATE)
    assert outcome.code == 1
    assert outcome.out == ""
    assert "no SKU is named lab.small" in outcome.err
    assert "no image is named x (/image)" in outcome.err
    assert "sliceplane skus list" in outcome.err
    assert "req-1" in outcome.err


@pytest.mark.parametrize(
    "words",
    [
        ("nodes", "show", "lab-a/drift"),
        ("nodes", "show", ".."),
        ("nodes", "drift", ".."),
        ("nodes", "drift", ""),
        ("nodes", "revoke", "lab-a/slots/0", "--why", "to see"),
        ("slots", "approve", "lab-a/../0"),
        ("slots", "approve", "lab-a/.."),
        ("allocations", "show", f"{ALLOCATION}/events"),
        ("allocations", "release", f"{ALLOCATION}/ingress/ing-1"),
        ("allocations", "close", ALLOCATION, ".."),
        ("tasks", "watch", ".."),
        ("projections", "retry", "a/b"),
        ("history", "show", "node", "lab-a/changes"),
        ("history", "show", "slot", "lab-a/0/changes"),
        ("history", "show", "slot", "lab-a/.."),
    ],
)
def test_what_is_no_name_gets_no_other_routes_answer(
    plane: ScriptedPlane, sliceplane: Run, words: tuple[str, ...]
) -> None:
    outcome = sliceplane(*words)
    assert (outcome.code, plane.seen) == (2, [])
    assert "is no name of a" in outcome.err


def test_signs_that_mean_something_in_a_url_stand_for_themselves_in_a_name(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.answers("GET /v1/nodes/%3Fx%23y%252F", problem(404, "unknown_node", "no node is named '?x#y%2F'"))
    outcome = sliceplane("nodes", "show", "?x#y%2F")
    assert outcome.code == 1
    assert "no node is named '?x#y%2F'" in outcome.err


def test_a_program_gets_the_reasons_as_one_json_line(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("POST /v1/allocations", problem(409, "no_capacity", "there is none"))
    outcome = sliceplane(*CREATE, "--json")
    told = json.loads(outcome.err)
    assert outcome.out == ""
    assert told["reasons"] == [
        {"code": "no_capacity", "message": "there is none", "field": None, "parameter": None}
    ]
    assert told["exit_code"] == outcome.code == 1


def test_an_absent_control_plane_is_unreachable(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("GET /v1/nodes", Reply(lose=True))
    outcome = sliceplane("nodes", "list")
    assert outcome.code == 4
    assert plane.url in outcome.err


@pytest.mark.parametrize("reply", [Reply(b"<html>"), document({"items": 3}), Reply(b"<html>", 404)])
def test_a_stranger_on_the_port_is_no_control_plane(
    plane: ScriptedPlane, sliceplane: Run, reply: Reply
) -> None:
    plane.answers("GET /v1/nodes", reply)
    assert sliceplane("nodes", "list").code == 4


@pytest.mark.parametrize(
    "words",
    [
        ("allocations", "create"),
        ("allocations", "create", "--sku", "lab.small", "--lease", "soon"),
        ("allocations", "create", "--sku", "lab.small", "--label", "lonely"),
        ("allocations", "create", "--sku", "lab.small", "--ssh-key", "nowhere.pub"),
        ("slots", "approve", "0"),
        ("slots", "break-glass", "0", "--why", "to see"),
        ("slots", "readmit", "0", "--why", "to see"),
        ("nodes", "destroy"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_asked(
    plane: ScriptedPlane, sliceplane: Run, words: tuple[str, ...]
) -> None:
    assert sliceplane(*words).code == 2
    assert not plane.seen


def test_a_post_is_repeated_with_the_same_key_after_a_lost_connection(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.answers("POST /v1/allocations", Reply(lose=True), document(allocation("placed"), 202))
    assert sliceplane(*CREATE).code == 0
    first, second = plane.of("POST /v1/allocations")
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    assert first.body == second.body


def test_each_request_has_a_key_of_its_own(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("POST /v1/allocations", document(allocation("placed"), 202))
    sliceplane(*CREATE)
    sliceplane(*CREATE)
    first, second = plane.of("POST /v1/allocations")
    assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]


def test_later_is_waited_for(plane: ScriptedPlane, sliceplane: Run) -> None:
    busy = problem(409, "idempotency_key_busy", "still being answered", retry_after=0)
    plane.answers("POST /v1/allocations", busy, busy, document(allocation("placed"), 202))
    assert sliceplane(*CREATE).code == 0


def test_version_is_printed_without_a_control_plane(bare: Run) -> None:
    assert bare("--version") == Outcome(0, f"sliceplane {release()}\n", "")
