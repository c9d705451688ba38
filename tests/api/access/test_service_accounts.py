"""Tests of service accounts: their keys, their limits, and their disablement."""

from typing import Any

import httpx
import pytest

from tests.api.access.principals import client_of, create_account, create_project, issue, key_of_account
from tests.api.access.watches import rest_of, watch_as
from tests.servers.plane import RunningPlane


@pytest.fixture(scope="module")
def plane(shared_plane: RunningPlane) -> RunningPlane:
    create_project(shared_plane, "own")
    create_account(shared_plane, "off", "auditor")
    with shared_plane.client() as admin:
        assert admin.post("/service-accounts/off/disable", json={"reason": "paused"}).is_success
    return shared_plane


def codes(answer: httpx.Response) -> list[str]:
    return [each["code"] for each in answer.json()["reasons"]]


def test_key_of_an_account_has_the_actor_role_projects_and_scopes_of_the_account(
    plane: RunningPlane,
) -> None:
    create_account(
        plane, "deployer", projects=["own", "own"], scopes=["allocations:read"], description="Deploys"
    )
    key = key_of_account(plane, "deployer")
    with client_of(plane, key) as caller, plane.client() as admin:
        assert caller.get("/whoami").json() == {
            "actor": "service-account:deployer",
            "role": "caller",
            "scopes": ["allocations:read"],
            "projects": ["own"],
            "credential": key.id,
            "credential_kind": "key",
            "expires_at": None,
            "currency": "USD",
            "tasks_kept_seconds": 86400,
            "failed_tasks_kept_seconds": 604800,
        }
        assert codes(caller.get("/tasks")) == ["scope_missing"]
        shown = admin.get(f"/keys/{key.id}").json()
        assert (shown["service_account"], shown["role"]) == ("deployer", "caller")
        assert (shown["scopes"], shown["projects"]) == (["allocations:read"], ["own"])
        for limits in ({"service_account": "deployer"}, {"project": "own"}, {"role": "caller"}):
            listed = admin.get("/keys", params={"limit": 500, **limits}).json()["items"]
            assert key.id in [each["id"] for each in listed], limits
        for limits in ({"service_account": "off"}, {"project": "default"}, {"role": "auditor"}):
            listed = admin.get("/keys", params={"limit": 500, **limits}).json()["items"]
            assert key.id not in [each["id"] for each in listed], limits
        rows = admin.get("/access-log", params={"principal": "service-account:deployer"}).json()["items"]
        assert {each["credential"] for each in rows} == {key.id}
    # The key itself has no limits: those of the account apply.
    query = "select role, projects, scopes from read.api_key where key_id = %(id)s"
    assert plane.rows(query, id=key.id) == [(None, [], [])]


def test_key_of_an_account_causes_events_of_the_account_and_is_refused_outside_its_scopes(
    plane: RunningPlane,
) -> None:
    create_account(plane, "operator", "admin", scopes=["projects:write", "access:read"])
    with client_of(plane, key_of_account(plane, "operator")) as caller:
        assert caller.post("/projects", json={"id": "made"}).status_code == 201
        assert codes(caller.post("/keys", json={"name": "x", "role": "admin"})) == ["scope_missing"]
    query = "select actor from ledger.event where stream_id = 'project-made'"
    assert plane.rows(query) == [("service-account:operator",)]


def test_keys_of_a_disabled_service_account_are_refused_until_it_is_enabled_and_revoked_keys_stay_refused(
    plane: RunningPlane,
) -> None:
    create_account(plane, "paused", "auditor")
    one, two, other = (
        key_of_account(plane, "paused"),
        key_of_account(plane, "paused"),
        issue(plane, "other", "auditor"),
    )
    with client_of(plane, one) as first, client_of(plane, two) as second, plane.client() as admin:
        assert first.get("/nodes").is_success
        for _ in range(2):
            answer = admin.post("/service-accounts/paused/disable", json={"reason": "leaked"})
            assert (answer.json()["state"], answer.json()["reason"]) == ("disabled", "leaked")
            assert answer.headers["etag"].startswith('"2.')
        for caller in (first, second):
            refused = caller.get("/nodes")
            assert (refused.status_code, codes(refused)) == (401, ["service_account_disabled"])
        with client_of(plane, other) as unaffected:
            assert unaffected.get("/nodes").is_success
        assert admin.post(f"/keys/{one.id}/revoke", json={"reason": "leaked"}).is_success
        assert codes(first.get("/nodes")) == ["key_revoked"]
        for _ in range(2):
            answer = admin.post("/service-accounts/paused/enable")
            assert (answer.json()["state"], answer.json()["reason"]) == ("active", None)
        assert codes(first.get("/nodes")) == ["key_revoked"]
        assert second.get("/nodes").is_success


def test_watch_with_a_key_of_an_account_ends_when_the_account_is_revoked_as_a_principal(
    plane: RunningPlane,
) -> None:
    create_account(plane, "watching", "auditor")
    key, other = key_of_account(plane, "watching"), issue(plane, "staying", "auditor")
    with (
        watch_as(plane, key.secret) as watch,
        watch_as(plane, other.secret) as staying,
        client_of(plane, key) as caller,
        plane.client() as admin,
    ):
        assert caller.get("/nodes").is_success
        body = {"actor": "service-account:watching", "reason": "leaked"}
        for _ in range(2):
            answer = admin.post("/principals/revoke", json=body)
            assert answer.json() == {**body, "revoked_at": None}
        assert "service_account.created" in [each.type for each in rest_of(watch)]
        assert codes(caller.get("/nodes")) == ["service_account_disabled"]
        shown = admin.get("/service-accounts/watching").json()
        assert (shown["state"], shown["reason"]) == ("disabled", "leaked")
        while staying.next().type != "service_account.disabled":
            pass


def test_rotation_of_a_key_of_an_account_issues_a_key_of_the_same_account(plane: RunningPlane) -> None:
    create_account(plane, "rotated", projects=["own"])
    key = key_of_account(plane, "rotated", lifetime_seconds=3600)
    with plane.client() as admin:
        new = admin.post(f"/keys/{key.id}/rotate", json={"overlap_seconds": 600}).json()
        shown = admin.get(f"/keys/{new['id']}").json()
        assert {name: new[name] for name in shown} == shown
        assert (new["service_account"], new["role"], new["projects"]) == ("rotated", "caller", ["own"])
        assert new["replaces"] == key.id
        with plane.client(Authorization=f"Bearer {new['key']}") as caller:
            assert caller.get("/whoami").json()["actor"] == "service-account:rotated"
        assert admin.post("/service-accounts/rotated/disable", json={"reason": "over"}).is_success
        refused = admin.post(f"/keys/{new['id']}/rotate", json={})
    assert (refused.status_code, codes(refused)) == (409, ["service_account_not_active"])


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/service-accounts", {"id": "x", "role": "caller"}, 422, "projects_missing"),
        ("/service-accounts", {"id": "x"}, 422, "required"),
        ("/service-accounts", {"id": "X y", "role": "admin"}, 422, "invalid_value"),
        ("/service-accounts", {"id": "x", "role": "node"}, 422, "unknown_value"),
        (
            "/service-accounts",
            {"id": "x", "role": "auditor", "scopes": ["fleet:write"]},
            422,
            "scope_beyond_role",
        ),
        (
            "/service-accounts",
            {"id": "x", "role": "caller", "projects": ["nowhere"]},
            404,
            "unknown_project",
        ),
        ("/service-accounts", {"id": "off", "role": "admin"}, 409, "service_account_exists"),
        ("/service-accounts/nowhere/disable", {"reason": "x"}, 404, "unknown_service_account"),
        (
            "/principals/revoke",
            {"actor": "service-account:nowhere", "reason": "x"},
            404,
            "unknown_service_account",
        ),
        ("/principals/revoke", {"actor": "service-account:No", "reason": "x"}, 422, "invalid_value"),
        ("/service-accounts/Not-A-Name/enable", None, 404, "unknown_service_account"),
        ("/keys", {"name": "x"}, 422, "required"),
        ("/keys", {"name": "x", "service_account": "nowhere"}, 404, "unknown_service_account"),
        ("/keys", {"name": "x", "service_account": "off"}, 409, "service_account_not_active"),
        (
            "/keys",
            {"name": "x", "service_account": "off", "role": "admin"},
            422,
            "limits_of_service_account",
        ),
        (
            "/keys",
            {"name": "x", "service_account": "off", "projects": ["own"]},
            422,
            "limits_of_service_account",
        ),
        (
            "/keys",
            {"name": "x", "service_account": "off", "scopes": ["fleet:read"]},
            422,
            "limits_of_service_account",
        ),
    ],
)
def test_invalid_request_about_a_service_account_is_refused_with_the_reason(
    plane: RunningPlane, path: str, body: dict[str, Any] | None, status: int, code: str
) -> None:
    with plane.client() as admin:
        answer = admin.post(path, json=body)
    assert (answer.status_code, codes(answer)) == (status, [code])


def test_archived_project_cannot_be_assigned_to_a_new_service_account(plane: RunningPlane) -> None:
    create_project(plane, "ended")
    with plane.client() as admin:
        assert admin.post("/projects/ended/archive", json={"reason": "over"}).is_success
        body = {"id": "late", "role": "caller", "projects": ["own", "ended"]}
        answer = admin.post("/service-accounts", json=body)
    assert [(each["code"], each["field"]) for each in answer.json()["reasons"]] == [
        ("project_archived", "/projects/1")
    ]
