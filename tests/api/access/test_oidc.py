"""Tests of people and workloads that call the API with tokens of a real identity provider."""

import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from uuid import uuid4

import httpx
import pytest

from control_plane.client import calls
from control_plane.client.bodies import RevokePrincipal
from control_plane.client.sync import Client
from control_plane.identity import issuer_keys
from deploy.embedded.postgres import PostgresServer
from tests.api.access.issuers import issuer_of
from tests.api.access.principals import client_of, create_project, issue
from tests.api.access.watches import rest_of, watch_as
from tests.api.node import KEY, admit
from tests.projections.plane_requests import rebuild
from tests.servers.oidc_provider import Provider, new_keys, running_provider
from tests.servers.plane import ADMIN_KEY, RunningPlane, running
from tests.waiting import until


@pytest.fixture(scope="module")
def plane(postgres_server: PostgresServer, oidc_provider: Provider) -> Iterator[RunningPlane]:
    """Control plane that trusts the provider of the test session, permits no clock skew, and has no limit of requests
    without valid credentials.
    """
    oidc = (issuer_of(oidc_provider, clock_skew_seconds=0),)
    with running(postgres_server, oidc=oidc, unauthenticated_per_minute=0) as made:
        yield made


@pytest.fixture
def own_provider() -> Iterator[Provider]:
    """Identity provider of one test, which may stop it and replace its keys."""
    with running_provider() as provider:
        yield provider


def caller(plane: RunningPlane, token: str) -> httpx.Client:
    return plane.client(Authorization=f"Bearer {token}")


def ensure_projects(plane: RunningPlane, *names: str) -> None:
    """Create projects that do not exist yet."""
    with plane.client() as admin:
        assert {admin.post("/projects", json={"id": each}).status_code for each in names} <= {201, 409}


def codes(answer: httpx.Response) -> list[str]:
    return [each["code"] for each in answer.json()["reasons"]]


def refusal(plane: RunningPlane, token: str) -> tuple[int, list[str]]:
    """Return the status and the reason codes of a request with a token; no codes if it is accepted."""
    with caller(plane, token) as client:
        answer = client.get("/whoami")
    return answer.status_code, [] if answer.is_success else codes(answer)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_workload_with_a_client_credentials_token_is_a_caller_of_the_granted_project(
    plane: RunningPlane, oidc_provider: Provider, algorithm: str
) -> None:
    with caller(plane, oidc_provider.workload_token(algorithm)) as client:
        answer = client.get("/whoami").json()
        listed = client.get("/allocations").json()["items"]
        refused = client.get("/nodes")
    assert answer["actor"] == f"user:corp/ci-{algorithm.lower()}"
    assert (answer["role"], answer["projects"]) == ("caller", ["batch"])
    assert {each["project"] for each in listed} <= {"batch"}, "another test creates one"
    assert (refused.status_code, codes(refused)) == (403, ["role_missing"])


def test_repeated_request_with_a_token_for_another_project_is_refused(
    plane: RunningPlane, oidc_provider: Provider
) -> None:
    admit(plane, "n-repeated", slots=2)
    ensure_projects(plane, "vision", "rendering")
    body, key = {"sku": "lab.small", "ssh_authorized_keys": [KEY]}, {"Idempotency-Key": uuid4().hex}
    tokens = [
        oidc_provider.sign(oidc_provider.claims(sub="carol", realm_access=None, groups=[f"/{group}"]))
        for group in ("rendering", "vision")
    ]
    with caller(plane, tokens[0]) as first, caller(plane, tokens[1]) as other:
        assert first.post("/allocations", json=body, headers=key).status_code == 202
        assert first.post("/allocations", json=body, headers=key).headers["Idempotent-Replayed"] == "true"
        refused = other.post("/allocations", json=body, headers=key)
    assert (refused.status_code, codes(refused)) == (409, ["idempotency_key_reused"])


def test_user_with_a_token_of_the_device_flow_requests_and_lists_allocations_of_its_project(
    plane: RunningPlane, oidc_provider: Provider
) -> None:
    admit(plane, "n1", slots=2)
    ensure_projects(plane, "vision", "batch")
    with (
        caller(plane, token := oidc_provider.user_token("alice")) as alice,
        caller(plane, oidc_provider.workload_token()) as workload,
        plane.client() as admin,
    ):
        made = {}
        for name, client in (("vision", alice), ("batch", workload)):
            answer = client.post("/allocations", json={"sku": "lab.small", "ssh_authorized_keys": [KEY]})
            assert answer.status_code == 202, answer.text
            made[name] = answer.json()["id"]

        def listed() -> list[str]:
            return [each["id"] for each in alice.get("/allocations").json()["items"]]

        until(lambda: listed() == [made["vision"]], "the projector has listed the allocation")
        assert alice.get(f"/allocations/{made['batch']}").status_code == 404
        events = admin.get("/events", params={"actor": "user:corp/alice"}).json()["items"]
        assert "allocation.requested" in {each["type"] for each in events}
        assert {each["actor"] for each in events} == {"user:corp/alice"}
        with watch_as(plane, token, f"/allocations/{made['vision']}/watch") as stream:
            assert stream.next().type == "allocation.requested"
            body = {"actor": "user:corp/alice", "reason": "test"}
            assert admin.post("/principals/revoke", json=body).is_success
            rest_of(stream)


@pytest.mark.parametrize(
    ("token_id", "recorded"),
    [("3f6c-01", "3f6c-01"), (None, None), ("no id, but text", None), ("x" * 65, None)],
)
def test_access_log_and_events_have_the_id_of_a_token_and_never_the_token(
    plane: RunningPlane, oidc_provider: Provider, token_id: str | None, recorded: str | None
) -> None:
    claims = oidc_provider.claims(sub="logged", jti=token_id, realm_access=None, groups=["/operators"])
    token = oidc_provider.sign(claims)
    credential = f"corp/{recorded or sha256(token.encode()).hexdigest()[:16]}"
    project = f"logged-{uuid4().hex[:8]}"
    with caller(plane, token) as client:
        answer = client.post("/projects", json={"id": project})
        assert answer.status_code == 201, answer.text
        refused = client.get("/projects/no-such-project")
        [event] = client.get("/events", params={"stream": f"project-{project}"}).json()["items"]
    request_id = answer.headers["x-request-id"]
    assert event["actor"] == "user:corp/logged"
    assert event["reason"] == f"POST /v1/projects {request_id} from 127.0.0.1 with {credential}"

    def rows() -> list[tuple[object, ...]]:
        return plane.rows(
            "select principal, credential, source, outcome from work.access where request_id = any(%(ids)s)",
            ids=[request_id, refused.headers["x-request-id"]],
        )

    wanted = {("user:corp/logged", credential, "127.0.0.1", outcome) for outcome in ("completed", "refused")}
    until(lambda: set(rows()) == wanted, "both requests are recorded")
    for part in token.split("."):
        assert plane.rows("select 1 from work.access a where a::text like %(p)s", p=f"%{part}%") == []
        assert plane.rows("select 1 from ledger.event e where e::text like %(p)s", p=f"%{part}%") == []


def test_attempts_with_tokens_that_identify_no_caller_exhaust_the_quota_of_their_source(
    postgres_server: PostgresServer, oidc_provider: Provider
) -> None:
    settings = {"oidc": (issuer_of(oidc_provider),), "unauthenticated_per_minute": 4}
    with running(postgres_server, **settings) as plane:
        known = oidc_provider.sign(oidc_provider.claims())
        assert refusal(plane, known) == (200, [])
        for number in range(2):
            foreign = oidc_provider.claims(iss="http://localhost:1", jti=str(number))
            assert refusal(plane, oidc_provider.sign(foreign)) == (401, ["token_untrusted"])
            ungranted = oidc_provider.claims(realm_access=None, jti=str(number))
            assert refusal(plane, oidc_provider.sign(ungranted)) == (403, ["no_grant"])
        assert refusal(plane, oidc_provider.sign(oidc_provider.claims(jti="new"))) == (429, ["rate_limited"])
        assert refusal(plane, known) == (200, [])


def test_watches_end_when_their_caller_is_revoked_or_their_token_expires(
    plane: RunningPlane, oidc_provider: Provider
) -> None:
    def token(subject: str, **changes: object) -> str:
        claims = oidc_provider.claims(sub=subject, realm_access=None, groups=["/operators"], **changes)
        return oidc_provider.sign(claims)

    leaving, staying = token("watching"), token("staying")
    expiring = token("expiring", exp=int(time.time()) + 2)
    with (
        watch_as(plane, leaving) as leaver,
        watch_as(plane, staying) as stayer,
        watch_as(plane, expiring) as expired,
        Client(plane.url, ADMIN_KEY) as admin,
    ):
        assert rest_of(expired)[0].type == "sku.published"
        body = RevokePrincipal(actor="user:corp/watching", reason="laptop lost")
        revoked = admin.run(calls.revoke_principal(body))
        assert (revoked.actor, revoked.reason) == (body.actor, body.reason)
        assert revoked.revoked_at is not None
        create_project(plane, "after-the-revocation")
        assert "project-after-the-revocation" not in [each.data["stream"] for each in rest_of(leaver)]
        while stayer.next().data["stream"] != "project-after-the-revocation":
            pass
    assert refusal(plane, leaving) == (401, ["principal_revoked"])
    assert refusal(plane, expiring) == (401, ["token_expired"])


def test_user_with_an_admin_grant_administers_and_one_without_a_grant_is_refused(
    plane: RunningPlane, oidc_provider: Provider
) -> None:
    with caller(plane, oidc_provider.user_token("olivia")) as admin:
        assert admin.post("/projects", json={"id": "by-olivia"}).status_code == 201
    assert refusal(plane, oidc_provider.user_token("mallory")) == (403, ["no_grant"])


def test_revoked_user_is_refused_with_its_token_and_accepted_with_a_later_one(
    plane: RunningPlane, oidc_provider: Provider
) -> None:
    def token() -> str:
        return oidc_provider.sign(oidc_provider.claims(sub="leaver"))

    old = token()
    assert refusal(plane, old) == (200, [])
    with plane.client() as admin:
        body = {"actor": "user:corp/leaver", "reason": "laptop lost"}
        answer = admin.post("/principals/revoke", json=body)
        assert answer.is_success, answer.text
        first = answer.json()["revoked_at"]
    assert refusal(plane, old) == (401, ["principal_revoked"])
    until(lambda: refusal(plane, token()) == (200, []), "a token of a later second is accepted")
    assert refusal(plane, old) == (401, ["principal_revoked"])
    assert refusal(plane, oidc_provider.sign(oidc_provider.claims(sub="leaver2"))) == (200, [])
    with plane.client() as admin:
        assert admin.post("/principals/revoke", json=body).json()["revoked_at"] > first
    assert plane.rows("select version from read.principal where actor = %(actor)s", actor=body["actor"]) == [
        (2,)
    ]


def test_revocation_with_an_idempotency_key_is_repeated_without_a_second_event(plane: RunningPlane) -> None:
    body = {"actor": "user:corp/twice", "reason": "test"}
    with plane.client(**{"Idempotency-Key": "revoke-twice"}) as admin:
        answers = [admin.post("/principals/revoke", json=body).json() for _ in range(2)]
    assert answers[0] == answers[1]


def test_rebuild_of_the_read_model_of_revoked_principals_produces_the_same_rows(plane: RunningPlane) -> None:
    with plane.client() as admin:
        for _ in range(2):
            body = {"actor": "user:corp/rebuilt", "reason": "test"}
            assert admin.post("/principals/revoke", json=body).is_success
    before = plane.rows("select * from read.principal order by actor")
    assert ("user:corp/rebuilt", 2) in [row[:2] for row in before]
    rebuild(plane, "principals")
    assert plane.rows("select * from read.principal order by actor") == before


def test_revocation_of_an_api_key_as_a_principal_revokes_the_key(plane: RunningPlane) -> None:
    key = issue(plane, "by-actor", "admin")
    with client_of(plane, key) as holder, plane.client() as admin:
        assert holder.get("/nodes").is_success
        answer = admin.post("/principals/revoke", json={"actor": f"key:{key.id}", "reason": "lost"})
        assert answer.json() == {"actor": f"key:{key.id}", "reason": "lost", "revoked_at": None}
        refused = holder.get("/nodes")
    assert (refused.status_code, codes(refused)) == (401, ["key_revoked"])


@pytest.mark.parametrize(
    ("actor", "status", "code"),
    [
        ("user:other/alice", 422, "unknown_issuer"),
        ("user:corp/not encoded", 422, "invalid_value"),
        ("user:corp/%63arol", 422, "invalid_value"),
        ("user:corp/%FF", 422, "invalid_value"),
        ("node:n1", 422, "invalid_value"),
        ("key:no-such-key", 404, "unknown_key_id"),
    ],
)
def test_revocation_of_a_principal_that_cannot_exist_is_refused(
    plane: RunningPlane, actor: str, status: int, code: str
) -> None:
    with plane.client() as admin:
        answer = admin.post("/principals/revoke", json={"actor": actor, "reason": "test"})
    assert (answer.status_code, codes(answer)) == (status, [code])


def test_subject_with_unsafe_characters_is_recorded_in_a_form_that_events_can_be_filtered_by(
    plane: RunningPlane, oidc_provider: Provider
) -> None:
    subject = "CN=Älice Smith/%41," + "x" * 200
    token = oidc_provider.sign(oidc_provider.claims(sub=subject, realm_access=None, groups=["/operators"]))
    with caller(plane, token) as client:
        actor = client.get("/whoami").json()["actor"]
        assert actor == "user:corp/CN=%C3%84lice%20Smith%2F%2541," + "x" * 200
        assert client.post("/projects", json={"id": "by-subject"}).status_code == 201
        events = client.get("/events", params={"actor": actor}).json()["items"]
        assert [each["type"] for each in events] == ["project.created"]
        answer = client.post("/principals/revoke", json={"actor": actor, "reason": "test"})
        assert answer.is_success, answer.text
    assert refusal(plane, token) == (401, ["principal_revoked"])


def test_token_is_refused_by_a_control_plane_without_identity_providers(
    shared_plane: RunningPlane, oidc_provider: Provider
) -> None:
    assert refusal(shared_plane, oidc_provider.workload_token()) == (401, ["token_untrusted"])


def test_new_keys_of_an_identity_provider_are_accepted_without_a_restart_and_withdrawn_keys_refused(
    postgres_server: PostgresServer, own_provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_keys, "REFETCH_SECONDS", 0.0)
    old_provider = replace(own_provider)
    with running(postgres_server, oidc=(issuer_of(own_provider),)) as plane:
        old = own_provider.workload_token()
        assert refusal(plane, old) == (200, [])
        own_provider.use_keys(new_keys("2"))
        assert refusal(plane, own_provider.workload_token()) == (200, [])
        assert refusal(plane, old) == (401, ["token_untrusted"])
        claims = own_provider.claims()
        assert refusal(plane, old_provider.sign(claims)) == (401, ["token_untrusted"])
        assert refusal(plane, own_provider.sign(claims)) == (200, [])


def test_identity_provider_outage_does_not_affect_api_keys_and_affects_tokens_only_at_the_maximum_age_of_its_keys(
    postgres_server: PostgresServer, own_provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_keys, "REFETCH_SECONDS", 0.0)
    with running(postgres_server, oidc=(issuer_of(own_provider, keys_max_age_seconds=2),)) as plane:
        token = own_provider.workload_token()
        assert refusal(plane, token) == (200, [])
        own_provider.close()
        until(
            lambda: refusal(plane, token) == (503, ["identity_provider_unavailable"]), "the keys are too old"
        )
        with plane.client() as admin:
            assert admin.get("/nodes").is_success
        own_provider.open()
        assert refusal(plane, token) == (200, [])
