"""`/v1/capacity`: how many more allocations fit, and the slots of each SKU by status, now and in the past."""

from datetime import datetime, timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator, BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.requests.access import AuthenticatedRoute, access
from control_plane.api.requests.as_of import At, Time, set_headers, time_of, timed, travel_of
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, invalid_cursor
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import plane_of
from control_plane.commands.admission.reservations import Placeable
from control_plane.commands.capacity import fitting
from control_plane.decisions.access import Scope, unknown_project
from control_plane.decisions.fleet.points import MOST_POINTS, points_of
from control_plane.decisions.refusals import UnknownName
from events.values import InvalidValue, NodeId, Position, ProjectId, SkuName, node_id, project_id
from read_models import capacity, catalogue, nodes, projects
from read_models.capacity import Numbers

router = APIRouter(prefix="/v1/capacity", tags=["nodes"], responses=PROBLEMS, route_class=AuthenticatedRoute)

_DAY: Final = timedelta(days=1)
_LONGEST_STEP: Final = 10 * 366 * 24 * 3600
_USUAL_POINTS: Final = 48


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


class CapacityPoint(BaseModel):
    """The slots of each SKU by status at a time: those after the event at `position`. A SKU that had no slot yet is
    missing.
    """

    at: datetime
    position: int
    skus: list[NumbersView]


class CapacityHistory(BaseModel):
    """The slots of each SKU by status at equal steps. `begin` and `end` are the times of the first and last point.

    `step_seconds` is null if there is only one point, and `node_id` if the history is that of all nodes.
    """

    begin: datetime
    end: datetime
    step_seconds: int | None
    node_id: str | None
    points: list[CapacityPoint]


def _checked_node(raw: str | None) -> str | None:
    return None if raw is None else node_id(raw)


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


@router.get("/history", openapi_extra=access(Scope.FLEET_READ))
async def show_history(
    request: Request,
    *,
    from_: Annotated[Time, timed("from", "Begin at this time. Default: 24 hours before the end")] = None,
    until: Annotated[Time, timed("until", "End at this time. Default: now")] = None,
    step: Annotated[
        int | None,
        Query(
            ge=1,
            le=_LONGEST_STEP,
            description=f"Seconds between two points. A history has at most {MOST_POINTS} points. Default: a step of whole"
            f" seconds with about {_USUAL_POINTS} points.",
        ),
    ] = None,
    node: Annotated[
        str | None,
        Query(max_length=63, description="Only the slots of this node."),
        AfterValidator(_checked_node),
    ] = None,
) -> CapacityHistory:
    """Return the slots of each SKU by status at equal steps in a range of time: at each point, the numbers that `at`
    returns for its time. The points end at the end of the range, or less than one step before it.
    """
    clock = plane_of(request).handle.clock
    async with plane_of(request).engine.connect() as conn:
        now = await clock(conn)
    end = time_of(until) or now
    times = points_of(time_of(from_) or end - _DAY, end, step)
    async with travel_of(request).to(*times, known_to=capacity.PROJECTION) as (conn, places):
        positions = [each.position for each in places]
        if node is None:
            found = await capacity.by_sku_over_time(conn, positions)
        else:
            name = NodeId(node)
            found = [(await capacity.by_node(conn, [name], each)).get(name, {}) for each in positions]
    return CapacityHistory(
        begin=times[0],
        end=times[-1],
        step_seconds=int((times[1] - times[0]).total_seconds()) if len(times) > 1 else None,
        node_id=node,
        points=[
            CapacityPoint(
                at=time, position=position, skus=[_numbers(sku, each) for sku, each in numbers.items()]
            )
            for time, position, numbers in zip(times, positions, found, strict=True)
        ],
    )


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
        rows = await nodes.page(conn, after=after, limit=limit, descending=descending)
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
