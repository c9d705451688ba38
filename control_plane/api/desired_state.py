"""`POST /v1/agent/desired-state`: a node says what its slots hold, and is told of those that should hold another thing.

A node asks when its agent starts, and when it was cut off; that is often for all nodes at once, and then next to
nothing differs. What differs is signed like every sending. What a node holds that nobody here knows of is said, and
left to a person.
"""

from datetime import datetime

import structlog
from fastapi import APIRouter, Request

from control_plane.api.access import CallingNode
from control_plane.api.problems import PROBLEMS
from control_plane.api.state import keys_of, plane_of
from control_plane.database import reading
from control_plane.desired_state import differences
from tasks.agent_api import DesiredState, HeldOrders
from tasks.catalogue import bounds_of

log = structlog.get_logger()
router = APIRouter(prefix="/v1/agent", tags=["agent"], responses=PROBLEMS)


@router.post("/desired-state")
async def desired_state(request: Request, node: CallingNode, body: HeldOrders) -> DesiredState:
    """Compare what the node's slots hold with what they should: signed orders for those that differ."""
    plane, seal = plane_of(request), keys_of(request).seal
    async with reading(plane.engine) as conn:
        found = await differences(conn, node, body.held)
        if found.unknown:
            log.error("node_holds_unknown", node=node, slots=found.unknown, count=len(found.unknown))
        if not found.wanted:
            return DesiredState(orders=(), unknown=found.unknown)
        now: datetime = await plane.handle.clock(conn)
    orders = tuple(seal(each.text, now + bounds_of(each.kind).maximum_age) for each in found.wanted)
    log.info("node_compared", node=node, held=len(body.held), wanted=len(orders))
    return DesiredState(orders=orders, unknown=found.unknown)
