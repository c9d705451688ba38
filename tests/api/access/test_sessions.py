"""Tests of sessions: what they permit, what they depend on, and when they are refused."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from control_plane.settings import SettingsRefused, read_settings
from deploy.embedded.postgres import PostgresServer
from tests.api.access.issuers import issuer_of
from tests.api.access.principals import (
    Key,
    client_of,
    create_account,
    create_project,
    expire,
    issue,
    key_of_account,
    session_of,
)
from tests.api.access.watches import rest_of, watch_as
from tests.servers.oidc_provider import Provider
from tests.servers.plane import ADMIN_KEY, RunningPlane, running
from tests.waiting import until

Answer = dict[str, Any]


@pytest.fixture(scope="module")
def plane(postgres_server: PostgresServer, oidc_provider: Provider) -> Iterator[RunningPlane]:
    """Control plane that trusts an identity provider, and writes the last use of credentials soon."""
    oidc = (issuer_of(oidc_provider, clock_skew_seconds=0),)
    with running(
        postgres_server, oidc=oidc, credential_use_seconds=0.05, unauthenticated_per_minute=0
    ) as made:
        create_project(made, "own")
        yield made


def token(provider: Provider, subject: str, **claims: Any) -> str:
    """Return the token of an admin."""
    return provider.sign(
        provider.claims(sub=subject, realm_access=None, groups=["/operators"], jti=f"of-{subject}", **claims)
    )


def codes(answer: httpx.Response) -> list[str]:
    return [each["code"] for each in answer.json()["reasons"]]


def refusal(plane: RunningPlane, session: Key) -> list[str]:
    """Return the codes with which a session is refused; none if it is accepted."""
    with client_of(plane, session) as caller:
        answer = caller.get("/whoami")
    assert answer.status_code == (200 if answer.is_success else 401), answer.text
    return [] if answer.is_success else codes(answer)


def shown(plane: RunningPlane, session: Key) -> Answer:
    with plane.client() as admin:
        found: Answer = admin.get(f"/sessions/{session.id}").json()
    return found


def change(plane: RunningPlane, session: Key, assignment: str) -> None:
    """Change the row of a session, as if time had passed."""
    plane.rows(f"update read.session set {assignment} where session_id = %(id)s returning 1", id=session.id)


def send(plane: RunningPlane, path: str, **body: Any) -> Answer:
    with plane.client() as admin:
        answer = admin.post(path, json=body)
    assert answer.is_success, answer.text
    found: Answer = answer.json()
    return found


def test_session_of_an_api_key_acts_as_the_key_and_is_recorded_with_the_session_id(
    plane: RunningPlane,
) -> None:
    key = issue(plane, "laptop", "admin", scopes=["projects:write", "access:read"])
    session = session_of(plane, key.secret, label="laptop of alice")
    with client_of(plane, key) as holder, client_of(plane, session) as caller:
        own, same = holder.get("/whoami").json(), caller.get("/whoami").json()
        assert (same["credential"], same["credential_kind"]) == (session.id, "session")
        assert (own["credential"], own["credential_kind"], own["expires_at"]) == (key.id, "key", None)
        assert {**same, "credential": "", "credential_kind": "", "expires_at": ""} == {
            **own,
            "credential": "",
            "credential_kind": "",
            "expires_at": "",
        }
        assert codes(caller.get("/nodes")) == ["scope_missing"]
        made = caller.post("/projects", json={"id": "by-session"})
        assert made.status_code == 201
        assert codes(caller.post("/sessions", json={})) == ["session_not_renewable"]
        rows = caller.get("/access-log", params={"principal": f"key:{key.id}", "method": "POST"}).json()
    assert [(each["path"], each["credential"]) for each in rows["items"]] == [
        ("/v1/sessions", session.id),
        ("/v1/projects", session.id),
        ("/v1/sessions", key.id),
    ]
    [(actor, reason)] = plane.rows(
        "select actor, reason from ledger.event where stream_id = 'project-by-session'"
    )
    assert actor == f"key:{key.id}"
    assert reason.endswith(f"from 127.0.0.1 with {session.id}")
    until(lambda: shown(plane, session)["last_used_from"] == "127.0.0.1", "the use is written")
    found = shown(plane, session)
    assert (found["label"], found["state"], found["credential_kind"]) == ("laptop of alice", "active", "key")
    assert (found["scopes"], found["credential"]) == (["access:read", "projects:write"], key.id)
    for table in ("ledger.event", "read.session", "work.access", "ledger.command_key"):
        assert plane.rows(f"select 1 from {table} r where r::text like %(s)s", s=f"%{session.secret}%") == []


def test_session_of_a_token_keeps_the_role_and_projects_of_the_token_after_the_token_has_expired(
    plane: RunningPlane, oidc_provider: Provider
) -> None:
    short = token(oidc_provider, "olivia", exp=int(time.time()) + 2)
    session = session_of(plane, short)
    workload = session_of(plane, oidc_provider.workload_token())
    with client_of(plane, session) as olivia, client_of(plane, workload) as ci:
        me = olivia.get("/whoami").json()
        assert (me["actor"], me["role"], me["projects"]) == ("user:corp/olivia", "admin", None)
        assert (ci.get("/whoami").json()["role"], ci.get("/whoami").json()["projects"]) == (
            "caller",
            ["batch"],
        )
        until(lambda: refusal(plane, Key("", short)) == ["token_expired"], "the token has expired")
        assert olivia.get("/nodes").is_success
    found = shown(plane, session)
    assert (found["credential"], found["credential_kind"]) == ("corp/of-olivia", "token")
    change(plane, session, "actor = 'user:gone/olivia'")
    assert refusal(plane, session) == ["token_untrusted"]


def test_repeated_start_of_a_session_returns_the_same_secret_only_to_the_same_credential(
    plane: RunningPlane,
) -> None:
    create_account(plane, "twice", "auditor")
    one, two = key_of_account(plane, "twice"), key_of_account(plane, "twice")
    headers = {"Idempotency-Key": "login-1"}
    with client_of(plane, one) as first, client_of(plane, two) as second:
        made = first.post("/sessions", json={"label": "x"}, headers=headers)
        again = first.post("/sessions", json={"label": "x"}, headers=headers)
        assert (again.json(), again.headers["idempotent-replayed"]) == (made.json(), "true")
        assert codes(second.post("/sessions", json={"label": "x"}, headers=headers)) == ["answer_sealed"]
    started = made.json()
    assert started["secret"].startswith("ss_")
    assert started["actor"] == "service-account:twice"
    found = shown(plane, Key(started["id"], started["secret"]))
    assert {name: started[name] for name in found} == found


def test_lifetime_of_a_session_is_limited_by_the_operator_and_by_its_key(plane: RunningPlane) -> None:
    key = issue(plane, "short", "auditor", lifetime_seconds=120)
    with plane.client() as admin, client_of(plane, key) as holder:
        refused = admin.post("/sessions", json={"lifetime_seconds": 12 * 3600 + 1})
        assert (refused.status_code, codes(refused)) == (409, ["lifetime_too_long"])
        for body in ({"lifetime_seconds": 59}, {"label": "x" * 101}, {"other": 1}):
            assert admin.post("/sessions", json=body).status_code == 422
        limits = admin.get(f"{plane.url}/v1").json()["limits"]
        assert (limits["session_lifetime_seconds"], limits["session_idle_seconds"]) == (12 * 3600, 3600)
        longest = admin.post("/sessions", json={}).json()
        hour = admin.post("/sessions", json={"lifetime_seconds": 3600}).json()
        of_key = holder.post("/sessions", json={}).json()
        expires = admin.get(f"/keys/{key.id}").json()["expires_at"]
    for made, lifetime in ((longest, timedelta(hours=12)), (hour, timedelta(hours=1))):
        times = [datetime.fromisoformat(made[name]) for name in ("started_at", "expires_at")]
        assert times[1] - times[0] == lifetime
    assert of_key["expires_at"] == expires


def test_session_has_the_limits_of_its_service_account_at_each_request(plane: RunningPlane) -> None:
    create_account(plane, "changing", "auditor", scopes=["fleet:read"])
    session = session_of(plane, key_of_account(plane, "changing").secret)
    with client_of(plane, session) as caller:
        assert caller.get("/nodes").is_success
        plane.rows(
            "update read.service_account set scopes = '{tasks:read}' where account = 'changing' returning 1"
        )
        assert caller.get("/whoami").json()["scopes"] == ["tasks:read"]
        assert codes(caller.get("/nodes")) == ["scope_missing"]


def test_session_is_refused_once_it_or_its_key_account_or_principal_ended_and_is_listed_in_that_state(
    plane: RunningPlane, oidc_provider: Provider
) -> None:
    create_account(plane, "stopped", "auditor")
    keys = [issue(plane, name, "auditor") for name in ("revoked", "expired", "other")]
    account = key_of_account(plane, "stopped")
    of = {
        name: session_of(plane, key.secret)
        for name, key in zip("abcdefg", [*keys, account, *keys], strict=False)
    }
    user = session_of(plane, token(oidc_provider, "leaver"))
    assert [refusal(plane, each) for each in (*of.values(), user)] == [[]] * 8

    send(plane, f"/keys/{keys[0].id}/revoke", reason="lost")
    expire(plane, keys[1])
    send(plane, "/principals/revoke", actor="service-account:stopped", reason="lost")
    send(plane, "/principals/revoke", actor="user:corp/leaver", reason="lost")
    change(plane, of["g"], "expires_at = now()")
    idle = session_of(plane, keys[2].secret)
    change(plane, idle, "started_at = now() - interval '3601 s'")
    ended = send(plane, f"/sessions/{of['c'].id}/end", reason="over")
    assert (ended["state"], ended["reason"], ended["refusal"]) == ("ended", "over", "session_ended")
    states = {
        of["a"]: ("ended", "key_revoked"),
        of["b"]: ("expired", "key_expired"),
        of["c"]: ("ended", "session_ended"),
        of["d"]: ("ended", "service_account_disabled"),
        of["e"]: ("ended", "key_revoked"),
        of["f"]: ("expired", "key_expired"),
        of["g"]: ("expired", "session_expired"),
        idle: ("expired", "session_idle"),
        user: ("ended", "principal_revoked"),
    }
    with plane.client() as admin:
        for session, (state, code) in states.items():
            assert refusal(plane, session) == [code]
            assert (shown(plane, session)["state"], shown(plane, session)["refusal"]) == (state, code)
            for each in ("active", "ended", "expired"):
                listed = admin.get("/sessions", params={"state": each, "limit": 500}).json()["items"]
                assert (session.id in [found["id"] for found in listed]) is (each == state)
    assert refusal(plane, Key("", "ss_unknown")) == ["unknown_session"]
    send(plane, "/service-accounts/stopped/enable")
    assert refusal(plane, of["d"]) == []


def test_revocation_between_the_issue_of_a_token_and_the_start_of_a_session_ends_the_session(
    plane: RunningPlane, oidc_provider: Provider
) -> None:
    session = session_of(plane, token(oidc_provider, "racer", iat=int(time.time()) - 10))
    plane.rows(
        "insert into read.principal (actor, version, revoked_at)"
        " select actor, 1, started_at - interval '1 s' from read.session where session_id = %(id)s returning 1",
        id=session.id,
    )
    assert refusal(plane, session) == ["principal_revoked"]


def test_watches_end_with_their_session_and_with_the_credential_or_principal_that_it_depends_on(
    plane: RunningPlane, oidc_provider: Provider
) -> None:
    create_account(plane, "watcher", "auditor")
    key, account = issue(plane, "watcher", "auditor"), key_of_account(plane, "watcher")
    ended, of_key, of_account = (session_of(plane, each.secret) for each in (key, key, account))
    of_user, expiring = session_of(plane, token(oidc_provider, "watcher")), session_of(plane, ADMIN_KEY)
    change(plane, expiring, "expires_at = now() + interval '1 s'")
    acts: list[tuple[Key, str, Answer]] = [
        (ended, f"/sessions/{ended.id}/end", {}),
        (of_account, "/service-accounts/watcher/disable", {}),
        (of_key, f"/keys/{key.id}/revoke", {}),
        (of_user, "/principals/revoke", {"actor": "user:corp/watcher"}),
    ]
    staying = session_of(plane, ADMIN_KEY)
    with watch_as(plane, staying.secret) as stayer, watch_as(plane, expiring.secret) as short:
        rest_of(short)
        for number, (session, path, body) in enumerate(acts):
            with watch_as(plane, session.secret) as watch:
                assert watch.next().type
                send(plane, path, reason="lost", **body)
                rest_of(watch)
            assert refusal(plane, session) != [], number
        while stayer.next().type != "access.principal_revoked":
            pass


def test_session_is_not_idle_while_a_watch_uses_it_and_is_refused_for_idleness_after_the_watch(
    plane: RunningPlane,
) -> None:
    session = session_of(plane, ADMIN_KEY)
    change(plane, session, "idle_seconds = 1")
    began = datetime.now(UTC)

    def used_for(seconds: float) -> bool:
        used = shown(plane, session)["last_used_at"]
        return used is not None and datetime.fromisoformat(used) > began + timedelta(seconds=seconds)

    with watch_as(plane, session.secret):
        until(lambda: used_for(1.5), "the watch has used the session for longer than its idle time")
        assert shown(plane, session)["state"] == "active"
    until(lambda: shown(plane, session)["refusal"] == "session_idle", "the session is idle")
    assert refusal(plane, session) == ["session_idle"]


def test_callers_read_and_end_their_own_sessions_and_those_of_others_only_with_the_scopes_of_access(
    plane: RunningPlane,
) -> None:
    one, two = (issue(plane, name, projects=["own"], scopes=["tasks:read"]) for name in ("one", "two"))
    auditor = issue(plane, "reviewer", "auditor")
    mine, other = session_of(plane, one.secret), session_of(plane, two.secret)
    with (
        client_of(plane, mine) as caller,
        client_of(plane, auditor) as reader,
        plane.client() as admin,
    ):
        assert [each["id"] for each in caller.get("/sessions").json()["items"]] == [mine.id]
        by_actor = {"actor": f"key:{two.id}"}
        assert caller.get("/sessions", params=by_actor).json() == {"items": [], "next_cursor": None}
        for client in (reader, admin):
            assert {mine.id, other.id} <= {
                each["id"] for each in client.get("/sessions", params={"limit": 500}).json()["items"]
            }
            listed = client.get("/sessions", params=by_actor).json()["items"]
            assert [each["id"] for each in listed] == [other.id]
        body = {"reason": "over"}
        for path in (f"/sessions/{other.id}", "/sessions/ses-0000000000000000000000000a", "/sessions/x"):
            assert codes(caller.get(path)) == ["unknown_session_id"]
            assert codes(caller.post(f"{path}/end", json=body)) == ["unknown_session_id"]
        assert reader.get(f"/sessions/{other.id}").is_success
        assert codes(reader.post(f"/sessions/{other.id}/end", json=body)) == ["role_missing"]
        assert refusal(plane, other) == []
        assert caller.post(f"/sessions/{mine.id}/end", json=body).json()["state"] == "ended"
        assert codes(caller.get("/sessions")) == ["session_ended"]
        for _ in range(2):
            assert admin.post(f"/sessions/{other.id}/end", json=body).json()["state"] == "ended"
        assert codes(admin.get("/sessions", params={"cursor": "x"})) == ["invalid_cursor"]
    assert refusal(plane, other) == ["session_ended"]
    [(count,)] = plane.rows(
        "select count(*) from ledger.event where stream_id = %(s)s", s=f"session-{other.id}"
    )
    assert count == 2


def test_capabilities_list_the_identity_provider_for_logins_without_credentials(
    plane: RunningPlane, oidc_provider: Provider
) -> None:
    with plane.client() as client:
        del client.headers["authorization"]
        found = client.get(f"{plane.url}/v1").json()
    assert found["logins"] == [
        {
            "name": "corp",
            "issuer": oidc_provider.issuer,
            "client_id": "sliceplane",
            "audience": "https://slices.example",
            "scope": "openid",
        }
    ]


def test_session_idle_time_shorter_than_twice_the_interval_of_stored_uses_is_refused_by_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLICEPLANE_DATABASE_URL", "postgresql://u:p@127.0.0.1/d")
    monkeypatch.setenv("SLICEPLANE_REDIS_URL", "redis://:p@127.0.0.1:6379")
    monkeypatch.setenv("SLICEPLANE_SESSION_IDLE_MINUTES", "2")
    assert read_settings().session_idle_seconds == 120
    monkeypatch.setenv("SLICEPLANE_CREDENTIAL_USE_SECONDS", "61")
    with pytest.raises(SettingsRefused, match="at least twice credential_use_seconds"):
        read_settings()
