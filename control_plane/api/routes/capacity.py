"""`/v1/capacity`: how many more allocations fit, and the slots of each SKU by status, now and in the past."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.requests.access import AuthenticatedRoute, access
from control_plane.api.requests.as_of import At, set_headers, travel_of
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, invalid_cursor
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import plane_of
from control_plane.commands.admission.reservations import Placeable
from control_plane.commands.capacity import fitting
from control_plane.decisions.access import Scope, unknown_project
from control_plane.decisions.refusals import UnknownName
from events.values import InvalidValue, NodeId, Position, ProjectId, SkuName, node_id, project_id
from read_models import capacity, catalogue, nodes, projects
from read_models.capacity import Numbers

router = APIRouter(prefix="/v1/capacity", tags=["nodes"], responses=PROBLEMS, route_class=AuthenticatedRoute)


class NumbersView(BaseModel):
    """Slots that are offered under a SKU, by status. A slot that is offered under several SKUs is counted for each.

    `free`: no allocation holds the slot, and nothing prevents its use except the state of its node. `claimed`: an
    allocation holds it, or it is being emptied. `quarantined`: its node still finds remains of a slice. `blocked`: no
    allocation holds it, and drift or an exclusion prevents its use.
    """

    sku: str
    free: int
    claimed: int
    quarantined: int
    blocked: int


class CapacityView(NumbersView):
    """The slots of a SKU by status, and how many more allocations of one slot placement could place now.

    `fits` also depends on the nodes: unreachable or cordoned ones provide no slots. It is null for a past state, in
    which heartbeats are unknown, and for a SKU that is not offered.
    """

    fits: int | None


class CapacityReport(BaseModel):
    """The capacity of the fleet, by SKU."""

    skus: list[CapacityView]


class NodeCapacity(BaseModel):
    """The slots of a node, by SKU."""

    node_id: str
    skus: list[NumbersView]


@router.get("", openapi_extra=access(Scope.FLEET_READ))
async def show_capacity(
    request: Request,
    response: Response,
    *,
    at: At = None,
    project: Annotated[
        str | None,
        Query(
            description="Count in `fits` only the slots that are not reserved for other projects than this one."
        ),
    ] = None,
) -> CapacityReport:
    """Return, for each SKU, how many more allocations of one slot fit now, and its slots by status; with `at`, the
    slots by status then.
    """
    if at is not None:
        async with travel_of(request).to(at, known_to=capacity.PROJECTION) as (conn, [place]):
            found = await capacity.by_sku(conn, place.position)
        set_headers(response, place)
        return _report(found, {})
    settings = plane_of(request).settings
    nodes_used = Placeable(settings.unreachable_after, settings.place_on_simulated_nodes)
    async with plane_of(request).engine.connect() as conn:
        name = None if project is None else await _project(conn, project)
        fits = await fitting(conn, await catalogue.offered(conn, "sku"), nodes_used, name)
        return _report(await capacity.by_sku(conn), fits)


@router.get("/nodes", openapi_extra=access(Scope.FLEET_READ))
async def list_node_capacity(
    request: Request,
    response: Response,
    *,
    at: At = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    order: Order = "asc",
) -> Page[NodeCapacity]:
    """List nodes by name, each with its slots by SKU and status, now or in the past. A node without approved slots has
    an empty list.
    """
    after, descending = None if cursor is None else _cursor(cursor), order == "desc"

    async def page(conn: AsyncConnection, upto: Position | None) -> list[NodeCapacity]:
        rows = await nodes.page(conn, after=after, limit=limit, removed=True, descending=descending)
        names = [row.node_id for row in rows]
        found = await capacity.by_node(conn, names, upto)
        return [
            NodeCapacity(
                node_id=name, skus=[_numbers(sku, each) for sku, each in found.get(name, {}).items()]
            )
            for name in names
        ]

    if at is not None:
        async with travel_of(request).to(at, known_to=capacity.PROJECTION) as (conn, [place]):
            items = await page(conn, place.position)
        set_headers(response, place)
    else:
        async with plane_of(request).engine.connect() as conn:
            items = await page(conn, None)
    return Page(items=items, next_cursor=items[-1].node_id if len(items) == limit else None)


async def _project(conn: AsyncConnection, raw: str) -> ProjectId:
    """Return the id of a project that exists. Raises `UnknownName`."""
    try:
        name = project_id(raw)
    except InvalidValue:
        raise UnknownName(unknown_project(raw)) from None
    if await projects.find(conn, name) is None:
        raise UnknownName(unknown_project(raw))
    return name


def _report(found: dict[SkuName, Numbers], fits: dict[SkuName, int]) -> CapacityReport:
    return CapacityReport(
        skus=[
            CapacityView(**found.get(name, Numbers())._asdict(), sku=name, fits=fits.get(name))
            for name in sorted({*found, *fits})
        ]
    )


def _numbers(sku: SkuName, numbers: Numbers) -> NumbersView:
    return NumbersView(sku=sku, **numbers._asdict())


def _cursor(raw: str) -> NodeId:
    try:
        return node_id(raw)
    except InvalidValue:
        raise invalid_cursor(raw) from None
