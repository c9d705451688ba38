"""The query that explains a placement: the reason of every registered node, in groups of nodes with the same reason.

The classes of slots are compared with the request once each, outside of the database. The query reads the numbers of
slots of each class on every node, so that its cost is one pass over the nodes, however many slots and reasons there
are.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.ingress import has_free_ingress
from control_plane.commands.placement_request import PlacementRequest
from control_plane.decisions.placing.explanation import (
    IMAGE_MISSING,
    KEPT,
    MODE_UNSUPPORTED,
    NO_FREE_SLOT,
    NO_PUBLIC_ADDRESS,
    NO_SLOTS,
    NOT_APART,
    RESERVED,
    SLOTS_BLOCKED,
    SUITABLE,
    TOO_FEW_SLOTS,
    UNSUPPORTED,
    Group,
    ordered,
)
from control_plane.decisions.placing.suitability import Mismatch, Suited, compare
from control_plane.work import placeable, tables
from control_plane.work.placeable import Need
from control_plane.work.slot_counts import counts_now
from events.offers import SlotClass
from events.values import NodeId
from read_models import nodes, slots

_MISMATCHES: Final = tuple(Mismatch)
_SUITED: Final = len(_MISMATCHES)
"""Rank of a class of slots that suits the request. The rank of any other class is the index of the reason in `Mismatch`
why it does not suit."""
_PORT_DOWN: Final = _MISMATCHES.index(Mismatch.FABRIC_DOWN)
"""Rank of a class of slots that suits the request as soon as the fabric ports of its slots carry traffic."""


class Fleet(NamedTuple):
    """The nodes, the numbers of their slots by class, and these classes, from which a placement is explained. `node`
    and `counts` are tables, or queries with the same columns.
    """

    node: sa.FromClause
    counts: sa.FromClause
    classes: Mapping[str, SlotClass]
    is_past: bool
    """Whether this is the fleet in a past state. Heartbeats, the abilities of agents and free public addresses are
    known only of the present state.
    """


async def groups_of(conn: AsyncConnection, wanted: PlacementRequest) -> list[Group]:
    """Return every registered node that the request permits, in groups with the same reason. The groups that are
    closest to suitable come first.
    """
    now = Fleet(nodes.node, counts_now(), await slots.classes(conn), is_past=False)
    return await groups_in(conn, wanted, now)


async def groups_in(conn: AsyncConnection, wanted: PlacementRequest, fleet: Fleet) -> list[Group]:
    """Return the groups of nodes like `groups_of`, for a state of the fleet."""
    ranks = {
        key: _SUITED if isinstance(found, Suited) else _MISMATCHES.index(found)
        for key, each in fleet.classes.items()
        for found in [compare(wanted.demand, each)]
    }
    node, own = fleet.node, _slots_by_node(fleet.counts, ranks, wanted.kept_classes).subquery("own")
    code = _code(wanted, fleet, own)
    which = [node.c.state != nodes.REMOVED]
    if wanted.request.node is not None:
        which.append(node.c.node_id == wanted.request.node)
    if wanted.except_nodes:
        which.append(node.c.node_id.not_in(wanted.except_nodes))
    with_slots, seen = sa.outerjoin(node, own, own.c.node_id == node.c.node_id), tables.node_seen
    query = (
        sa.select(
            code.label("code"), sa.func.count().label("nodes"), sa.func.min(node.c.node_id).label("example")
        )
        .select_from(
            with_slots if fleet.is_past else with_slots.outerjoin(seen, seen.c.node_id == node.c.node_id)
        )
        .where(*which)
        .group_by(sa.literal_column("1"))
    )
    found = await conn.execute(query)
    groups = [Group(wanted.demand.name, row.code, row.nodes, NodeId(row.example)) for row in found]
    return [*ordered(groups)]


def _slots_by_node(
    counts: sa.FromClause, ranks: Mapping[str, int], kept: Collection[str]
) -> sa.Select[tuple[object, ...]]:
    """Return the query that counts the slots of each node for a request.

    `able` is the number of slots with the hardware that the request needs, and `suited` the number of slots that suit
    the request now. Of the suited slots, `fit` are fit for placement, `idle` are held by no allocation, `free` are both
    fit and idle, and `unreserved` are free and not kept for other projects. `closest` is the highest rank of the node's
    slots; null if all of them are retired.
    """
    keys, numbers = sa.cast([*ranks], ARRAY(sa.Text)), sa.cast([*ranks.values()], ARRAY(sa.Integer))
    rank = sa.func.unnest(keys, numbers).table_valued("key", "rank", name="ranked").render_derived()
    suited = rank.c.rank == _SUITED

    def total(number: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        return sa.func.coalesce(sa.func.sum(number).filter(suited), 0)

    return (
        sa.select(
            counts.c.node_id,
            sa.func.max(rank.c.rank).filter(counts.c.slots > 0).label("closest"),
            sa.func.coalesce(sa.func.sum(counts.c.slots).filter(rank.c.rank >= _PORT_DOWN), 0).label("able"),
            total(counts.c.slots).label("suited"),
            total(counts.c.fit).label("fit"),
            total(counts.c.idle).label("idle"),
            total(counts.c.free).label("free"),
            total(sa.case((counts.c["class"].in_(sorted(kept)), 0), else_=counts.c.free)).label("unreserved"),
        )
        .select_from(sa.join(counts, rank, counts.c["class"] == rank.c.key))
        .group_by(counts.c.node_id)
    )


def _code(wanted: PlacementRequest, fleet: Fleet, own: sa.FromClause) -> sa.ColumnElement[str]:
    """Return the first reason why a node is not suitable, in the order hardware, health, use."""
    count = wanted.request.slot_count
    access, *sound = placeable.of_host(fleet.node)
    mismatch = sa.case(
        {place: sa.literal(str(each)) for place, each in enumerate(_MISMATCHES)}, value=own.c.closest
    )
    needs = (
        # A node without access may have no slots only because it has not enrolled yet.
        Need(sa.or_(own.c.closest.is_not(None), access.holds), access.reason),
        Need(own.c.closest.is_not(None), sa.literal(NO_SLOTS)),
        Need(own.c.able > 0, mismatch),
        Need(own.c.able >= count, sa.literal(TOO_FEW_SLOTS)),
        access,
        *(() if fleet.is_past else placeable.heartbeat(wanted.unreachable_after, fleet.node)),
        *sound,
        Need(wanted.has_image(fleet.node), sa.literal(IMAGE_MISSING)),
        Need(wanted.supports_mode(fleet.node), sa.literal(MODE_UNSUPPORTED)),
        *(() if fleet.is_past else _supported(wanted, fleet.node)),
        Need(own.c.suited >= count, sa.literal(str(Mismatch.FABRIC_DOWN))),
        # A repair is sufficient if enough slots are idle, even if others that are fit are in use.
        Need(own.c.fit >= count, sa.literal(SLOTS_BLOCKED)),
        Need(sa.or_(own.c.free >= count, own.c.idle < count), sa.literal(SLOTS_BLOCKED)),
        Need(own.c.free >= count, sa.literal(NO_FREE_SLOT)),
        Need(own.c.unreserved >= count, sa.literal(RESERVED)),
        *_last_needs(wanted, fleet),
    )
    return sa.func.coalesce(placeable.first_reason(needs), SUITABLE)


def _supported(wanted: PlacementRequest, node: sa.FromClause) -> Iterator[Need]:
    return (Need(each, sa.literal(UNSUPPORTED)) for each in wanted.support_of(node.c.node_id))


def _last_needs(wanted: PlacementRequest, fleet: Fleet) -> Iterator[Need]:
    """Yield the conditions that are named only for nodes with enough free slots."""
    if wanted.kept_nodes:
        yield Need(fleet.node.c.node_id.not_in(wanted.kept_nodes), sa.literal(KEPT))
    if wanted.apart_nodes:
        yield Need(fleet.node.c.node_id.not_in(wanted.apart_nodes), sa.literal(NOT_APART))
    if not fleet.is_past:
        for each in has_free_ingress(wanted.ingress_requests):
            yield Need(each, sa.literal(NO_PUBLIC_ADDRESS))
    allowed = wanted.simulated_allowed or wanted.request.node is not None
    yield placeable.kind(fleet.node, simulated_allowed=allowed)
