"""Conditions for placing a new slice in a slot, each with the reason code that is reported if it does not hold.

Placement checks all conditions, and the lists of the API report the first condition that does not hold. Both use the
definitions in this module, so that every slot listed as free can be used. In addition, placement checks what a request
needs of a node: the image, the ingress rules, and an agent that supports the ingress rules and the rate of the SKU.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONPATH
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions.placing.choice import CORDONED
from control_plane.work import tables
from control_plane.work.live_nodes import WITH_HEARTBEAT
from events.slot_states import Free, slot_state_name
from events.values import NodeId, SkuName, SlotId, node_of
from read_models import nodes, slots
from read_models.compiled import CompiledQuery, rows_together

_BLOCKING: Final = "$[*] ? (@.blocks == true).kind"


class Need(NamedTuple):
    """An SQL condition for placement, and the reason code that is reported if it does not hold.

    The value of `holds` is null while a column in it is null; a null counts as false.
    """

    holds: sa.ColumnElement[bool]
    reason: sa.ColumnElement[str]


def _kind_of_blocking(drift: sa.ColumnElement[object]) -> sa.ColumnElement[str]:
    found = sa.func.jsonb_path_query_first(drift, sa.cast(_BLOCKING, JSONPATH))
    return found.op("#>>")(sa.literal_column("'{}'"))


def _code(excluded: sa.ColumnElement[object]) -> sa.ColumnElement[str]:
    return excluded.op("->>")(sa.literal_column("'code'"))


def of_host(node: sa.FromClause) -> tuple[Need, ...]:
    """Return the placement conditions that depend only on the row of a node: the node is enrolled and not revoked, its
    host lacks no required capability, the node has no drift that blocks placement in all of its slots, it is not
    cordoned, and it is not excluded from placement after failed starts of slices.

    `node` is the table of nodes, or a query with the columns of this table.
    """
    return (
        Need(node.c.key_thumbprint.is_not(None), node.c.state),
        Need(sa.func.cardinality(node.c.missing) == 0, sa.literal("missing")),
        Need(sa.not_(node.c.blocked), _kind_of_blocking(node.c.drift)),
        Need(node.c.cordoned.is_(None), sa.literal(CORDONED)),
        Need(node.c.excluded.is_(None), _code(node.c.excluded)),
    )


def of_slot(slot: sa.FromClause) -> tuple[Need, ...]:
    """Return the placement conditions that depend only on the row of a slot, except that the slot is free: the slot has
    no drift that blocks placement, and it is not excluded from placement.

    `slot` is the table of slots, or a query with the columns of this table.
    """
    return (
        Need(sa.not_(slot.c.blocked), _kind_of_blocking(slot.c.drift)),
        Need(slot.c.excluded.is_(None), _code(slot.c.excluded)),
    )


HOST: Final = of_host(nodes.node)
"""Placement conditions on the present row of a node, in the table of nodes."""
SLOT: Final = of_slot(slots.slot)
"""Placement conditions on the present row of a slot, in the table of slots."""


def heartbeat(
    unreachable_after: "timedelta | sa.ColumnElement[timedelta]", node: sa.FromClause = nodes.node
) -> tuple[Need, ...]:
    """Return the conditions on the last heartbeat of a node: the heartbeat arrived within the last `unreachable_after`,
    and it states that the agent has compared all slots of the node with their desired state.

    The reason of a node without heartbeats is its state in the view of the node: `registered` while it has a key and is
    to enrol again, else `unreachable`.
    """
    seen = tables.node_seen
    on_time = seen.c.seen_at > sa.func.clock_timestamp() - unreachable_after
    silent = sa.case((node.c.state == "enrolled", "unreachable"), else_=node.c.state)
    return Need(on_time, silent), Need(seen.c.resynced, sa.literal("resyncing"))


def kind(node: sa.FromClause = nodes.node, *, simulated_allowed: bool) -> Need:
    """Return the condition that a node is not simulated; with `simulated_allowed`, a condition that always holds.

    A simulated node accepts every order but runs no guest, so its slices are of no use to callers. A deployment can
    allow simulated nodes for all requests, and a request that names a node does not have to fulfil this condition.
    """
    real = node.c.simulated.is_not(sa.true())
    return Need(sa.true() if simulated_allowed else real, sa.literal("simulated"))


def all_hold(needs: Sequence[Need]) -> sa.ColumnElement[bool]:
    """Return an SQL expression that is true if every one of the placement conditions holds."""
    return sa.and_(*(need.holds for need in needs))


async def hold_open(conn: AsyncConnection, node: NodeId) -> bool:
    """Return whether slices may be placed on a node according to its row, and prevent a cordon of the node until the
    transaction ends. The transaction must lock rows of slots before this call.

    The lock on the row (FOR KEY SHARE) waits only for the lock of `close`. A stronger lock would also wait for the
    transactions that process a report of a failed bring-up: such a transaction places the allocation on another node,
    and then locks this row (FOR NO KEY UPDATE) to count the failure. Two such transactions with exchanged nodes would
    wait for each other.
    """
    return bool(await hold_all_open(conn, [node]))


async def hold_all_open(conn: AsyncConnection, names: Collection[NodeId]) -> frozenset[NodeId]:
    """Return the nodes among `names` on which slices may be placed, and prevent a cordon of each node in `names` until
    the transaction ends, like `hold_open`.
    """
    values = {"nodes": sorted(names)}
    # Read the row in a statement after the lock: only its snapshot surely contains a cordon that was committed before.
    _, rows = await rows_together(conn, (_HOLD, values), (_OPEN, values))
    return frozenset(NodeId(row["node_id"]) for row in rows)


_ROW: Final[sa.Select[Any]] = (
    sa.select(nodes.node.c.node_id)
    .where(nodes.node.c.node_id == sa.any_(sa.bindparam("nodes", type_=ARRAY(sa.Text))))
    .order_by(nodes.node.c.node_id)
)
_HOLD: Final = CompiledQuery(_ROW.with_for_update(read=True, key_share=True))
_OPEN: Final = CompiledQuery(_ROW.where(all_hold(HOST)))


async def close(conn: AsyncConnection, node: NodeId) -> None:
    """Wait until all other transactions that place slices on a node have ended, and block later placements on the node
    until the transaction of `conn` ends.
    """
    row = sa.select(sa.literal(1)).where(nodes.node.c.node_id == node)
    await conn.execute(row.with_for_update())


async def hosts_blocked(
    conn: AsyncConnection, names: Collection[NodeId], unreachable_after: timedelta, *, simulated_allowed: bool
) -> dict[NodeId, str]:
    """Return the nodes among `names` on which no new slice is placed now, each with the code of the first reason.

    The code `simulated` is returned only for a node to which no other reason applies, because it is the only code that
    does not apply to a request that names the node.
    """
    query = _hosts(unreachable_after, simulated_allowed=simulated_allowed)
    found = await conn.execute(query.where(nodes.node.c.node_id.in_(names)))
    return {NodeId(row.node_id): row.code for row in found if row.code is not None}


def _hosts(unreachable_after: timedelta, *, simulated_allowed: bool) -> sa.Select[Any]:
    """Return the query for all nodes: `node_id`, and `code`, which is null if new slices are placed on the node now."""
    access, *sound = HOST
    needs = (access, *heartbeat(unreachable_after), *sound, kind(simulated_allowed=simulated_allowed))
    return sa.select(nodes.node.c.node_id, first_reason(needs).label("code")).select_from(WITH_HEARTBEAT)


async def slots_blocked(
    conn: AsyncConnection, names: Collection[SlotId], unreachable_after: timedelta, *, simulated_allowed: bool
) -> dict[SlotId, str]:
    """Return the slots among `names` in which no new slice could be placed now even if they were free, each with the
    code of the first reason. Reasons of the node come before those of the slot.
    """
    node_names = {node_of(name) for name in names}
    hosts = await hosts_blocked(conn, node_names, unreachable_after, simulated_allowed=simulated_allowed)
    query = sa.select(slots.slot.c.slot_id, first_reason(SLOT).label("code")).where(
        slots.slot.c.slot_id.in_(names)
    )
    own = {SlotId(row.slot_id): row.code for row in await conn.execute(query)}
    found = ((name, hosts.get(node_of(name)) or code) for name, code in own.items())
    return {name: code for name, code in found if code is not None}


class BlockedSlots(NamedTuple):
    """A number of free slots in which no new slice could be placed now, all for the reason `code`. They are offered
    under `skus`.
    """

    code: str
    skus: tuple[SkuName, ...]
    number: int


async def free_slots_blocked(
    conn: AsyncConnection, unreachable_after: timedelta, *, simulated_allowed: bool
) -> list[BlockedSlots]:
    """Count the free slots of the fleet in which no new slice could be placed now, by the reason that `slots_blocked`
    returns and by the SKUs under which they are offered.
    """
    hosts = _hosts(unreachable_after, simulated_allowed=simulated_allowed).subquery()
    found = await conn.execute(sa.select(hosts).where(hosts.c.code.is_not(None)))
    blocked = {row.node_id: row.code for row in found}
    names, codes = (sa.literal([*each], ARRAY(sa.Text)) for each in (blocked, blocked.values()))
    host = sa.func.unnest(names, codes).table_valued("node_id", "code", name="host").render_derived()
    slot, own_code = slots.slot, first_reason(SLOT)
    # Usually few nodes and slots are blocked. Indexes find the slots of both parts, without reading all slots.
    of_hosts = sa.select(host.c.code, slot.c.skus).where(slot.c.node_id == host.c.node_id)
    of_slots = sa.select(own_code, slot.c.skus).where(
        sa.or_(slot.c.drift.is_not(None), slot.c.excluded.is_not(None)),
        own_code.is_not(None),
        slot.c.node_id != sa.all_(names),
    )
    is_free = slot.c.state == slot_state_name(Free())
    each_slot = sa.union_all(of_hosts.where(is_free), of_slots.where(is_free)).subquery()
    query = sa.select(*each_slot.c, sa.func.count().label("number")).group_by(*each_slot.c)
    return [BlockedSlots(row.code, tuple(row.skus or ()), row.number) for row in await conn.execute(query)]


def first_reason(needs: Sequence[Need]) -> sa.ColumnElement[str | None]:
    """Return an SQL expression for the reason code of the first condition that does not hold; null if all hold."""
    return sa.case(*((need.holds.is_not(sa.true()), need.reason) for need in needs), else_=None)
