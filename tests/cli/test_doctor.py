"""`sliceplane doctor`: a line for each check with what to do, and an exit code for scripts."""

import json
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from control_plane.cli import diagnosis
from control_plane.cli.diagnosis import Verdict
from control_plane.client.access_answers import Caller
from control_plane.version import release
from deploy.embedded.certificates import ensure
from tests.cli.conftest import KEY
from tests.cli.control_plane import Reply, ScriptedPlane, document, page, problem, running_plane
from tests.cli.outcome import Outcome
from tests.cli.test_status import COUNTS, FOLLOWERS, POSTGRES, REDIS, check, readiness
from tests.servers.plane import ADMIN_KEY, RunningPlane
from tests.waiting import until

Run = Callable[..., Outcome]
ADMIN = {"actor": "key:root-1", "role": "admin", "scopes": ["fleet:read", "tasks:read"], "projects": None}
QUIET = {
    "nodes": {"enrolled": 2},
    "drift": {"open": 0, "blocking": 0},
    "tasks": {"failed": 0, "parked": 0},
}
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def task(age: float) -> dict[str, Any]:
    created = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    return {"id": "t", "kind": "k", "state": "sent", "node_id": "n", "created_at": created}


def script(
    plane: ScriptedPlane, *, counts: dict[str, Any] = QUIET, followers: Any = FOLLOWERS, tasks: Any = ()
) -> None:
    found = readiness(POSTGRES, REDIS, *followers)
    plane.script("GET /healthz", document({"status": "alive"}))
    plane.script("GET /openapi.json", document({"info": {"version": release()}}))
    plane.script("GET /readyz", document(found))
    plane.script("GET /v1/whoami", document(ADMIN))
    plane.script("GET /v1/status", document({**found, **counts}))
    plane.script("GET /v1/tasks", page(*tasks))


def verdicts(done: Outcome) -> dict[str, str]:
    return {each["name"]: each["status"] for each in json.loads(done.out)["checks"]}


def test_doctor_of_a_healthy_control_plane_reports_ok_for_each_check(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    script(plane, tasks=[task(1)])
    done = sliceplane("doctor")
    assert (done.code, done.err) == (0, "")
    names = [line.split()[1] for line in done.out.splitlines()]
    assert names == [
        *("reachable", "tls", "clock", "version", "postgres", "redis", "dispatcher", "projector", "key"),
        *("nodes", "drift", "tasks", "queues"),
    ]
    assert verdicts(sliceplane("doctor", "-o", "json")) == dict.fromkeys(names, "ok") | {"tls": "skipped"}


def test_doctor_reports_warnings_with_what_to_do_and_ends_with_code_0(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    late = check("projector", leads=True, behind=9, lag_seconds=12.0)
    script(plane, counts=COUNTS, followers=[FOLLOWERS[0], late], tasks=[task(1), task(3600)])
    done = sliceplane("doctor")
    assert done.code == 0
    for line in (
        "warning  projector   lag 12.0 s",
        "warning  nodes       1 of 4 nodes unreachable",
        "> find them: sliceplane nodes list --state unreachable",
        "warning  drift       2 open, 1 blocking placement",
        "> list it: sliceplane nodes drift",
        "warning  tasks       1 failed, 4 parked",
        "2 unfinished tasks, the oldest for 1 h",
    ):
        assert line in done.out


def test_doctor_with_a_failed_check_ends_with_code_1(plane: ScriptedPlane, sliceplane: Run) -> None:
    script(plane, followers=[FOLLOWERS[0], check("projector", "failed", "no process leads")])
    done = sliceplane("doctor")
    assert done.code == 1
    assert "failed   projector   no process leads" in done.out
    assert "these checks failed: projector" in done.err


def test_doctor_with_a_refused_api_key_reports_the_reason_and_skips_the_checks_that_need_a_key(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    with running_plane() as other:
        other.script("GET /v1/whoami", problem(401, "key_expired", "this API key has expired"))
        other.script("GET /healthz", document({}))
        other.script("GET /readyz", document(readiness(POSTGRES, REDIS, *FOLLOWERS)))
        done = sliceplane("--url", other.url, "doctor")
    assert done.code == 1
    assert "failed   key         this API key has expired" in done.out
    assert "> issue another key" in done.out
    assert "queues" not in done.out


def test_doctor_of_a_caller_skips_the_fleet(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/whoami", document({**ADMIN, "scopes": ["tasks:read"], "projects": ["vision"]}))
    script(plane)
    found = verdicts(sliceplane("doctor", "-o", "json"))
    assert (found["key"], found["nodes"], found["queues"]) == ("ok", "skipped", "ok")
    assert plane.requests("GET /v1/status") == []


@pytest.mark.parametrize("output", ["table", "json"])
def test_doctor_of_an_unreachable_control_plane_ends_with_code_4(
    plane: ScriptedPlane, sliceplane: Run, output: str
) -> None:
    plane.script("GET /healthz", Reply(lose=True))
    done = sliceplane("doctor", "-o", output)
    assert done.code == 4
    assert f"cannot reach the control plane at {plane.url}" in done.err
    if output == "json":
        assert verdicts(done) == {"reachable": "failed"}


def test_doctor_reports_a_server_that_is_not_a_control_plane(plane: ScriptedPlane, sliceplane: Run) -> None:
    assert "check the URL" in sliceplane("doctor").out


def test_doctor_reports_when_the_verified_certificate_expires(home: Path, unconfigured: Run) -> None:
    made = ensure(home / "tls", ["127.0.0.1"], datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server)
    with running_plane() as plane:
        script(plane)
        plane.socket = context.wrap_socket(plane.socket, server_side=True)
        url = plane.url.replace("http:", "https:")
        done = unconfigured("--url", url, "--api-key", KEY, "--ca", str(made.ca), "doctor")
    assert done.code == 0, done.err
    assert "tls         the certificate is verified, and expires in" in done.out


def test_doctor_of_a_real_control_plane_finds_no_failure(
    shared_plane: RunningPlane, unconfigured: Run
) -> None:
    names = ("reachable", "clock", "postgres", "redis", "dispatcher", "projector", "key")
    found: dict[str, str] = {}

    def followers_have_read_the_ledger() -> bool:
        done = unconfigured("--url", shared_plane.url, "--api-key", ADMIN_KEY, "doctor", "-o", "json")
        found.update(verdicts(done))
        return done.code == 0 and {found[name] for name in names} == {"ok"}

    until(followers_have_read_the_ledger, "no check fails or warns")


@pytest.mark.parametrize(
    ("offset", "verdict"),
    [
        (0.0, "ok"),
        (-1.9, "ok"),
        (1.5, "ok"),
        (-10.0, "warning"),
        (10.0, "warning"),
        (-90, "failed"),
        (90, "failed"),
    ],
)
def test_clock_check_allows_for_the_whole_seconds_of_the_date_header(offset: float, verdict: str) -> None:
    server = (NOW + timedelta(seconds=offset)).replace(microsecond=0)
    found = diagnosis.clock(server, NOW, NOW + timedelta(seconds=0.1))
    assert found.status == verdict
    if verdict != "ok":
        assert ("behind" if offset > 0 else "ahead of") in found.message


def test_certificate_that_expires_soon_and_plaintext_in_the_network_are_warnings() -> None:
    soon = diagnosis.tls("https://x", NOW + timedelta(days=3), NOW)
    assert (soon.status, diagnosis.tls("https://x", NOW + timedelta(days=90), NOW).status) == (
        "warning",
        "ok",
    )
    assert diagnosis.tls("http://control-plane.example", None, NOW).status == Verdict.WARNING
    assert diagnosis.tls("http://127.0.0.1:8080", None, NOW).status == Verdict.SKIPPED


@pytest.mark.parametrize(
    ("server", "client", "verdict"),
    [("0.1.0", "0.1.7+source", "ok"), ("0.2.0", "0.1.0", "warning"), (None, "0.1.0", "skipped")],
)
def test_versions_are_compatible_if_their_first_two_numbers_are_equal(
    server: str | None, client: str, verdict: str
) -> None:
    assert diagnosis.version(server, client).status == verdict


def test_key_is_described_with_its_role_and_projects() -> None:
    caller = Caller("key:ci", "caller", ("allocations:read",), ("a", "b"))
    assert diagnosis.key(caller).message == "key:ci, role caller, projects a, b"
