"""`sliceplane status`: readable output that names each failed check, and an exit code for scripts. `sliceplane paths
list`: a line per network path between Sliceplane's parts, and each warning once with its paths.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.control_plane import Reply, ScriptedPlane, document, page, problem
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]


def check(name: str, status: str = "ok", message: str = "fine", **figures: object) -> dict[str, Any]:
    none = dict.fromkeys(("latency_ms", "leads", "behind", "lag_seconds"))
    return {"name": name, "status": status, "message": message, **none, **figures}


POSTGRES, REDIS = check("postgres", latency_ms=0.4), check("redis", latency_ms=0.2)
FOLLOWERS = [check(name, leads=True, behind=0, lag_seconds=0.0) for name in ("dispatcher", "projector")]
COUNTS = {
    "nodes": {"enrolled": 3, "unreachable": 1},
    "slots": {"claimed": 2, "free": 5},
    "blocked_slots": {"by_reason": {"unreachable": 2, "cordoned": 1}, "by_sku": {"c1.small": 3}},
    "drift": {"open": 2, "blocking": 1},
    "tasks": {"failed": 1, "poisoned": 0, "refused": 0, "expired": 0, "parked": 4},
}


def readiness(*checks: dict[str, Any]) -> dict[str, Any]:
    ready = all(each["status"] == "ok" for each in checks)
    return {"status": "ready" if ready else "not_ready", "checks": [*checks]}


def script_status(plane: ScriptedPlane, *checks: dict[str, Any]) -> None:
    found = readiness(*checks)
    plane.script("GET /readyz", document(found, 200 if found["status"] == "ready" else 503))
    plane.script("GET /v1/status", document({**found, **COUNTS}))


def test_status_of_a_ready_control_plane_shows_its_measurements_and_ends_with_code_0(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    script_status(plane, POSTGRES, REDIS, *FOLLOWERS)
    done = sliceplane("status")
    assert (done.code, done.err) == (0, "")
    lines = {line.split("  ")[0]: line for line in done.out.splitlines()}
    assert "ready" in lines["control plane"]
    assert "responds in 0.4 ms" in lines["postgres"]
    assert "a process leads, lag 0.00 s" in lines["dispatcher"]
    assert "3 enrolled, 1 unreachable" in lines["nodes"]
    assert "2 claimed, 5 free" in lines["slots"]
    assert "3 of the free slots: 2 unreachable, 1 cordoned" in lines["blocked slots"]
    assert "2 open, 1 blocking placement" in lines["drift"]
    assert "1 failed, 4 parked" in lines["tasks"]


def test_status_with_a_failed_check_shows_the_message_of_the_check_and_ends_with_code_1(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    late = check("projector", "failed", "the projector is late", leads=True, behind=70, lag_seconds=65.0)
    script_status(plane, POSTGRES, REDIS, FOLLOWERS[0], late)
    done = sliceplane("status")
    assert done.code == 1
    assert "failed  the projector is late (a process leads, 70 positions behind, lag 1 min 5 s)" in done.out
    assert "not ready: projector" in done.err


def test_status_without_postgres_shows_the_checks_without_counts(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    down = check("postgres", "failed", "Postgres does not answer")
    unknown = [check(name, "unknown", "unknown") for name in ("dispatcher", "projector")]
    script_status(plane, down, REDIS, *unknown)
    done = sliceplane("status")
    assert done.code == 1
    assert "Postgres does not answer" in done.out
    assert "nodes" not in done.out
    assert plane.requests("GET /v1/status") == []


def test_status_of_an_unreachable_api_prints_one_sentence_and_ends_with_code_4(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    plane.script("GET /readyz", Reply(lose=True))
    done = sliceplane("status")
    assert (done.code, done.out) == (4, "")
    assert f"cannot reach the control plane at {plane.url}" in done.err


def test_status_of_a_server_that_is_not_a_control_plane_ends_with_code_4(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    plane.script("GET /readyz", Reply(b"<html>hello</html>"))
    assert sliceplane("status").code == 4


def test_status_with_a_wrong_key_ends_with_code_3(sliceplane: Run, plane: ScriptedPlane) -> None:
    plane.script("GET /readyz", document(readiness(POSTGRES, REDIS, *FOLLOWERS)))
    plane.script("GET /v1/status", problem(401, "unknown_key", "this API key is unknown"))
    assert sliceplane("status").code == 3


@pytest.mark.parametrize("failed", [False, True])
def test_status_as_json_is_one_document_and_keeps_the_exit_code(
    sliceplane: Run, plane: ScriptedPlane, *, failed: bool
) -> None:
    redis = check("redis", "failed", "Redis does not answer") if failed else REDIS
    script_status(plane, POSTGRES, redis, *FOLLOWERS)
    done = sliceplane("status", "-o", "json")
    assert done.code == int(failed)
    assert done.document == {**readiness(POSTGRES, redis, *FOLLOWERS), **COUNTS}


READABLE = "credentials and data cross the network in plaintext (10.0.0.5)"


def path(
    client: str, server: str, *warnings: str, encrypted: bool = True, survives: bool = True
) -> dict[str, object]:
    return {
        "client": client,
        "server": server,
        "address": "10.0.0.5:6380",
        "transport": "TLS" if encrypted else "TCP",
        "encrypted": encrypted,
        "credential": "user x, password",
        "survives_private_redis": survives,
        "warnings": list(warnings),
    }


def test_paths_list_prints_a_line_per_network_path_and_each_warning_once(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    first = path("api", "Redis", READABLE, encrypted=False)
    second = path("8 nodes", "Redis", READABLE, encrypted=False, survives=False)
    plane.script("GET /v1/paths", page(path("callers", "API"), first, second))
    outcome = sliceplane("paths", "list")
    assert outcome.code == 0
    lines = [line.split() for line in outcome.out.splitlines()]
    assert lines[0][:3] == ["FROM", "TO", "ADDRESS"]
    assert [line[0] for line in lines[1:]] == ["callers", "api", "8"]
    assert "fails" in lines[3]
    assert outcome.err.count(READABLE) == 1
    assert "[api to Redis, 8 nodes to Redis]" in outcome.err


def test_paths_list_with_json_prints_the_response_of_the_api_unchanged(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    items = [path("api", "Redis", READABLE)]
    plane.script("GET /v1/paths", page(*items))
    outcome = sliceplane("paths", "list", "-o", "json")
    assert json.loads(outcome.out)["items"] == items
    assert outcome.err == ""
