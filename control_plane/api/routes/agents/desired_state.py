"""`POST /v1/agent/desired-state`: a node reports the order that each of its slots has, and gets the newest order of
every slot that has a different one or none.

A node sends this request when its agent starts and after it was disconnected. Often all nodes do so at once, and then
very little differs. The orders in the response are signed like every order. A slot with an order that the control plane
does not have is reported to an operator, and is not changed automatically.
"""

from datetime import datetime

import structlog
from fastapi import APIRouter, Request

from control_plane.api.requests.access import NODES, AuthenticatedRoute, CallingNode
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import keys_of, plane_of
from control_plane.audit.stored_tree import last_head_text
from control_plane.database import reading
from control_plane.work.desired_state import differences
from events.ledger.connection import ledger_connection
from tasks.agent_api import DesiredState, HeldOrders
from tasks.catalogue import bounds_of

log = structlog.get_logger()
router = APIRouter(prefix="/v1/agent", tags=["agent"], responses=PROBLEMS, route_class=AuthenticatedRoute)


@router.post("/desired-state", openapi_extra=NODES)
async def desired_state(request: Request, node: CallingNode, body: HeldOrders) -> DesiredState:
    """Compare the orders that the node's slots have with their newest orders; return the signed newest order of each
    slot that has a different one or none.
    """
    plane, seal = plane_of(request), keys_of(request).seal
    async with reading(plane.engine) as conn:
        found = await differences(conn, node, body.held)
        if found.unknown:
            log.error(
                "node_has_orders_missing_in_ledger", node=node, slots=found.unknown, count=len(found.unknown)
            )
        if not found.wanted:
            return DesiredState(orders=(), unknown=found.unknown)
        now: datetime = await plane.handle.clock(conn)
        head = await last_head_text(await ledger_connection(conn))
    orders = tuple(seal(each.text, now + bounds_of(each.kind).maximum_age, head) for each in found.wanted)
    log.info(
        "node_orders_compared_with_desired_state",
        node=node,
        orders_held_by_node=len(body.held),
        orders_sent=len(orders),
    )
    return DesiredState(orders=orders, unknown=found.unknown)
