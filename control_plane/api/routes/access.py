"""`/v1/keys`, `/v1/principals` and `/v1/whoami`: API keys, revocation, and the caller of a request."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator, BaseModel

from control_plane.api.requests.access import (
    AUTHENTICATED,
    AuthenticatedRoute,
    Caller,
    access,
    caller_of,
    credential_of,
    principal_of,
)
from control_plane.api.requests.bodies import (
    IssueKey,
    ReasonOnly,
    RevokePrincipal,
    RotateKey,
    SetPrincipalLimits,
    recorded_actor,
)
from control_plane.api.requests.commands import DryRun, dry, execute, execute_with_secret, try_out
from control_plane.api.requests.conditional import IF_MATCH, TAGGED, set_version
from control_plane.api.requests.held_credential import CredentialKind
from control_plane.api.requests.pages import Cursor, Limit, Order, Page
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of, plane_of
from control_plane.api.views.allowed_actions import AllowedActions, actions_on_key
from control_plane.api.views.quota_views import (
    PrincipalLimitsView,
    PrincipalUseView,
    principal_limits_view,
    principal_use_view,
)
from control_plane.commands.access import (
    KeyRequest,
    issue_key,
    replace_key,
    revoke_key,
    revoke_tokens,
    set_principal_limits,
    unknown_key,
)
from control_plane.commands.service_accounts import disable_service_account
from control_plane.decisions.access import Principal, Role, Scope, may
from control_plane.decisions.refusals import Malformed, Objection
from control_plane.decisions.tokens import issuer_of
from control_plane.handle import database_time
from control_plane.identity.api_keys import digest, new_secret
from control_plane.work import credential_uses
from control_plane.work.credential_uses import StoredUse
from events.principals import PrincipalLimits
from events.values import ProjectId, ServiceAccountId, stream_of_key, stream_of_principal
from read_models import keys, principals
from read_models.keys import KeyRow
from read_models.quota_use import used_by

router = APIRouter(prefix="/v1", tags=["access"], responses=PROBLEMS, route_class=AuthenticatedRoute)
_BEFORE_EXPIRY: Final = datetime.min.replace(tzinfo=UTC)
"""Present time to assume in the view of a newly issued API key: earlier than every expiry, because the key has not
expired.
"""


class KeyView(BaseModel):
    """An API key, without its secret. `state`: active or revoked; an expired key stays active in this list.

    `projects` of null means all projects. `reason` is why it was revoked.
    """

    id: str
    name: str
    service_account: str | None
    """Service account that requests with the key act as. The key has its role, projects and scopes."""
    role: str
    state: str
    scopes: list[str]
    projects: list[str] | None
    expires_at: datetime | None
    last_used_at: datetime | None
    """Time of the last request with the key, late by at most the setting `credential_use_seconds`; null: never."""
    last_used_from: str | None
    """Address that sent the last request with the key."""
    replaces: str | None
    """Key that this one replaces, after a rotation."""
    successor: str | None
    """Key that replaces this one, after a rotation."""
    reason: str | None
    allowed_actions: AllowedActions
    """Actions that the caller may take now, or the reason why not."""


class IssuedKey(KeyView):
    """A new API key. `key` is its secret, which no other request returns."""

    key: str


class CallerView(BaseModel):
    """The caller of the request. `actor` is the name under which the ledger records what it does; `projects` of null
    means all projects. `scopes` are those that it can use: a caller that is limited to projects cannot use the scopes
    that concern all projects.
    """

    actor: str
    role: str
    scopes: list[str]
    projects: list[str] | None
    credential: str
    """Id of the API key, token or session of the request, as in the access log."""
    credential_kind: CredentialKind
    expires_at: datetime | None
    """Time from which the credential is refused; null: it does not expire."""
    currency: str
    """Currency of all prices and amounts that the API returns (ISO 4217)."""
    tasks_kept_seconds: int
    """How long tasks are listed after they succeeded or were superseded."""
    failed_tasks_kept_seconds: int
    """How long other ended tasks are listed."""


class RevokedPrincipal(BaseModel):
    """A revoked caller. Its tokens that were issued until `revoked_at` are refused. `revoked_at` is null for an API
    key, which is refused permanently, and for a service account, of which every key is refused until it is enabled.
    """

    actor: str
    reason: str
    revoked_at: datetime | None


class PrincipalQuotaView(BaseModel):
    """Limits of a caller, and what the allocations that it requested use of them, in all projects together."""

    actor: str
    limits: PrincipalLimitsView
    used: PrincipalUseView


def _view(row: KeyRow, caller: Principal, now: datetime, use: StoredUse | None = None) -> KeyView:
    principal = principal_of(row)
    return KeyView(
        id=row.key_id,
        name=row.name,
        service_account=row.service_account,
        role=row.role,
        state="active" if row.revoked is None else "revoked",
        scopes=sorted(principal.scopes),
        projects=None if principal.projects is None else sorted(principal.projects),
        expires_at=row.expires_at,
        last_used_at=None if use is None else use.at,
        last_used_from=None if use is None else use.source,
        replaces=row.replaces,
        successor=row.successor,
        reason=row.revoked,
        allowed_actions=actions_on_key(caller, row, now),
    )


@router.get("/whoami", openapi_extra=AUTHENTICATED)
async def caller(request: Request, principal: Caller) -> CallerView:
    """Return the role, scopes and projects of the caller, the credential of the request, the currency, and how long
    ended tasks are listed.
    """
    held, settings = credential_of(request), plane_of(request).settings
    return CallerView(
        actor=principal.actor,
        role=principal.role,
        scopes=sorted(scope for scope in principal.scopes if may(principal, scope)),
        projects=None if principal.projects is None else sorted(principal.projects),
        credential=held.id,
        credential_kind=held.kind,
        expires_at=None if held.expires_at is None else datetime.fromtimestamp(held.expires_at, UTC),
        currency=settings.currency,
        tasks_kept_seconds=int(timedelta(days=settings.tasks_kept_days).total_seconds()),
        failed_tasks_kept_seconds=int(timedelta(days=settings.failed_tasks_kept_days).total_seconds()),
    )


@router.post(
    "/keys",
    status_code=201,
    response_model=IssuedKey,
    responses=dry(KeyView),
    openapi_extra=access(Scope.ACCESS_WRITE),
)
async def issue(
    request: Request, principal: Caller, body: IssueKey, *, dry_run: DryRun = False
) -> Response | IssuedKey:
    """Issue an API key, with scopes that the caller has itself.

    Its secret is returned only to this request and to repetitions with the same Idempotency-Key; only a hash of it is
    stored, and the answer that the repetitions get is encrypted. A dry run returns no secret.
    """
    wanted = KeyRequest(
        name=body.name,
        role=body.role,
        projects=body.distinct_projects,
        scopes=body.distinct_scopes,
        lifetime=None if body.lifetime_seconds is None else timedelta(seconds=body.lifetime_seconds),
        service_account=None if body.service_account is None else ServiceAccountId(body.service_account),
    )
    secret = new_secret()
    most = plane_of(request).settings.max_key_lifetime
    origin, render = origin_of(request, principal), _rendered_for(principal)
    command = issue_key(wanted, digest(secret), origin, most, render, issuer=principal)
    if dry_run:
        return await try_out(request, command)
    made = await execute_with_secret(request, command, {"key": secret})
    set_version(request, 1)
    return IssuedKey(**made)


def _rendered_for(caller: Principal) -> Callable[[KeyRow], str]:
    def render(row: KeyRow) -> str:
        return _view(row, caller, _BEFORE_EXPIRY).model_dump_json()

    return render


@router.get("/keys", openapi_extra=access(Scope.ACCESS_READ))
async def list_keys(
    request: Request,
    principal: Caller,
    *,
    role: Annotated[Role | None, Query(description="Only keys with this role.")] = None,
    project: Annotated[
        str | None, Query(max_length=63, description="Only keys that are limited to this project.")
    ] = None,
    service_account: Annotated[
        str | None, Query(max_length=63, description="Only keys of this service account.")
    ] = None,
    state: Annotated[Literal["active", "revoked"] | None, Query(description="Only in this state.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    order: Order = "asc",
) -> Page[KeyView]:
    """List API keys by id, without their secrets."""
    async with plane_of(request).engine.connect() as conn:
        rows = await keys.page(
            conn,
            after=cursor,
            limit=limit,
            descending=order == "desc",
            role=role,
            project=None if project is None else ProjectId(project),
            revoked=None if state is None else state == "revoked",
            account=None if service_account is None else ServiceAccountId(service_account),
        )
        uses = await credential_uses.find(conn, [row.key_id for row in rows])
        now = await database_time(conn)
    following = rows[-1].key_id if len(rows) == limit else None
    items = [_view(row, principal, now, uses.get(row.key_id)) for row in rows]
    return Page(items=items, next_cursor=following)


@router.get("/keys/{key}", openapi_extra=access(Scope.ACCESS_READ), **TAGGED)
async def show(request: Request, key: str) -> KeyView:
    """Return one API key, without its secret."""
    async with plane_of(request).engine.connect() as conn:
        row, now = await keys.find(conn, key), await database_time(conn)
        uses = await credential_uses.find(conn, [key])
    if row is None:
        raise unknown_key(key)
    set_version(request, row.version)
    return _view(row, caller_of(request), now, uses.get(key))


@router.post(
    "/keys/{key}/rotate", status_code=201, dependencies=[IF_MATCH], openapi_extra=access(Scope.ACCESS_WRITE)
)
async def rotate(request: Request, principal: Caller, key: str, body: RotateKey) -> IssuedKey:
    """Issue a successor of an API key with the same role, projects and scopes. The replaced key is still accepted for
    `overlap_seconds`.
    """
    secret, overlap = new_secret(), timedelta(seconds=body.overlap_seconds)
    origin, render = origin_of(request, principal), _rendered_for(principal)
    command = replace_key(key, digest(secret), overlap, origin, render, issuer=principal)
    made = await execute_with_secret(request, command, {"key": secret}, stream_of_key(key))
    set_version(request, 1)
    return IssuedKey(**made)


@router.post("/keys/{key}/revoke", dependencies=[IF_MATCH], openapi_extra=access(Scope.ACCESS_WRITE))
async def revoke(request: Request, principal: Caller, key: str, body: ReasonOnly) -> KeyView:
    """Revoke an API key: it is refused from now on. Idempotent."""
    command = revoke_key(key, body.reason, origin_of(request, principal))
    await execute(request, command, stream_of_key(key))
    return await show(request, key)


@router.post("/principals/revoke", openapi_extra=access(Scope.ACCESS_WRITE))
async def revoke_principal(request: Request, principal: Caller, body: RevokePrincipal) -> RevokedPrincipal:
    """Refuse every credential that a caller has now: revoke its tokens, disable its service account, or revoke its API
    key.
    """
    origin = origin_of(request, principal)
    kind, _, name = body.actor.partition(":")
    revoked_at = None
    if kind == "key":
        await execute(request, revoke_key(name, body.reason, origin))
    elif kind == "service-account":
        await execute(request, disable_service_account(ServiceAccountId(name), body.reason, origin))
    else:
        _refuse_unknown_issuer(request, body.actor)
        revoked_at = json.loads(await execute(request, revoke_tokens(body.actor, body.reason, origin)))
    return RevokedPrincipal(actor=body.actor, reason=body.reason, revoked_at=revoked_at)


@router.put("/principals/limits", openapi_extra=access(Scope.ACCESS_WRITE))
async def limit_principal(
    request: Request, principal: Caller, body: SetPrincipalLimits
) -> PrincipalQuotaView:
    """Set the limits of a caller: a request of it that would exceed one is refused. Existing allocations keep what they
    have. Idempotent.
    """
    if body.actor.startswith("user:"):
        _refuse_unknown_issuer(request, body.actor)
    limits = PrincipalLimits(slots=body.slots, price_per_hour=body.price_per_hour)
    await execute(request, set_principal_limits(body.actor, limits, origin_of(request, principal)))
    return await _principal_quota(request, body.actor)


@router.get("/principals/limits", openapi_extra=access(Scope.ACCESS_READ))
async def show_principal_limits(
    request: Request,
    principal: Caller,
    actor: Annotated[
        Annotated[str, AfterValidator(recorded_actor)] | None,
        Query(description="A caller as the ledger records it. Default: the caller of the request."),
    ] = None,
) -> PrincipalQuotaView:
    """Return the limits of a caller, and what it uses of them. A caller without limits may be unknown."""
    return await _principal_quota(request, actor or principal.actor)


async def _principal_quota(request: Request, actor: str) -> PrincipalQuotaView:
    stream = stream_of_principal(actor)
    async with plane_of(request).engine.connect() as conn:
        limits = await principals.limits_of(conn, actor)
        used = await used_by(conn, [stream])
    return PrincipalQuotaView(
        actor=actor, limits=principal_limits_view(limits), used=principal_use_view(used[stream])
    )


def _refuse_unknown_issuer(request: Request, actor: str) -> None:
    issuer = issuer_of(actor)
    if issuer not in {each.name for each in plane_of(request).settings.oidc}:
        # A misspelled name would have no effect, and the admin would not notice.
        reason = f"there is no identity provider named {issuer}"
        raise Malformed(Objection("unknown_issuer", reason, "/actor"))
