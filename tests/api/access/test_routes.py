"""Tests that each route of the API is open exactly to the principals that its declaration names.

The routes come from the OpenAPI document of a running control plane. The usual run sends requests as every kind of
principal to one route of each declaration, and as a few kinds to each other route. `./dev torture --only P21` sends
them as every kind to every route.
"""

import json
import random
from collections.abc import Iterable, Iterator
from typing import Any, Final
from uuid import UUID

import httpx
import pytest
from fastapi import APIRouter

from control_plane.api.requests.access import (
    EXTENSION,
    SELF_VERIFIED,
    UndeclaredRoute,
    access,
    declaration_of,
)
from control_plane.decisions.access import OF_PROJECTS, Scope
from deploy.embedded.postgres import PostgresServer
from tests import matrix, torture
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
from tests.api.node import admit
from tests.servers.oidc_provider import Provider
from tests.servers.plane import TLS_CONTEXT, RunningPlane, running

PARTS: Final = {
    "allocation": "alc-0000000000000000000000000a",
    "console": "con-0000000000000000000000000a",
    "stream_id": str(UUID(int=1)),
    "ingress": "ing-0000000000000000000000000a",
    "task_id": str(UUID(int=1)),
    "node": "no-such-node",
    "index": "0",
    "kind": "allocation",
    "name": "alc-0000000000000000000000000a",
    "stream": "no-such-stream",
    "period": "no-such-period",
    "verification": str(UUID(int=1)),
    "project": "no-such-project",
    "account": "no-such-account",
    "key": "no-such-key",
    "session": "ses-0000000000000000000000000a",
    "sku": "no-such-sku",
    "image": "no-such-image",
    "app_profile": "no-such-profile",
    "check": "postgres",
    "code": "no_capacity",
    "problem": "conflict",
    "position": "1",
}
ENTERED: Final = {
    *("no_credentials", "unknown_key", "key_revoked", "key_expired", "unknown_node"),
    *("principal_revoked", "service_account_disabled", "session_ended"),
}
"""Reason codes of a request without valid credentials."""
REFUSED: Final = {"role_missing", "scope_missing", "limited_to_projects"}
"""Reason codes of a request with credentials that do not permit it."""


_FEW: Final = 5
"""Kinds of principals that the usual run tests on a route with a declaration like that of another route."""


INVALID: Final = {
    *("anonymous", "unknown", "revoked", "expired", "disabled", "node"),
    *(
        "token of a revoked caller",
        "session of a revoked caller",
        "session of a revoked key",
        "ended session",
    ),
}
"""Kinds of principals without credentials that are valid on routes of callers."""
OF_CALLERS: Final = ("caller", "caller with a token", "caller of an account", "caller with a session")


@pytest.fixture(scope="module")
def shared_plane(postgres_server: PostgresServer, oidc_provider: Provider) -> Iterator[RunningPlane]:
    """Control plane that trusts an identity provider."""
    with running(postgres_server, oidc=(issuer_of(oidc_provider, clock_skew_seconds=0),)) as made:
        yield made


def tokens(plane: RunningPlane, provider: Provider) -> dict[str, str]:
    """Return a token of each kind of principal: two from the provider, and one of a revoked caller, signed here."""
    revoked = provider.sign(provider.claims(sub="leaver", realm_access=None, groups=["/operators"]))
    session = session_of(plane, revoked)
    with plane.client() as admin:
        body = {"actor": "user:corp/leaver", "reason": "lost"}
        assert admin.post("/principals/revoke", json=body).is_success
    admins = provider.user_token("olivia")
    return {
        "caller with a token": provider.workload_token(),
        "admin with a token": admins,
        "admin with a session": session_of(plane, admins).secret,
        "token of a revoked caller": revoked,
        "session of a revoked caller": session.secret,
    }


@pytest.fixture(scope="module")
def callers(shared_plane: RunningPlane, oidc_provider: Provider) -> dict[str, dict[str, str]]:
    """Headers of the credentials of each kind of principal."""
    create_project(shared_plane, "own")
    node = admit(shared_plane, "n1")
    accounts = [
        create_account(shared_plane, "job", projects=["own"]),
        create_account(shared_plane, "stopped", "admin"),
    ]
    keys = {
        "caller": issue(shared_plane, "caller", projects=["own"]),
        "admin": issue(shared_plane, "root", "admin"),
        "auditor": issue(shared_plane, "auditor", "auditor"),
        "admin of a project": issue(shared_plane, "owner", "admin", projects=["own"]),
        "without a scope": issue(shared_plane, "none", "admin", scopes=["catalogue:read"]),
        "caller of an account": key_of_account(shared_plane, accounts[0]),
        "disabled": key_of_account(shared_plane, accounts[1]),
        "revoked": issue(shared_plane, "revoked", "admin"),
        "expired": issue(shared_plane, "expired", "admin"),
    }
    sessions = {
        "caller with a session": session_of(shared_plane, keys["caller"].secret),
        "session of a revoked key": session_of(shared_plane, keys["revoked"].secret),
        "ended session": session_of(shared_plane, keys["admin"].secret),
    }
    with client_of(shared_plane, keys["admin"]) as owner:
        ended = owner.post(f"/sessions/{sessions['ended session'].id}/end", json={"reason": "over"})
        assert ended.is_success
    with shared_plane.client() as admin:
        assert admin.post(f"/keys/{keys['revoked'].id}/revoke", json={"reason": "lost"}).is_success
        assert admin.post("/service-accounts/stopped/disable", json={"reason": "lost"}).is_success
    expire(shared_plane, keys["expired"])
    made: dict[str, dict[str, str]] = {name: key.headers for name, key in (keys | sessions).items()}
    authorization = node.headers["authorization"]
    return {
        **made,
        "node": {"Authorization": authorization},
        "anonymous": {},
        "unknown": Key("", "sp_x").headers,
        **{name: Key("", token).headers for name, token in tokens(shared_plane, oidc_provider).items()},
    }


def routes(plane: RunningPlane) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and declaration of every route in the OpenAPI document."""
    document = plane.document()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, operation[EXTENSION]


def expected(principal: str, declared: dict[str, Any]) -> str:
    """Return what the access declaration of a route means for a principal: `pass`, `enter` (credentials are
    required), `refuse`, or `verify`: the route itself verifies credentials in the body of the request, and the
    requests of this test have no body.
    """
    roles = declared["roles"]
    if declared.get("verified_by") == "route":
        return "verify"
    if not roles:
        return "pass"
    if roles == ["node"]:
        return "pass" if principal == "node" else "enter"
    if principal in INVALID:
        return "enter"
    scope = declared.get("scope")
    if scope is None:
        return "pass"
    if principal == "without a scope":
        return "pass" if scope == "catalogue:read" else "refuse"
    role = principal.split(maxsplit=1)[0]
    limited = principal in (*OF_CALLERS, "admin of a project") and declared["projects"] == "all"
    return "pass" if role in roles and not limited else "refuse"


def cases(
    every: Iterable[tuple[str, str, dict[str, Any]]], principals: Iterable[str]
) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Yield pairs of a route and a principal to send a request with: all principals for one route of each declaration,
    and a random sample of them for each other route.
    """
    chance, names, declarations = random.Random(f"P21 {torture.seed()}"), [*principals], set[str]()
    for method, path, declared in chance.sample(listed := [*every], len(listed)):
        is_new = (text := json.dumps(declared, sort_keys=True)) not in declarations
        declarations.add(text)
        taken = names if matrix.is_full() or is_new else chance.sample(names, _FEW)
        for principal in taken:
            yield method, path, declared, principal


def codes_of(answer: httpx.Response) -> set[str]:
    """Return the reason codes of a refusal. For any other response, return an empty set without reading the body, which
    never ends if the response is an event stream.
    """
    if answer.headers.get("content-type") != "application/problem+json":
        return set()
    answer.read()
    return {reason["code"] for reason in answer.json()["reasons"]}


def outcome(answer: httpx.Response, codes: set[str]) -> str:
    if answer.is_server_error and answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
        return "fail"
    if answer.status_code == httpx.codes.UNAUTHORIZED and codes <= ENTERED:
        return "enter"
    return "refuse" if answer.status_code == httpx.codes.FORBIDDEN and codes <= REFUSED else "pass"


def test_every_route_is_open_exactly_to_the_principals_that_its_access_declaration_names(
    shared_plane: RunningPlane, callers: dict[str, dict[str, str]]
) -> None:
    wrong, count = [], 0
    with shared_plane.client() as client:
        for method, path, declared, principal in cases(routes(shared_plane), callers):
            url = f"{shared_plane.url}{path.format(**PARTS)}"
            client.headers.pop("authorization", None)
            with client.stream(method, url, headers=callers[principal], json=None) as answer:
                found = outcome(answer, codes_of(answer))
            count += 1
            wanted = expected(principal, declared)
            if found != wanted and not (wanted == "verify" and found in ("pass", "enter")):
                wrong.append((method, path, principal, found, answer.status_code))
    assert wrong == []
    assert count > 900


def test_credentials_of_every_route_are_checked_before_the_body_is_parsed(
    shared_plane: RunningPlane, callers: dict[str, dict[str, str]]
) -> None:
    document = shared_plane.document()
    bodies = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if "requestBody" in operation
    }
    found, wanted = {}, {}
    with httpx.Client(verify=TLS_CONTEXT) as client:
        for method, path, declared in routes(shared_plane):
            if (method, path) not in bodies or declared == SELF_VERIFIED[EXTENSION]:
                continue
            for principal in ("anonymous", "admin"):
                headers = {**callers[principal], "Content-Type": "application/json"}
                url = f"{shared_plane.url}{path.format(**PARTS)}"
                with client.stream(method, url, headers=headers, content=b"{") as answer:
                    found[method, path, principal] = codes_of(answer)
                wanted[method, path, principal] = (
                    {"no_credentials"}
                    if principal == "anonymous"
                    else {"unknown_node"}
                    if declared["roles"] == ["node"]
                    else {"invalid_json"}
                )
    assert found == wanted
    assert len(found) >= 50


def test_request_without_the_required_scope_is_refused_before_its_body_is_parsed(
    shared_plane: RunningPlane, callers: dict[str, dict[str, str]]
) -> None:
    headers = {**callers["auditor"], "Content-Type": "application/json"}
    answer = httpx.post(f"{shared_plane.url}/v1/projects", headers=headers, content=b"{", verify=TLS_CONTEXT)
    assert (answer.status_code, codes_of(answer)) == (403, {"role_missing"})


def test_route_without_an_access_declaration_is_refused_when_the_application_is_built() -> None:
    router = APIRouter()

    @router.get("/open")
    async def undeclared() -> None: ...

    with pytest.raises(UndeclaredRoute, match="/open"):
        declaration_of(router.routes[0])


def test_access_declaration_names_the_roles_that_grant_its_scope_and_whether_projects_limit_the_route() -> (
    None
):
    for scope in Scope:
        declared = access(scope)[EXTENSION]
        assert "admin" in declared["roles"]
        assert ("caller" in declared["roles"]) == (declared["projects"] == "own") == (scope in OF_PROJECTS)
