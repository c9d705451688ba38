"""`sliceplane allocations`: create, stop, start, release, watch and list."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from control_plane.cli import waiting
from tests.cli.conftest import OWN_KEY
from tests.cli.control_plane import Reply, ScriptedPlane, document, page, problem, stream
from tests.cli.examples import (
    ACTIVE,
    ALLOCATION,
    BRING_UP,
    FAILED,
    NODE,
    PLACED,
    RELEASED,
    RELEASING,
    REMOVED,
    REQUESTED,
    STARTING,
    allocation,
    event,
)
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]
PATH = f"/v1/allocations/{ALLOCATION}"
CREATE = ("allocations", "create", "--sku", "lab.small")


def _script_create(plane: ScriptedPlane, *watched: Reply, then: dict[str, object]) -> None:
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    plane.script(f"GET {PATH}/watch", *watched)
    plane.script(f"GET {PATH}", document(then))
    plane.script("GET /v1/nodes/lab-a", document(NODE))


def test_allocations_create_waits_until_the_allocation_is_active(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    _script_create(plane, stream(*BRING_UP, hold=True), then=allocation())
    outcome = sliceplane(*CREATE)
    assert outcome.code == 0
    assert f"sliceplane ssh {ALLOCATION}" in outcome.out
    states = [line.split() for line in outcome.err.splitlines()[1:]]
    assert states == [
        ["0.00", "s", "requested"],
        ["0.00", "s", "placed"],
        ["0.25", "s", "provisioning"],
        ["5.0", "s", "active"],
    ]


def test_allocation_is_shown_to_a_caller_without_the_right_to_read_its_node(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(f"GET {PATH}", document(allocation()))
    plane.script("GET /v1/nodes/lab-a", problem(403, "role_missing", "callers may not read nodes"))
    outcome = sliceplane("allocations", "show", ALLOCATION)
    assert (outcome.code, outcome.err) == (0, "")
    assert "10.100.1.10:22" in outcome.out


def test_allocations_create_sends_its_options_in_the_request_body(
    plane: ScriptedPlane, sliceplane: Run, home: Path
) -> None:
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    further = home / "other.pub"
    further.write_text("# mine\nssh-rsa AAAA one\n\nssh-rsa BBBB two\n")
    words = ("--lease", "2h", "--count", "2", "--label", "team=a=b", "--ssh-key", str(further), "--no-wait")
    assert sliceplane(*CREATE, *words).code == 0
    assert json.loads(plane.received[0].body) == {
        "sku": "lab.small",
        "network_mode": "private-nat",
        "ssh_authorized_keys": ["ssh-rsa AAAA one", "ssh-rsa BBBB two"],
        "lease_seconds": 7200,
        "slot_count": 2,
        "labels": {"team": "a=b"},
    }


def test_allocations_create_with_option_no_replace_on_failure_sends_replace_on_failure_false(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    assert sliceplane(*CREATE, "--no-replace-on-failure", "--no-wait").code == 0
    assert json.loads(plane.received[0].body)["replace_on_failure"] is False


def test_replaced_allocation_is_shown_with_its_former_slots_and_the_reason_of_the_replacement(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    reason = {"code": "step_refused", "message": "machine.start: no free memory"}
    replaced = {"vacated": ["lab-b/0"], "reason": reason, "attempt": 2}
    plane.script(f"GET /v1/allocations/{ALLOCATION}", document(allocation(replaced=replaced)))
    plane.script("GET /v1/nodes/lab-a", document(NODE))
    shown = sliceplane("allocations", "show", ALLOCATION).out
    assert "lab-b/0, where its bring-up failed: machine.start: no free memory  [step_refused]" in " ".join(
        shown.split("\n")
    )


def test_create_of_an_allocation_without_an_ssh_key_option_sends_the_public_key_of_the_user(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    sliceplane(*CREATE, "--no-wait")
    assert json.loads(plane.received[0].body)["ssh_authorized_keys"] == [OWN_KEY]


def test_create_with_a_private_key_file_is_refused_and_sends_no_request(
    plane: ScriptedPlane, sliceplane: Run, home: Path
) -> None:
    secret = home / "id_ed25519"
    secret.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n")
    outcome = sliceplane(*CREATE, "--ssh-key", str(secret))
    assert outcome.code == 2
    assert f"{secret}.pub" in outcome.err
    assert not plane.received


def test_create_with_a_missing_ssh_key_file_names_option_and_file_and_states_how_to_create_a_key(
    plane: ScriptedPlane, sliceplane: Run, home: Path
) -> None:
    missing = home / "id_ed25519.pub"
    outcome = sliceplane(*CREATE, "--ssh-key", str(missing))
    assert outcome.code == 2
    text = " ".join(outcome.err.split())
    assert f"--ssh-key: the file {missing} does not exist" in text
    assert f"create a key: ssh-keygen -t ed25519 -f {home / 'id_ed25519'}" in text
    assert "omit --ssh-key" in text
    assert "Errno" not in text
    assert not plane.received


def test_create_with_an_unreadable_ssh_key_file_states_option_file_and_reason_once(
    plane: ScriptedPlane, sliceplane: Run, home: Path
) -> None:
    binary = home / "binary.pub"
    binary.write_bytes(b"\xff\xfe")
    for file, reason in ((home, "Is a directory"), (binary, "it is not a text file")):
        outcome = sliceplane(*CREATE, "--ssh-key", str(file))
        assert outcome.code == 2
        text = " ".join(outcome.err.split())
        assert f"--ssh-key: cannot read {file}: {reason}" in text
        assert text.count(f"{file}") == 1
    assert not plane.received


def test_allocations_create_with_option_json_prints_only_the_active_allocation(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    _script_create(plane, stream(*BRING_UP, hold=True), then={**allocation(), "from_a_newer_release": 1})
    outcome = sliceplane(*CREATE, "-o", "json")
    assert outcome.document == {**allocation(), "from_a_newer_release": 1}
    assert outcome.err == ""


def test_create_of_an_allocation_that_fails_ends_with_code_5_and_the_reason(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    reason = {"code": "deadline_missed", "message": "not ready: lab-a/0"}
    failed = allocation("failed", reason=reason, endpoints=[], lease=None)
    _script_create(plane, stream(REQUESTED, PLACED, STARTING, FAILED, hold=True), then=failed)
    outcome = sliceplane(*CREATE)
    assert outcome.code == 5
    assert "not ready: lab-a/0 [deadline_missed]" in outcome.err
    assert f"sliceplane allocations events {ALLOCATION}" in outcome.err


def test_create_that_loses_its_watch_connection_reconnects_after_the_last_event(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    _script_create(
        plane,
        stream(REQUESTED, PLACED),
        Reply(lose=True),
        stream(STARTING, ACTIVE, hold=True),
        then=allocation(),
    )
    outcome = sliceplane(*CREATE)
    assert outcome.code == 0
    assert "connection lost" in outcome.err
    assert "reconnected" in outcome.err
    assert [request.headers.get("Last-Event-ID") for request in plane.requests(f"GET {PATH}/watch")] == [
        None,
        "1.2",
        "1.2",
    ]


def test_release_without_wait_shows_the_allocation_as_releasing(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(f"DELETE {PATH}", document(allocation("releasing"), 202))
    outcome = sliceplane("allocations", "release", ALLOCATION)
    assert outcome.code == 0
    assert "releasing" in outcome.out


def test_release_with_wait_returns_after_the_allocation_is_released(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(f"DELETE {PATH}", document(allocation("releasing"), 202))
    plane.script(f"GET {PATH}/watch", stream(*BRING_UP, RELEASING, REMOVED, RELEASED, hold=True))
    plane.script(f"GET {PATH}", document(allocation("released")))
    outcome = sliceplane("allocations", "release", ALLOCATION, "--wait", "-o", "json")
    assert outcome.code == 0
    assert outcome.document == allocation("released")


def test_release_with_wait_shows_only_states_since_the_release(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script(f"DELETE {PATH}", document(allocation("releasing", version=9), 202))
    plane.script(f"GET {PATH}/watch", stream(*BRING_UP, RELEASING, REMOVED, RELEASED, hold=True))
    plane.script(f"GET {PATH}", document(allocation("released")))
    outcome = sliceplane("allocations", "release", ALLOCATION, "--wait")
    assert [line.split() for line in outcome.err.splitlines()] == [
        ["0.00", "s", "releasing"],
        ["1.5", "s", "released"],
    ]
    assert "until" not in outcome.out


UNREACHABLE = {
    "code": "node_unreachable",
    "message": "node lab-a is unreachable: the node's last heartbeat came at 2026-01-02T03:04:05Z",
    "node_id": "lab-a",
    "since": "2026-01-02T03:04:05Z",
}


def test_release_with_wait_shows_a_node_that_does_not_respond_once(
    plane: ScriptedPlane, sliceplane: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "CONDITIONS_SECONDS", 0.05)
    plane.script(f"DELETE {PATH}", document(allocation("releasing"), 202))
    plane.script(f"GET {PATH}/watch", stream(*BRING_UP, RELEASING, hold=True))
    plane.script(f"GET {PATH}", document(allocation("releasing", conditions=[UNREACHABLE])))
    outcome = sliceplane("allocations", "release", ALLOCATION, "--wait", "--timeout", "2s")
    assert outcome.code == 5
    assert outcome.err.count("node lab-a is unreachable") == 1
    assert len(plane.requests(f"GET {PATH}")) > 1


def test_wait_shows_that_the_nodes_respond_again(
    plane: ScriptedPlane, sliceplane: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "CONDITIONS_SECONDS", 0.05)
    plane.script(f"DELETE {PATH}", document(allocation("releasing"), 202))
    plane.script(f"GET {PATH}/watch", stream(*BRING_UP, RELEASING, hold=True))
    found = allocation("releasing", conditions=[UNREACHABLE])
    plane.script(f"GET {PATH}", document(found), document(allocation("releasing", conditions=[])))
    outcome = sliceplane("allocations", "release", ALLOCATION, "--wait", "--timeout", "2s")
    assert outcome.err.index("is unreachable") < outcome.err.index(
        "all nodes of the allocation respond again"
    )


PREVIEW = "POST /v1/placements/preview"
EXPLAIN = (*CREATE, "--explain")


def test_explain_of_an_allocation_that_would_be_placed_ends_with_code_0_and_creates_nothing(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(PREVIEW, document({"sku": "lab.small", "slots": ["lab-a/0"]}))
    outcome = sliceplane(*EXPLAIN)
    assert (outcome.code, outcome.err) == (0, "")
    assert "lab-a/0" in outcome.out
    assert [each.route for each in plane.received] == [PREVIEW]


def test_explain_of_an_allocation_that_would_not_be_placed_prints_the_preview_and_ends_with_code_1(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    reason = {"code": "no_capacity", "message": "no schedulable node has a free slot", "field": None}
    found = {"sku": None, "slots": [], "reasons": [reason]}
    plane.script(PREVIEW, document(found))
    outcome = sliceplane(*EXPLAIN, "-o", "json")
    assert (outcome.code, outcome.document) == (1, found)
    assert "would not be placed now: no_capacity" in outcome.err


def test_explain_of_a_request_that_the_control_plane_refuses_ends_with_the_code_of_that_refusal(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(PREVIEW, problem(422, "unknown_sku", "no SKU is named lab.small"))
    assert sliceplane(*EXPLAIN).code == 1


def test_explain_by_a_user_without_an_ssh_key_creates_none(
    plane: ScriptedPlane, sliceplane: Run, home: Path
) -> None:
    (home / ".ssh/id_ed25519.pub").unlink()
    (home / ".ssh").rmdir()
    plane.script(PREVIEW, document({"sku": "lab.small", "slots": ["lab-a/0"]}))
    outcome = sliceplane(*EXPLAIN)
    assert (outcome.code, outcome.err) == (0, "")
    assert not (home / ".ssh").exists()
    [key] = json.loads(plane.received[0].body)["ssh_authorized_keys"]
    assert key.startswith("ssh-ed25519 AAAA")


STOPPING = event(12, "allocation.stopping", 30.0)
HAVE_STOPPED = (
    event(13, "allocation.slice_stopped", 31.0, slot_id="lab-a/0", forced=False),
    event(14, "allocation.stopped", 31.0),
)
HAVE_RESTARTED = (event(15, "allocation.starting", 40.0), event(16, "allocation.activated", 44.0))


def _script_stop_or_start(
    plane: ScriptedPlane,
    verb: str,
    transitional_state: str,
    since: int,
    *watched: dict[str, object],
    final: dict[str, object],
) -> None:
    plane.script(f"POST {PATH}/{verb}", document(allocation(transitional_state, version=since), 202))
    plane.script(f"GET {PATH}/watch", stream(*BRING_UP, STOPPING, *HAVE_STOPPED, *watched, hold=True))
    plane.script(f"GET {PATH}", document(final))
    plane.script("GET /v1/nodes/lab-a", document(NODE))


def test_stop_of_an_allocation_waits_until_it_is_stopped_and_shows_only_states_since_the_stop(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    _script_stop_or_start(plane, "stop", "stopping", 12, final=allocation("stopped"))
    outcome = sliceplane("allocations", "stop", ALLOCATION)
    assert outcome.code == 0
    assert [line.split() for line in outcome.err.splitlines()[1:]] == [
        ["0.00", "s", "stopping"],
        ["1.0", "s", "stopped"],
    ]
    assert "stopped" in outcome.out


def test_start_waits_until_the_allocation_is_active_again(plane: ScriptedPlane, sliceplane: Run) -> None:
    _script_stop_or_start(plane, "start", "starting", 15, *HAVE_RESTARTED, final=allocation())
    outcome = sliceplane("allocations", "start", ALLOCATION)
    assert outcome.code == 0
    assert [line.split() for line in outcome.err.splitlines()[1:]] == [
        ["0.00", "s", "starting"],
        ["4.0", "s", "active"],
    ]
    assert f"sliceplane ssh {ALLOCATION}" in outcome.out


def test_start_of_an_allocation_that_then_fails_ends_with_code_5_and_the_reason(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    reason = {"code": "deadline_missed", "message": "not ready: lab-a/0"}
    _script_stop_or_start(
        plane,
        "start",
        "starting",
        15,
        HAVE_RESTARTED[0],
        event(16, "allocation.failed", 50.0, reason=reason),
        final=allocation("failed", reason=reason),
    )
    outcome = sliceplane("allocations", "start", ALLOCATION)
    assert outcome.code == 5
    assert "not ready: lab-a/0 [deadline_missed]" in outcome.err


def test_start_of_an_allocation_that_already_restarts_waits_until_it_is_active(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    interrupted = event(12, "allocation.slice_interrupted", 30.0, slot_id="lab-a/0")
    activated = event(13, "allocation.activated", 36.0)
    plane.script(f"POST {PATH}/start", document(allocation("starting", version=12), 202))
    plane.script(f"GET {PATH}/watch", stream(*BRING_UP, interrupted, activated, hold=True))
    plane.script(f"GET {PATH}", document(allocation()))
    plane.script("GET /v1/nodes/lab-a", document(NODE))
    outcome = sliceplane("allocations", "start", ALLOCATION)
    assert outcome.code == 0
    assert [line.split() for line in outcome.err.splitlines()[1:]] == [
        ["0.00", "s", "starting"],
        ["6.0", "s", "active"],
    ]


def test_stop_of_a_stopped_allocation_returns_at_once(plane: ScriptedPlane, sliceplane: Run) -> None:
    _script_stop_or_start(plane, "stop", "stopped", 14, final=allocation("stopped"))
    outcome = sliceplane("allocations", "stop", ALLOCATION)
    assert outcome.code == 0
    assert [line.split() for line in outcome.err.splitlines()[1:]] == [["0.00", "s", "stopped"]]


def test_stop_command_ends_with_code_5_and_the_reason_if_the_allocation_fails_meanwhile(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    reason = {"code": "deadline_missed", "message": "not stopped: lab-a/0"}
    plane.script(f"POST {PATH}/stop", document(allocation("stopping", version=12), 202))
    failed = event(13, "allocation.failed", 50.0, reason=reason)
    plane.script(f"GET {PATH}/watch", stream(*BRING_UP, STOPPING, failed, hold=True))
    plane.script(f"GET {PATH}", document(allocation("failed", reason=reason)))
    outcome = sliceplane("allocations", "stop", ALLOCATION)
    assert outcome.code == 5
    assert "not stopped: lab-a/0 [deadline_missed]" in outcome.err


def test_stop_with_option_no_wait_returns_while_the_allocation_is_stopping(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(f"POST {PATH}/stop", document(allocation("stopping"), 202))
    outcome = sliceplane("allocations", "stop", ALLOCATION, "--no-wait")
    assert outcome.code == 0
    assert "stopping" in outcome.out


def test_watch_of_an_allocation_prints_each_event_once_and_ends_when_the_allocation_is_released(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    first, rest = stream(*BRING_UP), stream(ACTIVE, RELEASING, REMOVED, RELEASED, hold=True)
    plane.script(f"GET {PATH}/watch", first, rest)
    outcome = sliceplane("allocations", "watch", ALLOCATION, "-o", "json")
    assert outcome.code == 0
    printed = [json.loads(line) for line in outcome.out.splitlines()]
    assert printed == [*BRING_UP, RELEASING, REMOVED, RELEASED]


def test_watch_of_a_failed_allocation_ends_after_its_slices_are_removed(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(f"GET {PATH}/watch", stream(REQUESTED, PLACED, FAILED, REMOVED, hold=True))
    plane.script(f"GET {PATH}", document(allocation("failed")))
    outcome = sliceplane("allocations", "watch", ALLOCATION)
    assert outcome.code == 5
    assert "allocation.slice_removed" in outcome.out


def test_watch_of_a_failed_allocation_ends_after_its_last_slice_removal_is_overridden(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    overridden = {**REMOVED, "type": "allocation.slice_removal_overridden"}
    plane.script(f"GET {PATH}/watch", stream(REQUESTED, PLACED, FAILED, overridden, hold=True))
    plane.script(f"GET {PATH}", document(allocation("failed")))
    assert sliceplane("allocations", "watch", ALLOCATION).code == 5


def test_allocation_events_are_listed_with_type_actor_and_reason(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(f"GET {PATH}/events", page(REQUESTED, PLACED, next_cursor="2"), page(STARTING))
    outcome = sliceplane("allocations", "events", ALLOCATION)
    assert [line.split()[4] for line in outcome.out.splitlines()] == [
        "allocation.requested",
        "allocation.placed",
        "allocation.slice_starting",
    ]
    assert "by key:admin (POST /v1/allocations req-1)" in outcome.out
    assert plane.received[1].path.endswith("?cursor=2")


def test_allocation_list_requests_pages_only_up_to_its_limit(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/allocations", page(allocation(), allocation(), next_cursor="1"), page(allocation()))
    outcome = sliceplane("allocations", "list", "--limit", "3", "-o", "json")
    assert outcome.document == {"items": [allocation()] * 3, "next_cursor": None}
    assert [request.path for request in plane.received] == [
        "/v1/allocations?limit=3",
        "/v1/allocations?cursor=1&limit=1",
    ]


def test_allocation_list_as_json_that_is_cut_by_its_limit_includes_the_next_cursor(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("GET /v1/allocations", page(allocation(), next_cursor="1"))
    outcome = sliceplane("allocations", "list", "--limit", "1", "-o", "json")
    assert outcome.document == {"items": [allocation()], "next_cursor": "1"}
    assert outcome.err == ""


def test_create_of_an_allocation_sends_the_name_of_a_node_only_if_the_node_option_is_given(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    assert sliceplane("allocations", "create", "--sku", "s", "--no-wait", "--node", "lab-a").code == 0
    assert sliceplane("allocations", "create", "--sku", "s", "--no-wait").code == 0
    named, unnamed = (json.loads(request.body) for request in plane.requests("POST /v1/allocations"))
    assert (named["node"], "node" in unnamed) == ("lab-a", False)


def test_create_sends_how_long_and_with_which_priority_the_allocation_waits_for_capacity(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    for _ in range(3):
        plane.script("POST /v1/allocations", document(allocation("waiting", slots=[], lease=None), 202))
    waits = ("--no-wait", "--wait-for-capacity")
    assert sliceplane(*CREATE, *waits, "30m", "--priority", "-5").code == 0
    assert sliceplane(*CREATE, *waits, "default").code == 0
    assert sliceplane(*CREATE, "--no-wait").code == 0
    bodies = [json.loads(request.body) for request in plane.requests("POST /v1/allocations")]
    sent = [body.get("wait_for_capacity") for body in bodies]
    assert sent == [{"wait_seconds": 1800, "priority": -5}, {}, None]
    assert sliceplane(*CREATE, "--priority", "1").code == 2


def _script_log(plane: ScriptedPlane, text: str, **fields: object) -> None:
    log = {"allocation_id": ALLOCATION, "slot_id": "lab-a/0", "node_id": "lab-a", "truncated": False}
    plane.script(f"GET {PATH}/serial-log", document({**log, "text": text, "kept_bytes": len(text), **fields}))


def test_serial_log_is_printed_without_wrapping_and_without_control_characters(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    long = "x" * 300
    _script_log(plane, f"{long}\r\n\x1b]0;title\x07\x9bred\n", truncated=True)
    outcome = sliceplane("allocations", "serial-log", ALLOCATION, "--slot", "1", "--tail", "20")
    assert outcome.out == f"{long}\n]0;titlered\n"
    assert "older output of lab-a/0 is left out" in outcome.err
    assert plane.received[0].path.endswith("/serial-log?slot=1&tail=20")


def test_empty_serial_log_is_stated_on_stderr(plane: ScriptedPlane, sliceplane: Run) -> None:
    _script_log(plane, "")
    outcome = sliceplane("allocations", "serial-log", ALLOCATION)
    assert (outcome.code, outcome.out) == (0, "")
    assert "the serial log of lab-a/0 is empty" in outcome.err
