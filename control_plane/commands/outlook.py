"""What a caller can do after the refusal of a placement: which similar request could be placed now, and when the
refused one may be placed at the earliest.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.catalogue import specification
from control_plane.commands.placement_request import NewAllocation, PlacementRequest
from control_plane.commands.searching import first_hosts, on_fit_node, usable_classes
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


Admit = Callable[[NewAllocation, AllocationSpecified], Awaitable[PlacementRequest | None]]
"""Function that returns the request for the slots of a similar allocation, without those that are kept from it; None if
its price cap, a quota or the budget does not permit the allocation."""


async def outlook_of(
    conn: AsyncConnection,
    new: NewAllocation,
    specified: Sequence[AllocationSpecified],
    searched: Sequence[PlacementRequest],
    admit: Admit,
) -> Outlook:
    """Return what is possible instead of a request that cannot be placed now. `specified` has the specification with
    each of its SKUs; `searched` are the requests for which slots were searched.
    """
    ends = [end for each in searched if (end := await _earliest(conn, each)) is not None]
    nearest = await _with_fewer_slots(conn, new, specified, admit)
    nearest = nearest or await _with_another_sku(conn, new, specified, admit)
    return Outlook(nearest, min(ends, default=None))


async def _with_fewer_slots(
    conn: AsyncConnection, new: NewAllocation, specified: Sequence[AllocationSpecified], admit: Admit
) -> Nearest | None:
    """Return the request with the largest number of slots that one node has free now; None if no node has any."""
    for each in specified if new.request.slot_count > 1 else ():
        one = await admit(new.with_slots(1), each)
        if one is None:
            continue
        for count in range(min(await _most_on_a_node(conn, one), new.request.slot_count - 1), 0, -1):
            placed = await admit(new.with_slots(count), each)
            if placed is not None and await _has_host(conn, placed):
                return Nearest(placed.demand.name, count)
    return None


async def _most_on_a_node(conn: AsyncConnection, wanted: PlacementRequest) -> int:
    """Return the largest number of free slots for a request on one node."""
    counts, keys = tables.slot_counts, [*await usable_classes(conn, wanted)]
    total = sa.func.sum(counts.c.free)
    of_node = sa.select(total).where(counts.c["class"].in_(keys), *on_fit_node(wanted, counts.c.node_id))
    most = await conn.scalar(of_node.group_by(counts.c.node_id).order_by(total.desc()).limit(1))
    return int(most or 0)


async def _has_host(conn: AsyncConnection, wanted: PlacementRequest) -> bool:
    """Return whether a node has enough free slots for a request now."""
    keys = [*await usable_classes(conn, wanted)]
    return bool(keys and await first_hosts(conn, wanted, keys, [], most=1))


async def _with_another_sku(
    conn: AsyncConnection, new: NewAllocation, specified: Sequence[AllocationSpecified], admit: Admit
) -> Nearest | None:
    """Return the request with the most similar SKU of the catalogue for which a node has enough free slots now."""
    wanted, tried = specified[0].sku.content, {each.sku.name for each in specified}
    others = [
        (name, content)
        for name, content in skus_among(await catalogue.offered(conn, "sku"))
        if name not in tried
    ]
    for name, _ in sorted(others, key=lambda each: (difference(wanted, each[1]), each[0]))[:MOST_SKUS]:
        other = await specification(conn, new.as_sku(name), new.app_profile)
        if not isinstance(other, AllocationSpecified):
            continue
        if against_length(new.request.lease_seconds, limits_of(other)):
            continue
        placed = await admit(new, other)
        if placed is not None and await _has_host(conn, placed):
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
    keys = [*await usable_classes(conn, wanted)]
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
