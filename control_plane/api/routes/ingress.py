"""`/v1/allocations/{allocation}/ingress`, `/v1/nodes/{node}/public-addresses`: ingress from outside (ING-1)."""

from fastapi import APIRouter, Request

from control_plane.api.requests.access import AuthenticatedRoute, Caller, access
from control_plane.api.requests.bodies import NodeAddresses, OpenIngress
from control_plane.api.requests.commands import execute
from control_plane.api.requests.conditional import IF_MATCH
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of, plane_of
from control_plane.api.routes.allocations import own_allocation, shown
from control_plane.api.routes.nodes import node_named, node_shown
from control_plane.api.views.allocation_views import AllocationView, IngressView, ingress_view
from control_plane.api.views.views import NodeDetail
from control_plane.commands.ingress import change_addresses, close_ingress, open_ingress
from control_plane.decisions.access import Scope
from control_plane.decisions.refusals import Objection, UnknownName
from events.allocations import AllocationFact
from events.facts import Reason
from events.nodes import PublicAddress
from events.values import (
    IngressId,
    InvalidValue,
    Ipv4Address,
    ingress_id,
    ingress_of,
    new_uuid,
    stream_of_allocation,
    stream_of_node,
)

router = APIRouter(prefix="/v1", tags=["ingress"], responses=PROBLEMS, route_class=AuthenticatedRoute)


@router.post(
    "/allocations/{allocation}/ingress",
    status_code=202,
    dependencies=[IF_MATCH],
    openapi_extra=access(Scope.ALLOCATIONS_WRITE),
)
async def create_ingress(
    request: Request, principal: Caller, allocation: str, body: OpenIngress
) -> IngressView:
    """Open an ingress. Its address and port are reserved at once; it becomes an endpoint when its node has applied
    it.
    """
    name, ingress = await own_allocation(request, allocation), ingress_of(new_uuid())

    def render(facts: tuple[AllocationFact, ...]) -> str:
        return ingress_view(facts, ingress, principal).model_dump_json()

    command = open_ingress(name, ingress, body.requested, origin_of(request, principal), render)
    return IngressView.model_validate_json(await execute(request, command, stream_of_allocation(name)))


@router.delete(
    "/allocations/{allocation}/ingress/{ingress}",
    status_code=202,
    dependencies=[IF_MATCH],
    openapi_extra=access(Scope.ALLOCATIONS_WRITE),
)
async def delete_ingress(
    request: Request, principal: Caller, allocation: str, ingress: str
) -> AllocationView:
    """Close an ingress. Its address and port can be reserved again once its node has proved that it was removed."""
    reason = Reason("withdrawn_by_caller", f"removal of the ingress rule was requested by {principal.actor}")
    name = await own_allocation(request, allocation)
    command = close_ingress(name, _named(ingress), origin_of(request, principal), reason)
    await execute(request, command, stream_of_allocation(name))
    return await shown(request, allocation)


@router.put(
    "/nodes/{node}/public-addresses", dependencies=[IF_MATCH], openapi_extra=access(Scope.FLEET_WRITE)
)
async def put_addresses(request: Request, principal: Caller, node: str, body: NodeAddresses) -> NodeDetail:
    """Replace the list of a node's public addresses. Sliceplane does not configure them: they must be routed to the
    host.
    """
    wanted = tuple(
        PublicAddress(Ipv4Address(each.address), each.use, each.first_port, each.last_port)
        for each in body.addresses
    )
    networks, origin = plane_of(request).settings.slice_networks, origin_of(request, principal)
    name = node_named(node)
    await execute(request, change_addresses(name, wanted, origin, networks), stream_of_node(name))
    return await node_shown(request, name)


def _named(raw: str) -> IngressId:
    try:
        return ingress_id(raw)
    except InvalidValue:
        raise UnknownName(Objection("unknown_ingress", f"no ingress has the id {raw!r}")) from None
