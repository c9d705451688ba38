"""Failed `sliceplane` commands: exit code, reasons and advice."""

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
def test_http_error_status_determines_the_exit_code(
    plane: ScriptedPlane, sliceplane: Run, status: int, code: int
) -> None:
    plane.script("GET /v1/nodes", problem(status, "reason", "because"))
    assert sliceplane("nodes", "list").code == code


def test_refused_create_shows_every_reason_with_advice_and_request_id(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    more = ("unknown_image", "no image is named x", "/image")
    plane.script("POST /v1/allocations", problem(404, "unknown_sku", "no SKU is named lab.small", more))
    outcome = sliceplane(*CREATE)
    assert outcome.code == 1
    assert outcome.out == ""
    assert "no SKU is named lab.small" in outcome.err
    assert "no image is named x (/image)" in outcome.err
    assert "sliceplane skus list" in outcome.err
    assert "req-1" in outcome.err


@pytest.mark.parametrize(("code", "shown"), [("new_code", True), ("unknown_node", False)])
def test_refusal_without_advice_of_the_command_line_shows_the_hint_of_the_control_plane(
    plane: ScriptedPlane, sliceplane: Run, code: str, shown: bool
) -> None:
    plane.script("GET /v1/nodes", problem(409, code, "because", hint="Change the state first."))
    assert ("Change the state first." in sliceplane("nodes", "list").err) is shown


@pytest.mark.parametrize(
    "words",
    [
        ("nodes", "show", "lab-a/drift"),
        ("nodes", "show", ".."),
        ("nodes", "drift", ".."),
        ("nodes", "drift", ""),
        ("nodes", "revoke", "lab-a/slots/0", "--reason", "to see"),
        ("slots", "approve", "lab-a/../0"),
        ("slots", "approve", "lab-a/.."),
        ("allocations", "show", f"{ALLOCATION}/events"),
        ("allocations", "release", f"{ALLOCATION}/ingress/ing-1"),
        ("allocations", "ingress", "remove", ALLOCATION, ".."),
        ("tasks", "watch", ".."),
        ("projections", "retry", "a/b"),
        ("history", "show", "node", "lab-a/changes"),
        ("history", "show", "slot", "lab-a/0/changes"),
        ("history", "show", "slot", "lab-a/.."),
    ],
)
def test_invalid_name_that_would_form_a_different_route_is_refused_without_a_request(
    plane: ScriptedPlane, sliceplane: Run, words: tuple[str, ...]
) -> None:
    outcome = sliceplane(*words)
    assert (outcome.code, plane.received) == (2, [])
    assert "is not a valid name of a" in outcome.err


def test_characters_with_a_meaning_in_urls_are_escaped_in_a_resource_name(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("GET /v1/nodes/%3Fx%23y%252F", problem(404, "unknown_node", "no node is named '?x#y%2F'"))
    outcome = sliceplane("nodes", "show", "?x#y%2F")
    assert outcome.code == 1
    assert "no node is named '?x#y%2F'" in outcome.err


def test_refusal_with_json_is_printed_as_one_json_line_with_reasons_and_exit_code(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("POST /v1/allocations", problem(409, "no_capacity", "there is none"))
    outcome = sliceplane(*CREATE, "-o", "json")
    printed = json.loads(outcome.err)
    assert outcome.out == ""
    assert printed["reasons"] == [
        {"code": "no_capacity", "message": "there is none", "field": None, "parameter": None}
    ]
    assert printed["exit_code"] == outcome.code == 1


def test_control_plane_that_closes_the_connection_is_reported_as_unreachable_with_code_4(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("GET /v1/nodes", Reply(lose=True))
    outcome = sliceplane("nodes", "list")
    assert outcome.code == 4
    assert plane.url in outcome.err


@pytest.mark.parametrize("reply", [Reply(b"<html>"), document({"items": 3}), Reply(b"<html>", 404)])
def test_response_that_is_not_from_a_control_plane_ends_the_command_with_code_4(
    plane: ScriptedPlane, sliceplane: Run, reply: Reply
) -> None:
    plane.script("GET /v1/nodes", reply)
    assert sliceplane("nodes", "list").code == 4


@pytest.mark.parametrize(
    "words",
    [
        ("allocations", "create"),
        ("allocations", "create", "--sku", "lab.small", "--lease", "soon"),
        ("allocations", "create", "--sku", "lab.small", "--label", "lonely"),
        ("allocations", "create", "--sku", "lab.small", "--ssh-key", "nowhere.pub"),
        ("slots", "approve", "0"),
        ("slots", "force-release", "0", "--reason", "to see"),
        ("slots", "readmit", "0", "--reason", "to see"),
        ("nodes", "destroy"),
    ],
)
def test_wrong_usage_of_the_command_line_ends_with_code_2_without_a_request(
    plane: ScriptedPlane, sliceplane: Run, words: tuple[str, ...]
) -> None:
    assert sliceplane(*words).code == 2
    assert not plane.received


def test_create_is_repeated_with_the_same_idempotency_key_after_a_lost_connection(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("POST /v1/allocations", Reply(lose=True), document(allocation("placed"), 202))
    assert sliceplane(*CREATE).code == 0
    first, second = plane.requests("POST /v1/allocations")
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    assert first.body == second.body


def test_two_create_commands_send_different_idempotency_keys(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    sliceplane(*CREATE)
    sliceplane(*CREATE)
    first, second = plane.requests("POST /v1/allocations")
    assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]


def test_create_is_retried_while_its_idempotency_key_is_in_use(plane: ScriptedPlane, sliceplane: Run) -> None:
    busy = problem(409, "idempotency_key_in_use", "still being answered", retry_after=0)
    plane.script("POST /v1/allocations", busy, busy, document(allocation("placed"), 202))
    assert sliceplane(*CREATE).code == 0


def test_version_option_of_the_command_line_prints_the_version_without_a_control_plane(
    unconfigured: Run,
) -> None:
    assert unconfigured("--version") == Outcome(0, f"sliceplane {release()}\n", "")
