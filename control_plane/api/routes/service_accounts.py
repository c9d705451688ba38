"""`/v1/service-accounts`: create, list, show, disable and enable the identities of workloads."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from control_plane.api.requests.access import AuthenticatedRoute, Caller, access, caller_of
from control_plane.api.requests.bodies import CreateServiceAccount, ReasonOnly
from control_plane.api.requests.commands import DryRun, dry, execute, try_out
from control_plane.api.requests.conditional import IF_MATCH, TAGGED, set_version
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, invalid_cursor
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of, plane_of
from control_plane.api.views.allowed_actions import AllowedActions, actions_on_service_account
from control_plane.commands.service_accounts import (
    create_service_account,
    disable_service_account,
    enable_service_account,
    unknown_service_account,
)
from control_plane.decisions.access import Principal, Role, Scope, against_granting, scopes_of
from control_plane.decisions.refusals import Forbidden, UnknownName
from control_plane.handle import Command
from events.service_accounts import ServiceAccountCreated
from events.values import (
    InvalidValue,
    ProjectId,
    ServiceAccountId,
    service_account_id,
    stream_of_service_account,
)
from read_models import service_accounts
from read_models.service_accounts import ServiceAccountRow

router = APIRouter(
    prefix="/v1/service-accounts", tags=["access"], responses=PROBLEMS, route_class=AuthenticatedRoute
)
JSON = "application/json"


class ServiceAccountView(BaseModel):
    """A service account, the identity of a workload. `state`: active or disabled; the keys of a disabled account are
    refused. `projects` of null means all projects. `reason` is why it was disabled, null while it is active.
    """

    id: str
    description: str
    role: str
    state: str
    scopes: list[str]
    projects: list[str] | None
    reason: str | None
    allowed_actions: AllowedActions


def _view(row: ServiceAccountRow, caller: Principal) -> ServiceAccountView:
    return ServiceAccountView(
        id=row.account,
        description=row.description,
        role=row.role,
        state="active" if row.disabled is None else "disabled",
        scopes=sorted(scopes_of(Role(row.role), frozenset(row.scopes))),
        projects=sorted(row.projects) or None,
        reason=row.disabled,
        allowed_actions=actions_on_service_account(caller),
    )


@router.post(
    "",
    status_code=201,
    response_model=ServiceAccountView,
    responses=dry(ServiceAccountView),
    openapi_extra=access(Scope.ACCESS_WRITE),
)
async def create(
    request: Request, principal: Caller, body: CreateServiceAccount, *, dry_run: DryRun = False
) -> Response:
    """Create a service account with its role. Its keys are issued with `POST /v1/keys`."""
    fact = ServiceAccountCreated(
        account=ServiceAccountId(body.id),
        description=body.description,
        role=body.role,
        projects=body.distinct_projects,
        scopes=body.distinct_scopes,
    )
    if against := against_granting(principal, Role(body.role), body.distinct_scopes):
        raise Forbidden(*against)
    command = create_service_account(
        fact,
        origin_of(request, principal),
        lambda created: _view(service_accounts.created(created), principal).model_dump_json(),
    )
    if dry_run:
        return await try_out(request, command)
    answer = await execute(request, command)
    set_version(request, 1)
    return Response(answer, 201, {"Location": f"/v1/service-accounts/{fact.account}"}, JSON)


@router.get("", openapi_extra=access(Scope.ACCESS_READ))
async def list_service_accounts(
    request: Request,
    principal: Caller,
    *,
    role: Annotated[Role | None, Query(description="Only accounts with this role.")] = None,
    project: Annotated[
        str | None, Query(max_length=63, description="Only accounts that are limited to this project.")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    order: Order = "asc",
) -> Page[ServiceAccountView]:
    """List service accounts by id."""
    async with plane_of(request).engine.connect() as conn:
        rows = await service_accounts.page(
            conn,
            after=None if cursor is None else _cursor(cursor),
            limit=limit,
            descending=order == "desc",
            role=role,
            project=None if project is None else ProjectId(project),
        )
    following = rows[-1].account if len(rows) == limit else None
    return Page(items=[_view(row, principal) for row in rows], next_cursor=following)


@router.get("/{account}", openapi_extra=access(Scope.ACCESS_READ), **TAGGED)
async def show(request: Request, account: str) -> ServiceAccountView:
    """Return one service account."""
    async with plane_of(request).engine.connect() as conn:
        row = await service_accounts.find(conn, _named(account))
    if row is None:
        raise UnknownName(unknown_service_account(account))
    set_version(request, row.version)
    return _view(row, caller_of(request))


@router.post("/{account}/disable", dependencies=[IF_MATCH], openapi_extra=access(Scope.ACCESS_WRITE))
async def disable(request: Request, principal: Caller, account: str, body: ReasonOnly) -> ServiceAccountView:
    """Disable a service account: each of its keys is refused from now on. Idempotent."""
    name = _named(account)
    return await _execute(
        request, name, disable_service_account(name, body.reason, origin_of(request, principal))
    )


@router.post("/{account}/enable", dependencies=[IF_MATCH], openapi_extra=access(Scope.ACCESS_WRITE))
async def enable(request: Request, principal: Caller, account: str) -> ServiceAccountView:
    """Enable a service account: its keys that are not revoked or expired are accepted again. Idempotent."""
    name = _named(account)
    return await _execute(request, name, enable_service_account(name, origin_of(request, principal)))


async def _execute(request: Request, name: ServiceAccountId, command: Command) -> ServiceAccountView:
    await execute(request, command, stream_of_service_account(name))
    return await show(request, name)


def _named(raw: str) -> ServiceAccountId:
    try:
        return service_account_id(raw)
    except InvalidValue:
        raise UnknownName(unknown_service_account(raw)) from None


def _cursor(raw: str) -> ServiceAccountId:
    try:
        return service_account_id(raw)
    except InvalidValue:
        raise invalid_cursor(raw) from None
