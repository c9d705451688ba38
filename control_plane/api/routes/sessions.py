"""`/v1/sessions`: start, list, show and end sessions: short-lived credentials that callers get in exchange for an API
key or a token.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from control_plane.api.requests.access import AUTHENTICATED, AuthenticatedRoute, Caller, credential_of
from control_plane.api.requests.bodies import ReasonOnly, StartSession
from control_plane.api.requests.caller_sessions import principal_of_session
from control_plane.api.requests.commands import DryRun, dry, execute, execute_with_secret, try_out
from control_plane.api.requests.conditional import IF_MATCH, TAGGED, set_version
from control_plane.api.requests.held_credential import CredentialKind, HeldCredential
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, invalid_cursor
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of, plane_of
from control_plane.api.views.allowed_actions import AllowedActions, actions_on_session
from control_plane.commands.sessions import RequestedSession, end_session, start_session, unknown_session
from control_plane.decisions.access import SCOPES_OF, Principal, Scope, may, require
from control_plane.decisions.refusals import Forbidden, Objection
from control_plane.identity import caller_sessions
from control_plane.identity.api_keys import digest
from control_plane.identity.caller_sessions import SessionRow, new_secret
from events.sessions import SessionStarted
from events.values import InvalidValue, SessionId, session_id, stream_of_session

router = APIRouter(prefix="/v1/sessions", tags=["access"], responses=PROBLEMS, route_class=AuthenticatedRoute)
State = Literal["active", "ended", "expired"]


class SessionView(BaseModel):
    """A session, without its secret. `projects` of null means all projects.

    `state`: active; ended, if the session was ended, or the API key or caller that started it was revoked or disabled;
    or expired, if the session or its API key has expired, or the session was not used for `idle_seconds`.
    """

    id: str
    actor: str
    """Caller that started the session. Requests with the session have this actor."""
    credential: str
    """Id of the API key or token that started the session."""
    credential_kind: Literal[CredentialKind.KEY, CredentialKind.TOKEN]
    label: str
    state: State
    role: str
    scopes: list[str]
    projects: list[str] | None
    started_at: datetime
    expires_at: datetime
    """Time from which the session is refused, even if it is in use."""
    idle_seconds: int
    """Time without a request after which the session is refused."""
    last_used_at: datetime | None
    """Time of the last request with the session, late by at most the setting `credential_use_seconds`; null: never."""
    last_used_from: str | None
    """Address that sent the last request with the session."""
    refusal: str | None
    """Code with which a request with the session is refused; null: it is accepted."""
    reason: str | None
    """Reason for which the session was ended; null: it was not ended by a request."""
    allowed_actions: AllowedActions


class StartedSession(SessionView):
    """A new session. `secret` is its secret, which no other request returns."""

    secret: str


def _view(row: SessionRow, caller: Principal) -> SessionView:
    principal = principal_of_session(row)
    return SessionView(
        id=row.session_id,
        actor=row.actor,
        credential=row.credential,
        credential_kind=CredentialKind.KEY if row.of_key else CredentialKind.TOKEN,
        label=row.label,
        state=row.state,
        role=principal.role,
        scopes=sorted(principal.scopes),
        projects=_projects(principal),
        started_at=row.started_at,
        expires_at=row.accepted_until,
        idle_seconds=row.idle_seconds,
        last_used_at=row.used_at,
        last_used_from=row.used_from,
        refusal=row.refusal,
        reason=row.ended,
        allowed_actions=actions_on_session(caller, row.actor),
    )


def _projects(principal: Principal) -> list[str] | None:
    return None if principal.projects is None else sorted(principal.projects)


@router.post(
    "",
    status_code=201,
    response_model=StartedSession,
    responses=dry(SessionView),
    openapi_extra=AUTHENTICATED,
)
async def start(
    request: Request, principal: Caller, body: StartSession, *, dry_run: DryRun = False
) -> Response | StartedSession:
    """Start a session with an API key or a token. The session has the same actor and permissions. It ends when the API
    key that started it expires or is revoked, or when its caller is revoked or disabled.

    The secret of the session is sent like an API key. It is returned only to this request and to repetitions with the
    same Idempotency-Key; only a hash of it is stored, and the answer that the repetitions get is encrypted. A dry run
    returns no secret.
    """
    held, settings, secret = credential_of(request), plane_of(request).settings, new_secret()
    wanted = _requested(held, body, settings.session_idle_seconds)

    def render(fact: SessionStarted) -> str:
        return _view_of_new(fact, held).model_dump_json()

    origin = origin_of(request, principal)
    command = start_session(wanted, digest(secret), origin, settings.max_session_lifetime, render)
    if dry_run:
        return await try_out(request, command)
    made = await execute_with_secret(request, command, {"secret": secret})
    set_version(request, 1)
    return StartedSession(**made)


def _requested(held: HeldCredential, body: StartSession, idle_seconds: int) -> RequestedSession:
    """Return the session that a request with this credential starts. Raises `Forbidden` if the credential is itself a
    session.
    """
    if held.kind is CredentialKind.SESSION:
        # Else a stolen session could be renewed without end.
        reason = "a session cannot start another session; send an API key or a token"
        raise Forbidden(Objection("session_not_renewable", reason))
    principal = held.principal
    lifetime = None if body.lifetime_seconds is None else timedelta(seconds=body.lifetime_seconds)
    if held.kind is CredentialKind.KEY:
        return RequestedSession(
            actor=principal.actor,
            credential=held.id,
            label=body.label,
            idle_seconds=idle_seconds,
            lifetime=lifetime,
            ends_by=_time(held.expires_at),
        )
    limited = principal.scopes != SCOPES_OF[principal.role]
    return RequestedSession(
        actor=principal.actor,
        credential=held.id,
        label=body.label,
        idle_seconds=idle_seconds,
        lifetime=lifetime,
        token_issued_at=_time(held.issued_at),
        role=principal.role,
        projects=tuple(sorted(principal.projects or ())),
        scopes=tuple(sorted(principal.scopes)) if limited else (),
    )


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _view_of_new(fact: SessionStarted, held: HeldCredential) -> SessionView:
    principal = held.principal
    return SessionView(
        id=fact.session_id,
        actor=fact.actor,
        credential=fact.credential,
        credential_kind=CredentialKind.KEY if held.kind is CredentialKind.KEY else CredentialKind.TOKEN,
        label=fact.label,
        state="active",
        role=principal.role,
        scopes=sorted(principal.scopes),
        projects=_projects(principal),
        started_at=fact.started_at,
        expires_at=fact.expires_at,
        idle_seconds=fact.idle_seconds,
        last_used_at=None,
        last_used_from=None,
        refusal=None,
        reason=None,
        allowed_actions=actions_on_session(principal, fact.actor),
    )


@router.get("", openapi_extra=AUTHENTICATED)
async def list_sessions(
    request: Request,
    principal: Caller,
    *,
    actor: Annotated[
        str | None,
        Query(max_length=300, description="Only sessions of this actor, such as `user:corp/alice`."),
    ] = None,
    state: Annotated[State | None, Query(description="Only in this state.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    order: Order = "asc",
) -> Page[SessionView]:
    """List the sessions of the caller, or with the scope `access:read` those of all callers, by their time of start."""
    after = None if cursor is None else _cursor(cursor)
    if not may(principal, Scope.ACCESS_READ):
        if actor not in (None, principal.actor):
            return Page(items=[], next_cursor=None)
        actor = principal.actor
    async with plane_of(request).engine.connect() as conn:
        rows = await caller_sessions.page(
            conn, after=after, limit=limit, descending=order == "desc", actor=actor, state=state
        )
    following = rows[-1].session_id if len(rows) == limit else None
    return Page(items=[_view(row, principal) for row in rows], next_cursor=following)


@router.get("/{session}", openapi_extra=AUTHENTICATED, **TAGGED)
async def show(request: Request, principal: Caller, session: str) -> SessionView:
    """Return one session of the caller, or with the scope `access:read` of any caller."""
    row = await _visible(request, principal, session)
    set_version(request, row.version)
    return _view(row, principal)


@router.post("/{session}/end", dependencies=[IF_MATCH], openapi_extra=AUTHENTICATED)
async def end(request: Request, principal: Caller, session: str, body: ReasonOnly) -> SessionView:
    """End a session of the caller, or with the scope `access:write` of any caller: it is refused from now on.
    Idempotent.
    """
    row = await _visible(request, principal, session)
    if row.actor != principal.actor:
        require(principal, Scope.ACCESS_WRITE)
    command = end_session(row.session_id, body.reason, origin_of(request, principal))
    await execute(request, command, stream_of_session(row.session_id))
    return await show(request, principal, session)


async def _visible(request: Request, principal: Principal, name: str) -> SessionRow:
    """Return a session that the caller may read. Raises `UnknownName`, as for a session that does not exist."""
    async with plane_of(request).engine.connect() as conn:
        row = await caller_sessions.find(conn, _named(name))
    if row is None or not (row.actor == principal.actor or may(principal, Scope.ACCESS_READ)):
        raise unknown_session(name)
    return row


def _named(raw: str) -> SessionId:
    try:
        return session_id(raw)
    except InvalidValue:
        raise unknown_session(raw) from None


def _cursor(raw: str) -> SessionId:
    try:
        return session_id(raw)
    except InvalidValue:
        raise invalid_cursor(raw) from None
