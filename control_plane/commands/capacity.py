"""How many more allocations of one slot fit now: the free slots that placement could choose for such a request.

It uses the conditions of the search for slots, so that a slot is counted exactly if a request for one slot could get
it: its class suits the SKU, and its node is reachable and fit for placement. What only a complete request names is not
known: its image, ingress rules and labels.
"""

from collections.abc import Sequence
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.placement_request import PlacementRequest
from control_plane.commands.searching import on_fit_node, suitable_classes
from control_plane.decisions.placing.suitability import Demand
from control_plane.work.slot_counts import counts_now
from events.allocations import AllocationRequested
from events.entries import Entry, SkuContent
from events.values import AllocationId, ImageName, ProjectId, SkuName


async def fitting(
    conn: AsyncConnection, entries: Sequence[Entry], unreachable_after: timedelta, *, simulated_allowed: bool
) -> dict[SkuName, int]:
    """Return how many more allocations of one slot fit for each SKU among these entries. SKUs share slots: an
    allocation of one can reduce the number of others.
    """
    found = dict[SkuName, int]()
    for each in entries:
        assert isinstance(each.content, SkuContent), f"{each.name} must be a SKU"
        name = SkuName(each.name)
        wanted = _request(name, each.content, unreachable_after, simulated_allowed=simulated_allowed)
        found[name] = await _free(conn, wanted)
    return found


def _request(
    name: SkuName, sku: SkuContent, unreachable_after: timedelta, *, simulated_allowed: bool
) -> PlacementRequest:
    """Return a request for one slot with any image."""
    requested = AllocationRequested(
        AllocationId(""), ProjectId(""), name, sku.network_modes[0], ImageName(""), (), 0, 1, {}
    )
    demand = Demand(name, sku, (sku.fabric,))
    return PlacementRequest(
        requested, demand, (), unreachable_after, simulated_allowed=simulated_allowed, any_image=True
    )


async def _free(conn: AsyncConnection, wanted: PlacementRequest) -> int:
    counts = counts_now()
    keys = [*await suitable_classes(conn, wanted.demand)]
    query = sa.select(sa.func.coalesce(sa.func.sum(counts.c.free), 0)).where(
        counts.c["class"].in_(keys), counts.c.free > 0, *on_fit_node(wanted, counts.c.node_id)
    )
    return int(await conn.scalar(query) or 0)
