"""Authentication and authorisation of every request.

Callers send an API key, the token of an identity provider or the secret of a session, nodes send
`<node_id>:<credential>`; each as a Bearer token. Only hashes of API keys, sessions and credentials are stored; they are
compared in constant time or looked up in the database. Tokens of identity providers are not stored, and no part of them
is logged.

Each route declares its required scope or role, with `openapi_extra=access(...)`, and is an `AuthenticatedRoute`, which
checks the declaration before it parses anything of the request. The declaration is part of the OpenAPI document. An
application with a route that is undeclared, or of another class, does not start.
"""

import time
from collections.abc import Callable, Coroutine
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, cast

import structlog
from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute

from control_plane.api.audit.entries import entry_of, storable
from control_plane.api.requests.caller_sessions import streams_of_key, verify_session
from control_plane.api.requests.deprecation import announce_deprecation
from control_plane.api.requests.held_credential import CredentialKind, HeldCredential
from control_plane.api.requests.key_lookups import Lookups
from control_plane.api.requests.state import limits_of, plane_of
from control_plane.database import reading
from control_plane.decisions.access import (
    OF_PROJECTS,
    Principal,
    Role,
    Scope,
    require,
    roles_with,
    scopes_of,
)
from control_plane.decisions.refusals import Objection, Unauthorised
from control_plane.decisions.tokens import (
    REASONS,
    TokenHolder,
    TokenRefused,
    has_form_of_token,
    refuse_expired,
    refuse_revoked,
)
from control_plane.identity.api_keys import digest
from control_plane.identity.caller_sessions import PREFIX
from control_plane.identity.oidc import Verifier
from control_plane.identity.sessions import PresentedCredential, refuse_unknown_node
from events.values import InvalidValue, NodeId, node_id, stream_of_principal
from read_models import principals
from read_models.keys import KeyRow

log = structlog.get_logger()
EXTENSION: Final = "x-sliceplane-access"
"""Name of the field of an operation in the OpenAPI document that states the required scope or role."""

bearer: Final = HTTPBearer(
    auto_error=False,
    description="An API key, a token of an identity provider, a session, or a node's id and credential.",
)
"""Reader of the `Authorization` header. As a dependency of a route, it documents the header."""


def access(scope: Scope) -> dict[str, Any]:
    """Return the declaration of a route that requires a scope. If the scope is one of `OF_PROJECTS`, the requests of a
    principal concern only its projects.
    """
    declared = {
        "scope": scope.value,
        "roles": [role.value for role in roles_with(scope)],
        "projects": "own" if scope in OF_PROJECTS else "all",
    }
    return {EXTENSION: declared}


NOT_RECORDED: Final = "never"
"""Value of `audit` in the declaration of a route that the access log omits, even if the request is refused."""
NODES: Final[dict[str, Any]] = {EXTENSION: {"roles": ["node"], "audit": "refusals"}}
"""Declaration of a route for nodes, which authenticate with the credential of their session. The access log has only
refusals of such requests, unless the setting `audit_nodes` is `all`.
"""
SELF_VERIFIED: Final[dict[str, Any]] = {EXTENSION: {"roles": ["node"], "verified_by": "route"}}
"""Declaration of a route for nodes that verifies a token, a proof or a credential itself."""
HEARTBEATS: Final[dict[str, Any]] = {
    EXTENSION: {"roles": ["node"], "verified_by": "route", "audit": "refusals"}
}
"""Declaration of the route of heartbeats, which verifies the credentials of nodes in batches. Before the body is
parsed, only the form of the credentials is checked.
"""
EVERYONE: Final[dict[str, Any]] = {EXTENSION: {"roles": []}}
"""Declaration of a route that requires no credentials."""
HEALTH: Final[dict[str, Any]] = {EXTENSION: {"roles": [], "audit": NOT_RECORDED}}
"""Declaration of a health check, which works without credentials and without a database."""
AUTHENTICATED: Final[dict[str, Any]] = {EXTENSION: {"roles": [role.value for role in Role]}}
"""Declaration of a route that every principal may use, such as a route about the caller itself."""


class UndeclaredRoute(Exception):
    """A route has no declaration of its required scope or role, or does not check it."""

    def __init__(self, route: BaseRoute) -> None:
        super().__init__(f"{route} is not an AuthenticatedRoute that declares openapi_extra=access(...)")


class AuthenticatedRoute(APIRoute):
    """Route that checks size, credentials, quotas and scope of a request, in this order, before it parses the body.

    FastAPI parses the body before it runs the dependencies of a route, so a dependency would authenticate too late:
    requests without valid credentials could occupy the processor, and would not be counted.
    """

    def handler_after_authentication(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that handles a request with verified credentials. By default, this is FastAPI's own."""
        return super().get_route_handler()

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = self.handler_after_authentication()

        async def authenticated(request: Request) -> Response:
            announce_deprecation(request)
            if self.body_field is not None:
                await _receive(request)
            await authorise(request)
            return await handle(request)

        return authenticated


async def _receive(request: Request) -> None:
    """Receive the body of a request; the middleware `Bounded` limits its size.

    The body is received before the credentials are verified, because they can be revoked while a client sends the body
    slowly.
    """
    try:
        await request.body()
    except ClientDisconnect:
        raise HTTPException(HTTPStatus.BAD_REQUEST) from None


def declaration_of(route: BaseRoute) -> dict[str, Any]:
    """Return the declaration of a route. Raises `UndeclaredRoute`."""
    if not isinstance(route, AuthenticatedRoute) or EXTENSION not in (route.openapi_extra or {}):
        raise UndeclaredRoute(route)
    return cast(dict[str, Any], (route.openapi_extra or {})[EXTENSION])


async def authorise(request: Request) -> None:
    """Check the credentials of a request against the declaration of its route, and store the caller in the request, for
    its handler and for the access log.

    Raises `Unauthorised`, `Forbidden`, and `Throttled` for a principal that exceeds a limit of its requests.
    """
    declared, entry = declaration_of(request.scope["route"]), entry_of(request)
    entry.route = request.scope["route"].path
    if not declared["roles"] or declared == SELF_VERIFIED[EXTENSION]:
        return
    credentials = await bearer(request)
    if declared == HEARTBEATS[EXTENSION]:
        request.state.presented = _presented(credentials)
        return
    if declared == NODES[EXTENSION]:
        presented = _presented(credentials)
        number = await _session(request, presented)
        request.state.node = presented.node_id
        entry.principal, entry.credential = f"node:{presented.node_id}", f"{presented.node_id}/{number}"
        return
    limits = limits_of(request)
    if credentials is None:
        await limits.count_invalid(request)
    secret = _secret(credentials)
    async with limits.verification(request, digest(secret)):
        held = await _verified(request, secret)
    principal = held.principal
    entry.principal = storable(principal.actor)
    await limits.spend(request, principal)
    if "scope" in declared:
        require(principal, Scope(declared["scope"]))
    request.state.principal, request.state.credential = principal, held


async def _verified(request: Request, secret: str) -> HeldCredential:
    if has_form_of_token(secret):
        return await _token(request, secret)
    if secret.startswith(PREFIX):
        return await verify_session(request, digest(secret))
    return await _key(request, digest(secret))


async def _key(request: Request, key_sha256: str) -> HeldCredential:
    found = await cast(Lookups[tuple[KeyRow, bool]], request.app.state.key_lookups).find(key_sha256)
    if found is None:
        raise Unauthorised(
            Objection("unknown_key", "unknown API key; check the key in the Authorization header")
        )
    row, expired = found
    entry_of(request).credential = row.key_id
    if row.revoked is not None:
        raise Unauthorised(Objection("key_revoked", "this API key was revoked; use another key"))
    if row.disabled is not None:
        reason = f"the service account {row.service_account} of this API key is disabled; enable it, or use another key"
        raise Unauthorised(Objection("service_account_disabled", reason))
    if expired:
        raise Unauthorised(Objection("key_expired", "this API key has expired; use another key"))
    expires_at = None if row.expires_at is None else row.expires_at.timestamp()
    again = partial(_key, request, key_sha256)
    principal = principal_of(row)
    return HeldCredential(
        principal,
        CredentialKind.KEY,
        row.key_id,
        streams_of_key(row.key_id, row.service_account),
        expires_at,
        again,
    )


async def _token(request: Request, token: str) -> HeldCredential:
    try:
        holder = await cast(Verifier, request.app.state.verifier).verify(token)
    except TokenRefused as refused:
        raise _unauthorised(refused) from None
    credential = entry_of(request).credential = holder.credential(digest(token))
    return await _unrevoked(request, holder, credential)


async def _unrevoked(request: Request, holder: TokenHolder, credential: str) -> HeldCredential:
    """Return the credential of a verified token and its holder. Raises `Unauthorised` if the token has expired or was
    revoked.
    """
    actor = holder.principal.actor
    async with reading(plane_of(request).engine) as conn:
        revoked_at = await principals.revoked_at(conn, actor)
    try:
        refuse_expired(holder, time.time())
        if revoked_at is not None:
            refuse_revoked(holder, revoked_at)
    except TokenRefused as refused:
        raise _unauthorised(refused) from None
    return HeldCredential(
        holder.principal,
        CredentialKind.TOKEN,
        credential,
        (stream_of_principal(actor),),
        holder.expires_at,
        partial(_unrevoked, request, holder, credential),
        issued_at=holder.earliest_issue,
    )


def _unauthorised(refused: TokenRefused) -> Unauthorised:
    log.info("token_refused", code=refused.code, cause=refused.cause)
    return Unauthorised(Objection(refused.code, REASONS[refused.code]))


def principal_of(row: KeyRow) -> Principal:
    """Return the principal that an API key identifies."""
    role = Role(row.role)
    projects = frozenset(row.projects) if row.projects else None
    return Principal(row.actor, role, scopes_of(role, frozenset(row.scopes)), projects)


def _presented(credentials: HTTPAuthorizationCredentials | None) -> PresentedCredential:
    """Return the credentials of a calling node without verifying them. Raises `Unauthorised` if they are malformed."""
    raw, _, credential = _secret(credentials).partition(":")
    try:
        name = node_id(raw)
    except InvalidValue:
        raise Unauthorised(
            Objection(
                "unknown_node",
                "the node credentials in the Authorization header do not have the form '<node id>:<credential>'; correct them",
            )
        ) from None
    return PresentedCredential(name, digest(credential))


async def _session(request: Request, presented: PresentedCredential) -> int:
    """Return the number of the node session to which the presented credential belongs. Raises `Unauthorised`."""
    async with reading(plane_of(request).engine) as conn:
        return await refuse_unknown_node(conn, presented)


def _secret(credentials: HTTPAuthorizationCredentials | None) -> str:
    if credentials is None:
        reason = "the request has no credentials; send 'Authorization: Bearer <API key, token or session>'"
        raise Unauthorised(Objection("no_credentials", reason))
    return credentials.credentials


def caller_of(request: Request) -> Principal:
    """Return the principal that `authorise` has verified."""
    return cast(Principal, request.state.principal)


def credential_of(request: Request) -> HeldCredential:
    """Return the credential that `authorise` has verified. Only for routes that callers use, not nodes."""
    return cast(HeldCredential, request.state.credential)


# FastAPI runs a dependency that is not a coroutine function in a thread, which costs more than the dependency.
async def _caller(request: Request) -> Principal:
    return caller_of(request)


async def _node_of(request: Request) -> NodeId:
    return cast(NodeId, request.state.node)


async def _shown_by(request: Request) -> PresentedCredential:
    return cast(PresentedCredential, request.state.presented)


Caller = Annotated[Principal, Depends(_caller)]
CallingNode = Annotated[NodeId, Depends(_node_of)]
ShownByNode = Annotated[PresentedCredential, Depends(_shown_by)]
"""The unverified credentials that a node presents, for the route of heartbeats, which verifies them itself."""
