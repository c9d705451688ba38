"""`/v1/keys` and `/v1/whoami`: API keys, and the caller of a request."""

from datetime import datetime, timedelta

from fastapi import APIRouter, Request
from pydantic import BaseModel

from control_plane.api.requests.access import AUTHENTICATED, Caller, access, principal_of
from control_plane.api.requests.bodies import IssueKey, RevokeKey, RotateKey
from control_plane.api.requests.pages import Cursor, Limit, Page
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import key_of, origin_of, plane_of
from control_plane.commands.access import KeyRequest, issue_key, replace_key, revoke_key, unknown_key
from control_plane.decisions.access import Scope
from control_plane.handle import Command
from control_plane.identity.api_keys import digest, new_secret
from events.values import ProjectId
from read_models import keys
from read_models.keys import KeyRow

router = APIRouter(prefix="/v1", tags=["access"], responses=PROBLEMS)


class KeyView(BaseModel):
    """An API key, without its secret. `state`: active or revoked; an expired key stays active in this list.

    `projects` of null means all projects. `reason` is why it was revoked.
    """

    id: str
    name: str
    role: str
    state: str
    scopes: list[str]
    projects: list[str] | None
    expires_at: datetime | None
    replaces: str | None
    """Key that this one replaces, after a rotation."""
    successor: str | None
    """Key that replaces this one, after a rotation."""
    reason: str | None


class IssuedKey(KeyView):
    """A new API key. `key` is its secret, which is returned only once."""

    key: str


class CallerView(BaseModel):
    """The caller of the request. `actor` is the name under which the ledger records what it does; `projects` of null
    means all projects.
    """

    actor: str
    role: str
    scopes: list[str]
    projects: list[str] | None


def _view(row: KeyRow) -> KeyView:
    principal = principal_of(row)
    return KeyView(
        id=row.key_id,
        name=row.name,
        role=row.role,
        state="active" if row.revoked is None else "revoked",
        scopes=sorted(principal.scopes),
        projects=None if principal.projects is None else sorted(principal.projects),
        expires_at=row.expires_at,
        replaces=row.replaces,
        successor=row.successor,
        reason=row.revoked,
    )


@router.get("/whoami", openapi_extra=AUTHENTICATED)
async def caller(principal: Caller) -> CallerView:
    """Return the role, scopes and projects of the caller."""
    return CallerView(
        actor=principal.actor,
        role=principal.role,
        scopes=sorted(principal.scopes),
        projects=None if principal.projects is None else sorted(principal.projects),
    )


@router.post("/keys", status_code=201, openapi_extra=access(Scope.ACCESS_WRITE))
async def issue(request: Request, principal: Caller, body: IssueKey) -> IssuedKey:
    """Issue an API key. Its secret is returned only once; only a hash of it is stored."""
    wanted = KeyRequest(
        name=body.name,
        role=body.role,
        projects=tuple(ProjectId(each) for each in dict.fromkeys(body.projects)),
        scopes=tuple(dict.fromkeys(body.scopes)),
        lifetime=None if body.lifetime_seconds is None else timedelta(seconds=body.lifetime_seconds),
    )
    secret = new_secret()
    most = plane_of(request).settings.max_key_lifetime
    command = issue_key(wanted, digest(secret), origin_of(request, principal), most)
    return await _issued(request, command, secret)


@router.get("/keys", openapi_extra=access(Scope.ACCESS_READ))
async def list_keys(request: Request, cursor: Cursor = None, limit: Limit = 100) -> Page[KeyView]:
    """List API keys by id, without their secrets."""
    async with plane_of(request).engine.connect() as conn:
        rows = await keys.page(conn, after=cursor, limit=limit)
    following = rows[-1].key_id if len(rows) == limit else None
    return Page(items=[_view(row) for row in rows], next_cursor=following)


@router.get("/keys/{key}", openapi_extra=access(Scope.ACCESS_READ))
async def show(request: Request, key: str) -> KeyView:
    """Return one API key, without its secret."""
    async with plane_of(request).engine.connect() as conn:
        row = await keys.find(conn, key)
    if row is None:
        raise unknown_key(key)
    return _view(row)


@router.post("/keys/{key}/rotate", status_code=201, openapi_extra=access(Scope.ACCESS_WRITE))
async def rotate(request: Request, principal: Caller, key: str, body: RotateKey) -> IssuedKey:
    """Issue a successor of an API key with the same role, projects and scopes. The replaced key is accepted for a last
    period.
    """
    secret, overlap = new_secret(), timedelta(seconds=body.overlap_seconds)
    command = replace_key(key, digest(secret), overlap, origin_of(request, principal))
    return await _issued(request, command, secret)


@router.post("/keys/{key}/revoke", openapi_extra=access(Scope.ACCESS_WRITE))
async def revoke(request: Request, principal: Caller, key: str, body: RevokeKey) -> KeyView:
    """Revoke an API key: it is refused from now on. Idempotent."""
    command = revoke_key(key, body.reason, origin_of(request, principal))
    await plane_of(request).handle(command, await key_of(request, principal))
    return await show(request, key)


async def _issued(request: Request, command: Command, secret: str) -> IssuedKey:
    key_id = await plane_of(request).handle(command)
    view = await show(request, key_id)
    return IssuedKey(**dict(view), key=secret)
