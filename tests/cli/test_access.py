"""`sliceplane projects`, `keys` and `whoami` on a real control plane, and `access-log` with prepared responses."""

import json
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.cli.control_plane import ScriptedPlane, page
from tests.cli.outcome import Outcome
from tests.servers.plane import ADMIN_KEY, RunningPlane

Run = Callable[..., Outcome]


@pytest.fixture
def admin(shared_plane: RunningPlane, unconfigured: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Function that runs the command line with the API key of an admin of the real control plane."""
    monkeypatch.setenv("SLICEPLANE_URL", shared_plane.url)
    monkeypatch.setenv("SLICEPLANE_API_KEY", ADMIN_KEY)
    return unconfigured


def test_project_is_created_described_listed_and_archived(admin: Run) -> None:
    assert admin("projects", "create", "vision", "--description", "a trial").code == 0
    assert admin("projects", "describe", "vision", "rendering").code == 0
    assert admin("projects", "list").out.split()[-3:] == ["vision", "active", "rendering"]
    archived = admin("projects", "archive", "vision", "--reason", "trial ended")
    assert archived.code == 0
    shown = admin("projects", "show", "vision").out
    assert "archived" in shown
    assert "trial ended" in shown


def test_limits_of_a_project_and_of_a_caller_are_set_as_a_whole_and_shown_with_their_use(admin: Run) -> None:
    assert admin("projects", "create", "robots").code == 0
    first = admin("projects", "limits", "set", "robots", "--slots", "8", "--price-per-hour", "2.50").out
    assert first.splitlines()[0].split() == ["slots", "0", "(limit", "8)"]
    assert "0 (limit 2.50)" in first
    shown = admin("projects", "limits", "set", "robots", "--gpus", "0").out
    assert shown == admin("projects", "limits", "show", "robots").out
    assert "GPUs" in shown
    assert (shown.count("no limit"), shown.count("default limit")) == (8, 1)
    actor = "service-account:trainer"
    assert "0 (limit 4)" in admin("principals", "limits", "set", actor, "--slots", "4").out
    assert "0 (limit 4)" in admin("principals", "limits", "show", actor).out


def test_issued_key_works_until_it_is_revoked(admin: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert admin("projects", "create", "red").code == 0
    issued = admin(
        "keys", "issue", "ci", "--role", "caller", "--project", "red", "--lifetime", "1d", "-o", "json"
    )
    key = json.loads(issued.out)
    assert admin("keys", "list").out.count(key["id"]) == 1
    assert key["key"] not in admin("keys", "show", key["id"]).out
    with monkeypatch.context() as as_caller:
        as_caller.setenv("SLICEPLANE_API_KEY", key["key"])
        me = admin("whoami").out
        assert f"key:{key['id']}" in me
        assert "red" in me
        refused = admin("nodes", "list")
        assert refused.code == 3
        assert "[role_missing]" in refused.err
    assert admin("keys", "revoke", key["id"], "--reason", "laptop lost").code == 0
    with monkeypatch.context() as as_caller:
        as_caller.setenv("SLICEPLANE_API_KEY", key["key"])
        refused = admin("whoami")
        assert refused.code == 3
        assert "[key_revoked]" in refused.err


def test_principals_revoke_accepts_an_api_key_as_principal_and_refuses_a_user_of_an_unknown_issuer(
    admin: Run,
) -> None:
    key = json.loads(admin("keys", "issue", "ops", "--role", "auditor", "-o", "json").out)
    revoked = admin("principals", "revoke", f"key:{key['id']}", "--reason", "laptop lost", "-o", "json")
    assert json.loads(revoked.out)["actor"] == f"key:{key['id']}"
    assert "laptop lost" in admin("keys", "show", key["id"]).out
    refused = admin("principals", "revoke", "user:corp/alice", "--reason", "laptop lost")
    assert refused.code == 1
    assert "[unknown_issuer]" in refused.err


def test_rotated_key_prints_the_new_secret_and_names_its_successor(admin: Run) -> None:
    key = json.loads(admin("keys", "issue", "ops", "--role", "auditor", "-o", "json").out)
    rotated = admin("keys", "rotate", key["id"], "--overlap", "10m")
    assert rotated.code == 0
    assert "sp_" in rotated.out
    assert "replaced by" in admin("keys", "show", key["id"]).out


def test_key_of_a_caller_without_a_project_is_refused_with_the_reason(admin: Run) -> None:
    done = admin("keys", "issue", "ci", "--role", "caller")
    assert done.code == 1
    assert "[projects_missing]" in done.err


def test_key_of_a_service_account_is_refused_while_the_account_is_disabled(
    admin: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert admin("projects", "create", "jobs").code == 0
    limits = ("--role", "caller", "--project", "jobs", "--scope", "allocations:read")
    assert admin("service-accounts", "create", "nightly", *limits, "--description", "Nightly jobs").code == 0
    listed = admin("service-accounts", "list").out.splitlines()[-1].split()
    assert listed == ["nightly", "active", "caller", "jobs", "Nightly", "jobs"]
    wrong = admin("keys", "issue", "job", "--service-account", "nightly", "--role", "admin")
    assert (wrong.code, "[limits_of_service_account]" in wrong.err) == (1, True)
    key = json.loads(admin("keys", "issue", "job", "--service-account", "nightly", "-o", "json").out)
    assert (key["service_account"], key["role"]) == ("nightly", "caller")
    shown = admin("keys", "show", key["id"]).out
    assert "nightly" in shown
    assert admin("keys", "list").out.splitlines()[0].split()[-2:] == ["LAST", "USED"]

    def whoami() -> Outcome:
        with monkeypatch.context() as as_account:
            as_account.setenv("SLICEPLANE_API_KEY", key["key"])
            return admin("whoami")

    assert "service-account:nightly" in whoami().out
    disabled = admin("service-accounts", "disable", "nightly", "--reason", "host lost")
    assert "host lost" in disabled.out
    refused = whoami()
    assert (refused.code, "[service_account_disabled]" in refused.err) == (3, True)
    assert "disabled" in admin("service-accounts", "show", "nightly").out
    assert admin("service-accounts", "enable", "nightly").code == 0
    assert whoami().code == 0


LOGGED = {
    "request_id": "req-1",
    "position": 7,
    "opened_at": "2026-01-02T03:04:05.678Z",
    "method": "POST",
    "route": "/v1/nodes",
    "path": "/v1/nodes",
    "principal": "key:ci-1a2b",
    "credential": "ci-1a2b",
    "source": "192.0.2.1",
    "status": 403,
    "outcome": "refused",
    "reasons": ["role_missing"],
    "duration_ms": 12,
    "count": 1,
    "process": "0196f5b0-0000-7000-8000-000000000000",
}


def test_access_log_list_prints_principal_source_and_outcome_of_each_request(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    counted = {**LOGGED, "principal": None, "credential": None, "count": 40, "request_id": "req-2"}
    plane.script("GET /v1/access-log", page(LOGGED, counted))
    out = sliceplane("access-log", "list").out
    for part in (
        "POST /v1/nodes",
        "403",
        "refused: role_missing",
        "key:ci-1a2b",
        "192.0.2.1",
        "req-1",
        "(40 times)",
    ):
        assert part in out


def test_access_log_list_sends_its_filters(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/access-log", page())
    outcome = sliceplane(
        *("access-log", "list", "--principal", "key:ci-1a2b", "--method", "POST", "--outcome", "open"),
        *("--request", "req-1", "--from", "2026-01-02T03:04:05Z", "--after", "7"),
    )
    assert "no matching requests" in outcome.out
    assert parse_qs(urlsplit(plane.received[0].path).query) == {
        "request_id": ["req-1"],
        "principal": ["key:ci-1a2b"],
        "method": ["POST"],
        "outcome": ["open"],
        "from": ["2026-01-02T03:04:05Z"],
        "after": ["7"],
        "order": ["asc"],
        "limit": ["100"],
    }


def test_access_log_list_refuses_a_position_of_the_ledger_as_a_time(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    outcome = sliceplane("access-log", "list", "--from", "position:7")
    assert outcome.code == 2
    assert "position of the ledger" in outcome.err
    assert plane.received == []
