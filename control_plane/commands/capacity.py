"""How many more allocations of one slot fit now: the free slots that placement could choose for such a request.

It uses the conditions of the search for slots, so that a slot is counted exactly if a request for one slot could get
it: its class suits the SKU, and its node is reachable and fit for placement. What only a complete request names is not
known: its image, network mode, ingress rules and labels.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.admission.reservations import Placeable, carriers_of_others, request_for_one
from control_plane.commands.placement_request import PlacementRequest
from control_plane.commands.searching import on_fit_node, suitable_classes
from control_plane.decisions.reservations import fits
from control_plane.work.slot_counts import counts_now
from events.entries import Entry, SkuContent
from events.values import ProjectId, SkuName
from read_models import projects


async def fitting(
    conn: AsyncConnection, entries: Sequence[Entry], nodes: Placeable, project: ProjectId | None = None
) -> dict[SkuName, int]:
    """Return how many more allocations of one slot fit for each SKU among these entries; with `project`, how many of
    them that project could get beside the reservations of others. SKUs share slots: an allocation of one can reduce the
    number of others.
    """
    kept = list[tuple[frozenset[str], int]]()
    if project is not None:
        kept = await carriers_of_others(conn, project, await projects.reserved(conn), nodes)
    found = dict[SkuName, int]()
    for each in entries:
        assert isinstance(each.content, SkuContent), f"{each.name} must be a SKU"
        name = SkuName(each.name)
        free = await _free(conn, request_for_one(name, each.content, nodes))
        found[name] = fits(free, kept)
    return found


async def _free(conn: AsyncConnection, wanted: PlacementRequest) -> dict[str, int]:
    """Return the number of free slots of each suitable class, on nodes that placement uses now."""
    counts = counts_now()
    keys = [*await suitable_classes(conn, wanted.demand)]
    query = (
        sa.select(counts.c["class"].label("key"), sa.func.sum(counts.c.free).label("free"))
        .where(counts.c["class"].in_(keys), counts.c.free > 0, *on_fit_node(wanted, counts.c.node_id))
        .group_by(counts.c["class"])
    )
    return {row.key: int(row.free) for row in await conn.execute(query)}
