"""Tests of API keys: issue, limits, rotation, revocation and expiry."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from deploy.embedded.postgres import PostgresServer
from tests.api.access.principals import client_of, create_account, create_project, expire, issue
from tests.api.access.watches import rest_of, watch_as
from tests.servers.plane import RunningPlane, running


def codes(answer: httpx.Response) -> list[str]:
    return [each["code"] for each in answer.json()["reasons"]]


@pytest.fixture(scope="module")
def limited_plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    """Control plane of which the operator limits the lifetime of API keys to one day."""
    with running(postgres_server, max_key_days=1.0) as made:
        yield made


def test_secret_of_an_issued_key_is_returned_once_and_stored_only_as_a_hash(
    shared_plane: RunningPlane,
) -> None:
    key = issue(shared_plane, "ci", "auditor")
    assert key.id.startswith("ci-")
    with shared_plane.client() as admin:
        shown = admin.get(f"/keys/{key.id}")
        listed = admin.get("/keys", params={"limit": 500})
    assert shown.json() in listed.json()["items"]
    assert "key" not in shown.json()
    tables = shared_plane.rows(
        "select (select string_agg(t::text, '') from read.api_key t), (select string_agg(data, '') from ledger.event)"
    )
    assert key.secret not in str(tables)


def test_whoami_returns_the_actor_role_scopes_and_projects_of_the_caller(shared_plane: RunningPlane) -> None:
    create_project(shared_plane, "reader")
    key = issue(shared_plane, "reader", projects=["reader"], scopes=["allocations:read", "events:read"])
    with client_of(shared_plane, key) as caller:
        assert caller.get("/whoami").json() == {
            "actor": f"key:{key.id}",
            "role": "caller",
            "scopes": ["allocations:read", "events:read"],
            "projects": ["reader"],
            "credential": key.id,
            "credential_kind": "key",
            "expires_at": None,
            "currency": "USD",
            "tasks_kept_seconds": 86400,
            "failed_tasks_kept_seconds": 604800,
        }


def test_admin_issues_rotates_and_delegates_only_scopes_that_its_own_key_has(
    shared_plane: RunningPlane,
) -> None:
    account = create_account(shared_plane, "operator", "admin")
    limited = issue(shared_plane, "limited", "admin", scopes=["access:read", "access:write"])
    root = issue(shared_plane, "other-root", "admin")
    with client_of(shared_plane, limited) as admin:
        for path, body in {
            "/keys": {"name": "more", "role": "admin"},
            "/keys?dry_run=true": {"name": "more", "role": "auditor"},
            f"/keys/{root.id}/rotate": {"overlap_seconds": 60},
            "/service-accounts": {"id": "more", "role": "admin"},
        }.items():
            refused = admin.post(path, json=body)
            assert (refused.status_code, codes(refused)) == (403, ["scope_not_held"]), path
        of_account = admin.post("/keys", json={"name": "more", "service_account": account})
        assert (of_account.status_code, codes(of_account)) == (403, ["scope_not_held"])
        own = {"name": "less", "role": "admin", "scopes": ["access:read"]}
        assert admin.post("/keys", json=own).status_code == 201
        less = {"id": "less", "role": "admin", "scopes": ["access:read"]}
        assert admin.post("/service-accounts", json=less).status_code == 201
        rotated = admin.post(f"/keys/{limited.id}/rotate", json={"overlap_seconds": 60})
        assert rotated.status_code == 201
        shown = admin.get(f"/keys/{root.id}").json()["allowed_actions"]["rotate"]
        assert (shown["allowed"], shown["code"]) == (False, "scope_not_held")


def test_key_limited_to_a_scope_is_refused_on_routes_of_other_scopes(shared_plane: RunningPlane) -> None:
    create_project(shared_plane, "scoped")
    key = issue(shared_plane, "scoped", projects=["scoped"], scopes=["allocations:read"])
    with client_of(shared_plane, key) as caller:
        assert caller.get("/allocations").is_success
        answer = caller.delete("/allocations/alc-0000000000000000000000000a")
    assert answer.status_code == 403
    assert [each["code"] for each in answer.json()["reasons"]] == ["scope_missing"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"role": "caller"}, 422, "projects_missing"),
        ({"role": "caller", "projects": ["nowhere"]}, 404, "unknown_project"),
        ({"role": "auditor", "scopes": ["fleet:write"]}, 422, "scope_beyond_role"),
        ({"role": "node"}, 422, "unknown_value"),
        ({"role": "admin", "name": "Not A Name"}, 422, "invalid_value"),
        ({"role": "admin", "lifetime_seconds": 1}, 422, "out_of_range"),
    ],
)
def test_request_for_an_api_key_that_cannot_be_issued_is_refused_with_the_reason(
    shared_plane: RunningPlane, body: dict[str, object], status: int, code: str
) -> None:
    with shared_plane.client() as admin:
        answer = admin.post("/keys", json={"name": "bad", **body})
    assert answer.status_code == status
    assert code in [each["code"] for each in answer.json()["reasons"]]


def test_revoked_key_is_refused_at_once_with_a_reason_of_its_own(shared_plane: RunningPlane) -> None:
    key = issue(shared_plane, "gone", "admin")
    with client_of(shared_plane, key) as caller, shared_plane.client() as admin:
        assert caller.get("/nodes").is_success
        for _ in range(2):
            revoked = admin.post(f"/keys/{key.id}/revoke", json={"reason": "laptop lost"})
            assert (revoked.json()["state"], revoked.json()["reason"]) == ("revoked", "laptop lost")
        answer = caller.get("/nodes")
    assert answer.status_code == 401
    assert [each["code"] for each in answer.json()["reasons"]] == ["key_revoked"]


def test_watch_ends_when_its_key_is_revoked_and_sends_no_later_event(shared_plane: RunningPlane) -> None:
    key, other = issue(shared_plane, "watching", "admin"), issue(shared_plane, "remaining", "admin")
    with watch_as(shared_plane, key.secret) as ended, watch_as(shared_plane, other.secret) as remaining:
        while ended.next().data["stream"] != f"key-{other.id}":
            pass
        with shared_plane.client() as admin:
            assert admin.post(f"/keys/{key.id}/revoke", json={"reason": "lost"}).is_success
            create_project(shared_plane, "after-the-revocation")
        left = [each.type for each in rest_of(ended)]
        while remaining.next().data["stream"] != "project-after-the-revocation":
            pass
    assert left == []


def test_watch_ends_when_the_overlap_of_its_rotated_key_has_passed(shared_plane: RunningPlane) -> None:
    key = issue(shared_plane, "rotating", "admin")
    with watch_as(shared_plane, key.secret) as stream, shared_plane.client() as admin:
        assert admin.post(f"/keys/{key.id}/rotate", json={"overlap_seconds": 1}).status_code == 201
        # The watch continues during the overlap.
        assert rest_of(stream)[-1].type in ("access.key_issued", "access.key_replaced")
        assert client_of(shared_plane, key).get("/nodes").status_code == 401


def test_api_key_is_refused_once_its_lifetime_has_passed(shared_plane: RunningPlane) -> None:
    key = issue(shared_plane, "short", "admin", lifetime_seconds=3600)
    with client_of(shared_plane, key) as caller:
        assert caller.get("/nodes").is_success
        expire(shared_plane, key)
        answer = caller.get("/nodes")
    assert answer.status_code == 401
    assert [each["code"] for each in answer.json()["reasons"]] == ["key_expired"]


def test_rotation_issues_a_successor_and_accepts_the_replaced_key_for_the_overlap(
    shared_plane: RunningPlane,
) -> None:
    create_project(shared_plane, "rotated")
    key = issue(shared_plane, "rotated", projects=["rotated"], scopes=["allocations:read"])
    with shared_plane.client() as admin:
        answer = admin.post(f"/keys/{key.id}/rotate", json={"overlap_seconds": 600})
        assert answer.status_code == 201, answer.text
        new = answer.json()
        old = admin.get(f"/keys/{key.id}").json()
        again = admin.post(f"/keys/{key.id}/rotate", json={})
    assert (new["replaces"], old["successor"]) == (key.id, new["id"])
    assert (new["role"], new["projects"], new["scopes"]) == (old["role"], old["projects"], old["scopes"])
    ends = datetime.fromisoformat(old["expires_at"]) - datetime.now(UTC)
    assert timedelta(seconds=500) < ends <= timedelta(seconds=600)
    assert [each["code"] for each in again.json()["reasons"]] == ["key_replaced"]
    with client_of(shared_plane, key) as caller:
        assert caller.get("/allocations").is_success
    with shared_plane.client(Authorization=f"Bearer {new['key']}") as caller:
        assert caller.get("/allocations").is_success


@pytest.mark.parametrize(("lifetime", "accepted"), [(86_400, True), (86_401, False), (None, False)])
def test_api_key_with_a_longer_lifetime_than_the_operator_allows_is_refused(
    limited_plane: RunningPlane, lifetime: int | None, accepted: bool
) -> None:
    with limited_plane.client() as admin:
        answer = admin.post("/keys", json={"name": "ops", "role": "admin", "lifetime_seconds": lifetime})
    assert answer.is_success is accepted
    if not accepted:
        assert answer.status_code == 409
        assert [each["code"] for each in answer.json()["reasons"]] == ["lifetime_too_long"]
