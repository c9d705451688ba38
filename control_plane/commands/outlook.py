"""What a caller can do after the refusal of a placement: which similar request could be placed now, and when the
refused one may be placed at the earliest.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.catalogue import specification
from control_plane.commands.placement_request import NewAllocation, PlacementRequest
from control_plane.commands.searching import first_hosts, on_fit_node, suitable_classes, usable_classes
from control_plane.decisions.leases import against_length, limits_of
from control_plane.decisions.placing.explanation import Nearest, Outlook
from control_plane.decisions.placing.suitability import difference, skus_among
from control_plane.work import placeable, tables
from events.allocations import AllocationSpecified
from events.slot_states import Claimed, Free, Releasing, slot_state_name
from events.values import AllocationId, NodeId
from read_models import catalogue, slots

MOST_SKUS: Final = 16
"""Number of other SKUs that are tried, the most similar ones first."""


async def outlook_of(
    conn: AsyncConnection, new: NewAllocation, refused: Sequence[PlacementRequest]
) -> Outlook:
    """Return what is possible instead of a request that cannot be placed now. `refused` contains the request once for
    each of its SKUs.
    """
    ends = [end for each in refused if (end := await _earliest(conn, each)) is not None]
    nearest = await _with_fewer_slots(conn, refused) or await _with_another_sku(conn, new, refused)
    return Outlook(nearest, min(ends, default=None))


async def _with_fewer_slots(conn: AsyncConnection, refused: Sequence[PlacementRequest]) -> Nearest | None:
    """Return the request with the largest number of slots that one node has free now; None if no node has any."""
    if refused[0].request.slot_count == 1:
        return None
    for each in refused:
        keys = [*await usable_classes(conn, each)]
        total, node = sa.func.sum(tables.slot_counts.c.free), tables.slot_counts.c.node_id
        found = await conn.scalar(
            sa.select(total)
            .where(tables.slot_counts.c["class"].in_(keys), *on_fit_node(each, node))
            .group_by(node)
            .order_by(total.desc())
            .limit(1)
        )
        if found:
            return Nearest(each.demand.name, min(found, each.request.slot_count - 1))
    return None


async def _with_another_sku(
    conn: AsyncConnection, new: NewAllocation, refused: Sequence[PlacementRequest]
) -> Nearest | None:
    """Return the request with the most similar SKU of the catalogue for which a node has enough free slots now."""
    wanted, tried = refused[0].demand.sku, {each.demand.name for each in refused}
    others = [
        (name, content)
        for name, content in skus_among(await catalogue.offered(conn, "sku"))
        if name not in tried
    ]
    for name, _ in sorted(others, key=lambda each: (difference(wanted, each[1]), each[0]))[:MOST_SKUS]:
        specified = await specification(conn, new.as_sku(name), new.app_profile)
        if not isinstance(specified, AllocationSpecified):
            continue
        if against_length(new.request.lease_seconds, limits_of(specified)):
            continue
        placed = new.placed_as(specified, refused[0].apart_nodes)
        keys = [*await usable_classes(conn, placed)]
        if keys and await first_hosts(conn, placed, keys, []):
            return Nearest(name, new.request.slot_count)
    return None


async def _earliest(conn: AsyncConnection, wanted: PlacementRequest) -> datetime | None:
    """Return when enough slots of one node are free, if each allocation that has one of them is released at the end of
    its lease, and no other one gets them; None if the known ends of leases do not suffice.
    """
    first = await first_fit(conn, wanted)
    return None if first is None else first.at


class FirstFit(NamedTuple):
    """The node on which a request fits first, and when (None: not known)."""

    node: NodeId
    at: datetime | None


async def first_fit(conn: AsyncConnection, wanted: PlacementRequest) -> FirstFit | None:
    """Return the node on which enough slots are free first, if each allocation that has one of them is released at the
    end of its lease, and no other one gets them. If the known ends of leases do not suffice on any node, it is the node
    with the most free slots. None if no node has enough slots that can become free.
    """
    keys = [*await suitable_classes(conn, wanted.demand)]
    slot, timer = slots.slot, tables.timer
    stream = sa.literal("allocation-") + slot.c.allocation_id
    is_free = slot.c.state == slot_state_name(Free())
    is_claimed = slot.c.state == slot_state_name(Claimed(AllocationId("")))
    is_releasing = slot.c.state == slot_state_name(Releasing(AllocationId("")))
    free_at = sa.case((is_free, sa.func.now()), else_=timer.c.lease_ends_at)
    each = (
        sa.select(
            slot.c.node_id,
            free_at.label("free_at"),
            sa.func.row_number()
            .over(partition_by=slot.c.node_id, order_by=free_at.nulls_last())
            .label("number"),
            sa.func.count().filter(is_free).over(partition_by=slot.c.node_id).label("free"),
        )
        .select_from(slot.outerjoin(timer, sa.and_(timer.c.stream_id == stream, is_claimed)))
        .where(*_is_suitable(wanted, keys), sa.or_(is_free, is_claimed, is_releasing))
        .subquery()
    )
    enough = (
        sa.select(each.c.node_id, each.c.free_at)
        .where(each.c.number == wanted.request.slot_count)
        .order_by(each.c.free_at.nulls_last(), each.c.free.desc(), each.c.node_id)
        .limit(1)
    )
    found = (await conn.execute(enough)).one_or_none()
    return None if found is None else FirstFit(NodeId(found.node_id), found.free_at)


def _is_suitable(wanted: PlacementRequest, keys: Sequence[str]) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the SQL conditions of a slot, free or not, that suits the request by its class and its node."""
    yield slots.slot.c["class"].in_(keys)
    yield placeable.all_hold(placeable.SLOT)
    yield from on_fit_node(wanted, slots.slot.c.node_id)
