"""`/v1/allocations/{allocation}/ingress`, `/v1/nodes/{node}/public-addresses`: ways in from outside (ING-1)."""

from fastapi import APIRouter, Request

from control_plane.api.access import Admin
from control_plane.api.allocation_views import AllocationView, IngressView
from control_plane.api.allocations import allocation_named, shown
from control_plane.api.bodies import NodeAddresses, OpenWay
from control_plane.api.nodes import node_named, node_shown
from control_plane.api.problems import PROBLEMS
from control_plane.api.state import key_of, origin_of, plane_of
from control_plane.api.views import NodeDetail
from control_plane.commands.ingress import change_addresses, close_way, open_way
from control_plane.decisions.refusals import Objection, UnknownName
from events.facts import Reason
from events.nodes import PublicAddress
from events.values import IngressId, InvalidValue, Ipv4Address, ingress_id, ingress_of, new_uuid

router = APIRouter(prefix="/v1", tags=["ingress"], responses=PROBLEMS)


@router.post("/allocations/{allocation}/ingress", status_code=202)
async def open_(request: Request, principal: Admin, allocation: str, body: OpenWay) -> IngressView:
    """Ask for a way in. Its address and port are its own at once; it is an endpoint when its node has it in place."""
    name, way, plane = allocation_named(allocation), ingress_of(new_uuid()), plane_of(request)
    command = open_way(name, way, body.wish, origin_of(request, principal))
    answer = await plane.handle(command, await key_of(request, principal))
    view = await shown(request, allocation)
    return next(each for each in view.ingress if each.id == answer)


@router.delete("/allocations/{allocation}/ingress/{ingress}", status_code=202)
async def close(request: Request, principal: Admin, allocation: str, ingress: str) -> AllocationView:
    """Close a way in. Its address and port can be had again when its node has proved that nothing is left of it."""
    reason = Reason("withdrawn_by_caller", f"withdrawal was asked for by {principal.actor}")
    command = close_way(allocation_named(allocation), _named(ingress), origin_of(request, principal), reason)
    await plane_of(request).handle(command, await key_of(request, principal))
    return await shown(request, allocation)


@router.put("/nodes/{node}/public-addresses")
async def put_addresses(request: Request, principal: Admin, node: str, body: NodeAddresses) -> NodeDetail:
    """Say which public addresses a node has, all of them. Sliceplane sets none on the host: they must lead there."""
    wanted = tuple(
        PublicAddress(Ipv4Address(each.address), each.use, each.first_port, each.last_port)
        for each in body.addresses
    )
    plane, origin = plane_of(request), origin_of(request, principal)
    command = change_addresses(node_named(node), wanted, origin, plane.settings.slice_networks)
    await plane.handle(command, await key_of(request, principal))
    return await node_shown(request, node_named(node))


def _named(raw: str) -> IngressId:
    try:
        return ingress_id(raw)
    except InvalidValue:
        raise UnknownName(Objection("unknown_ingress", f"there is no ingress {raw}")) from None
