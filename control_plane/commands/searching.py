"""Search free slots for a request, all on one node, and lock their rows.

It locks rows of free slots and skips rows that other transactions have locked, so that many callers do not wait for
each other. A skipped slot stays free if the transaction that locked its row rolls back, so the command waits for such
rows before it refuses a request for lack of capacity. It waits in a new transaction that has no locks yet: if it had
locked rows that the other transaction needs, both would wait for each other.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.explaining import groups_of
from control_plane.commands.ingress import has_free_ingress, reserve
from control_plane.commands.placement_request import PlacementRequest
from control_plane.decisions.fleet.slots import claim
from control_plane.decisions.placing.choice import (
    Candidate,
    choose,
    fits,
    no_free_slots,
    unknown_node,
)
from control_plane.decisions.placing.explanation import RESERVED, Unplaced, unplaced
from control_plane.decisions.placing.suitability import Demand, Suited, compare
from control_plane.decisions.refusals import Conflict, Refused
from control_plane.decisions.reservations import against_taking
from control_plane.handle import Transaction
from control_plane.work import placeable, tables
from control_plane.work.label_locks import lock_labels, nodes_with_labels
from events.allocations import (
    AllocationRequested,
    PlacedSlot,
)
from events.ingress import IngressReserved
from events.ledger.append import Change
from events.offers import SlotClass
from events.slot_states import Free, slot_state_name
from events.slots import SlotUse
from events.values import (
    MAX_SLOTS,
    AllocationId,
    NodeId,
    SlotId,
    node_of,
    stream_of_slot,
)
from read_models import nodes, slots
from read_models.compiled import CompiledQueries
from read_models.slots import SlotRow

CANDIDATES: Final = MAX_SLOTS + 1
"""Number of rows read for one request in the slots of all nodes; more than the slots of any node."""
HOSTS: Final = 4
"""Number of nodes of which a request locks the free slots at a time."""
MOST_TRIED: Final = 32
"""Number of nodes that a request tries by their numbers of free slots."""
_QUERIES: Final = CompiledQueries()
_FREE: Final[sa.ColumnClause[str]] = sa.literal_column(f"'{slot_state_name(Free())}'")
"""Name of the state of free slots, as a constant in the text of queries. With a parameter in its place, the database
could not use the partial index of free slots.
"""


class _Lock(Enum):
    """How a query for free slots locks the rows of the slots."""

    SKIP = "skip"
    """Lock the rows, and skip those that another transaction has locked."""
    WAIT = "wait"
    """Lock the rows, and wait for other transactions that have locked one of them."""


@dataclass(frozen=True, slots=True)
class FoundSlots:
    """Free slots of one node with locked rows, the versions of their streams, and the ingress rules on that node."""

    slots: tuple[PlacedSlot, ...]
    versions: tuple[int, ...]
    reserved: tuple[IngressReserved, ...]
    classes: frozenset[str] = frozenset()
    """The classes of the slots."""

    def claims(self, allocation: AllocationId, use: SlotUse | None) -> tuple[Change, ...]:
        """Return the changes that claim the slots for an allocation; `use` is what each counts towards quotas."""
        return tuple(
            Change(stream_of_slot(each.slot_id), version, (claim(each.slot_id, allocation, use),))
            for each, version in zip(self.slots, self.versions, strict=True)
        )


@dataclass(frozen=True, slots=True)
class _Nothing:
    """A search found no slots. `lost` are nodes with enough free slots that became unusable after the statement that
    found the slots: they were cordoned, their public addresses were used up, or they got allocations from which the
    request keeps apart. `refusal` is why the public addresses do not suffice.
    """

    lost: frozenset[NodeId] = frozenset()
    refusal: Conflict | None = None


async def find_slots(transaction: Transaction, wanted: PlacementRequest) -> FoundSlots:
    """Find and lock free slots for a request, all on one node. Raises `Conflict` or `UnknownName` if there are none.

    With `Transaction.wait_for_locked`, the query waits for rows that other transactions have locked, and nodes that
    become unusable during the search are left out of a further search. Without it, slots may be missed.
    """
    if not transaction.wait_for_locked:
        found = await _search(transaction, wanted)
        if isinstance(found, _Nothing):
            raise found.refusal or no_free_slots(wanted.request.slot_count, wanted.demand)
        return found
    others, refusal = wanted, None
    while True:
        # Each search waits for locks only while it has none.
        async with transaction.conn.begin_nested() as attempt:
            found = await _search(transaction, others)
            if isinstance(found, FoundSlots):
                return found
            await attempt.rollback()
        refusal = found.refusal or refusal
        if not found.lost:
            break
        others = replace(others, except_nodes=others.except_nodes | found.lost)
    if refusal is not None:
        raise refusal
    raise await _refusal(transaction.conn, wanted)


async def _search(transaction: Transaction, wanted: PlacementRequest) -> FoundSlots | _Nothing:
    conn, wait_for_locked, request = transaction.conn, transaction.wait_for_locked, wanted.request
    suitable = await usable_classes(conn, wanted)
    rows, free = await _free_slots_in_placement_order(conn, wanted, suitable)
    if not fits(rows, request.slot_count):
        # The numbers may be out of date, or other transactions may have locked the slots: read the slots of all nodes.
        lock = _Lock.WAIT if wait_for_locked else _Lock.SKIP
        rows = await _first_that_fits(conn, wanted, suitable, lock)
        free = Counter(map(node_of, rows))
    candidates = {name: Candidate(suitable[row.class_], len(row.failures)) for name, row in rows.items()}
    chosen = await _chosen(transaction, candidates, free, wanted)
    if isinstance(chosen, _Nothing):
        return chosen
    names, reserved = chosen
    versions = tuple(rows[slot].version for slot in names)
    classes = frozenset(rows[slot].class_ for slot in names)
    return FoundSlots(tuple(placed_slot(rows[slot]) for slot in names), versions, reserved, classes)


async def apart_nodes(conn: AsyncConnection, request: AllocationRequested) -> frozenset[NodeId]:
    """Return the nodes that a request excludes with the labels in its field `apart_from`: allocations with one of these
    labels have slots there. Until the transaction ends, no other request that excludes one of these labels is placed.
    """
    await lock_labels(conn, request.project, request.apart_from)
    return await nodes_with_labels(conn, request.project, request.apart_from)


async def usable_classes(conn: AsyncConnection, wanted: PlacementRequest) -> dict[str, Suited]:
    """Return the suitable classes of a request, without those of which the free slots are kept."""
    found = await suitable_classes(conn, wanted.demand)
    return {key: suited for key, suited in found.items() if key not in wanted.kept_classes}


async def suitable_classes(conn: AsyncConnection, demand: Demand) -> dict[str, Suited]:
    """Return how well each suitable class of slots suits a demand, by the key of the class."""
    return suitable_among(await slots.classes(conn), demand)


def suitable_among(classes: Mapping[str, SlotClass], demand: Demand) -> dict[str, Suited]:
    """Return how well each of these classes of slots suits a demand, by the key of the class, without those that do not
    suit it.
    """
    found = {key: compare(demand, each) for key, each in classes.items()}
    return {key: suited for key, suited in found.items() if isinstance(suited, Suited)}


async def _free_slots_in_placement_order(
    conn: AsyncConnection, wanted: PlacementRequest, suitable: Mapping[str, Suited]
) -> tuple[dict[SlotId, SlotRow], dict[NodeId, int]]:
    """Return free slots with locked rows of the nodes that come first in the placement order of the whole fleet, and
    the number of usable free slots of each of these nodes, according to `work.slot_counts`; nothing if no node has
    enough unlocked ones.

    Locks on rows of other nodes are released: the transaction may wait for locks afterwards.
    """
    tried = list[NodeId]()
    for level in sorted({*suitable.values()}):
        keys = [key for key, suited in suitable.items() if suited <= level]
        while len(tried) < MOST_TRIED:
            hosts = await first_hosts(conn, wanted, keys, tried)
            if not hosts:
                break
            attempt = await conn.begin_nested()
            rows = await free_slots_of(conn, wanted, keys, hosts)
            if fits(rows, wanted.request.slot_count):
                await attempt.commit()
                return rows, hosts
            await attempt.rollback()
            tried += hosts
    return {}, {}


async def first_hosts(
    conn: AsyncConnection,
    wanted: PlacementRequest,
    keys: Sequence[str],
    tried: Collection[NodeId],
    most: int = HOSTS,
) -> dict[NodeId, int]:
    """Return the next `most` nodes in placement order that are fit for placement and have enough free slots of the
    classes `keys`, without those that were tried, and the number of usable free slots of each.

    The nodes of each class are read from the index in this order, and the first of all classes are returned.
    """
    query = _QUERIES.get(("hosts", bool(tried), wanted.form), lambda: _hosts(wanted, keys, tried))
    values = {**wanted.values, "keys": sorted(keys), "tried": sorted(tried), "most_hosts": most}
    return {NodeId(row["node_id"]): row["free_on_node"] for row in await query.rows(conn, values)}


def _hosts(
    wanted: PlacementRequest, keys: Sequence[str], tried: Collection[NodeId]
) -> sa.Select[tuple[object, ...]]:
    """Return the query for nodes that are fit for placement and have free slots of the classes `keys`, in placement
    order, without the nodes in `tried` (`first_hosts`).
    """
    counted, spreads = tables.slot_counts, wanted.demand.sku.placement == "spread"
    alike = counted.alias("alike")
    of_keys = (
        sa.select(sa.func.sum(alike.c.free))
        .where(alike.c.node_id == counted.c.node_id, alike.c["class"] == sa.any_(_list("keys", keys)))
        .scalar_subquery()
    )

    def first(found: sa.FromClause, query: sa.Select[Any]) -> sa.Select[Any]:
        free = found.c.free_on_node.desc() if spreads else found.c.free_on_node
        return query.order_by(free, found.c.node_id).limit(sa.bindparam("most_hosts", type_=sa.Integer))

    wanted_class = (
        sa.func.unnest(_list("keys", keys)).table_valued("key", name="wanted_class").render_derived()
    )
    which = [
        counted.c["class"] == wanted_class.c.key,
        counted.c.free > sa.literal_column("0"),  # not a parameter: the partial index has this condition
        of_keys >= sa.bindparam("wanted_slots", wanted.request.slot_count),
    ]
    if tried:
        which.append(counted.c.node_id != sa.all_(_list("tried", tried)))
    of_class = sa.select(counted.c.node_id, counted.c.free_on_node).where(
        *which, *on_fit_node(wanted, counted.c.node_id)
    )
    found = first(counted, of_class).lateral("found")
    every = sa.select(found).distinct().select_from(sa.join(wanted_class, found, sa.true()))
    return first(found, every)


async def _first_that_fits(
    conn: AsyncConnection, wanted: PlacementRequest, suitable: Mapping[str, Suited], lock: _Lock
) -> dict[SlotId, SlotRow]:
    """Return free slots with the most preferred fabric of which a node has enough, else with any accepted fabric."""
    by_fabric = sorted({suited.fabric for suited in suitable.values()})
    groups = [[key for key, suited in suitable.items() if suited.fabric == each] for each in by_fabric]
    if len(groups) > 1:
        groups.append([*suitable])
    rows: dict[SlotId, SlotRow] = {}
    for keys in groups:
        rows = await _free_slots(conn, wanted, keys, lock)
        if fits(rows, wanted.request.slot_count):
            return rows
    return rows


async def _refusal(conn: AsyncConnection, wanted: PlacementRequest) -> Refused:
    """Return the refusal of a request for which no node has enough free slots, with the reasons of all nodes."""
    found, node = await groups_of(conn, wanted), wanted.request.node
    if node is not None and not found:
        return unknown_node(node)
    row = None if node is None else await nodes.find(conn, node)
    cordoned = None if row is None else row.cordoned
    if any(each.code == RESERVED for each in found):
        count, project = wanted.request.slot_count, wanted.request.project
        return Unplaced([against_taking(wanted.kept_supplies, project, count, wanted.demand)], found)
    return unplaced(found, wanted.demand, wanted.request.slot_count, node, cordoned)


async def _chosen(
    transaction: Transaction,
    candidates: Mapping[SlotId, Candidate],
    free: Mapping[NodeId, int],
    wanted: PlacementRequest,
) -> tuple[tuple[SlotId, ...], tuple[IngressReserved, ...]] | _Nothing:
    """Choose slots on the first node, in placement order, that is not cordoned, has the requested public addresses and
    ports free, and has no allocation from which the request keeps apart. These conditions are read again, because the
    statement that found the candidates has an older snapshot.
    """
    conn, request, left = transaction.conn, wanted.request, dict(candidates)
    lost, refusal = set[NodeId](), None
    while fits(left, request.slot_count):
        chosen = choose(left, free, request.slot_count, wanted.demand)
        host = node_of(chosen[0])
        if await placeable.hold_open(conn, host) and await _hold_apart(transaction, request, host):
            if not wanted.ingress_rules:
                return chosen, ()
            node = await nodes.held(conn, host)
            ingress_requests = [(name, chosen[rule.slot], rule) for name, rule in wanted.ingress_rules]
            try:
                return chosen, await reserve(
                    conn, node, ingress_requests, request.allocation_id, request.project
                )
            except Conflict as lacking:
                refusal = lacking
        lost.add(host)
        left = {slot: each for slot, each in left.items() if node_of(slot) != host}
    return _Nothing(frozenset(lost), refusal)


async def _hold_apart(transaction: Transaction, request: AllocationRequested, host: NodeId) -> bool:
    """Return whether no allocation with a label in the request's field `apart_from` has a slot on a node, and prevent
    that one is placed there until the transaction ends.

    An allocation that only has such a label does not lock the label. So this function locks all slots of the node, and
    thereby waits for allocations that are being placed there; it returns False if the transaction does not wait.
    """
    if not request.apart_from:
        return True
    of_host = sa.select(slots.slot).where(slots.slot.c.node_id == host)
    locked = of_host.with_for_update(read=True, skip_locked=not transaction.wait_for_locked)
    rows = (await transaction.conn.execute(locked)).all()
    host_slots = of_host.subquery()
    count = await transaction.conn.scalar(sa.select(sa.func.count()).select_from(host_slots))
    if len(rows) != count:
        return False
    found = await nodes_with_labels(transaction.conn, request.project, request.apart_from, host_slots)
    return host not in found


def placed_slot(row: SlotRow) -> PlacedSlot:
    """Return the fields of a free slot that an allocation records when it gets the slot."""
    assert row.network is not None, "a free slot must have the network that its approval set"
    return PlacedSlot(row.slot_id, row.network)


async def free_slots_of(
    conn: AsyncConnection,
    wanted: PlacementRequest,
    keys: Collection[str],
    hosts: Collection[NodeId],
    most: int | None = None,
) -> dict[SlotId, SlotRow]:
    """Return free slots of the classes `keys` on those of these nodes that are suitable, and lock their rows. Rows that
    another transaction has locked are left out. With `most`, only as many rows of the first nodes are read and locked.

    The slots of each node are read by its id: a condition on several ids could make the planner read the free slots of
    all nodes in their order.
    """
    query = _QUERIES.get(
        ("slots", most is None, wanted.form), lambda: _slots_of(wanted, keys, hosts, cut=most is not None)
    )
    values = {**wanted.values, "keys": sorted(keys), "hosts": [*hosts], "most_slots": most}
    return {row.slot_id: row for row in map(SlotRow, await query.rows(conn, values))}


def _slots_of(
    wanted: PlacementRequest, keys: Collection[str], hosts: Collection[NodeId], *, cut: bool
) -> sa.Select[tuple[object, ...]]:
    """Return the query for the free slots of the classes `keys` on those of these nodes that are suitable; if `cut`,
    the rows of the first nodes only.
    """
    slot = slots.slot
    host = sa.func.unnest(_list("hosts", hosts)).table_valued("node", name="host").render_derived()
    of_host = (
        sa.select(slot)
        .where(
            slot.c.node_id == host.c.node,
            slot.c["class"] == sa.any_(_list("keys", keys)),
            *_is_free(slot),
            placeable.all_hold(placeable.SLOT),
            *on_fit_node(wanted, slot.c.node_id),
        )
        # The first rows are those that `choose` prefers within a node, as far as it compares slots of one class.
        .order_by(sa.func.coalesce(sa.func.jsonb_array_length(slot.c.failures), 0), slot.c.slot_index)
        .with_for_update(skip_locked=True, of=slot)
        .lateral("found")
    )
    every = sa.select(of_host).select_from(sa.join(host, of_host, sa.true()))
    # Rows beyond the limit are not read, and so not locked: the subquery locks a row when it returns it.
    return every.limit(sa.bindparam("most_slots", type_=sa.Integer)) if cut else every


async def _free_slots(
    conn: AsyncConnection, wanted: PlacementRequest, keys: Collection[str], lock: _Lock
) -> dict[SlotId, SlotRow]:
    """Return free slots of the classes `keys` on suitable nodes, in the order of nodes: all of a node, or none."""
    query = _QUERIES.get(("candidates", lock, wanted.form), lambda: _candidates(wanted, keys, lock))
    found = [SlotRow(row) for row in await query.rows(conn, {**wanted.values, "keys": sorted(keys)})]
    return {row.slot_id: row for row in _of_whole_nodes(found)}


def _of_whole_nodes(found: list[SlotRow]) -> Iterator[SlotRow]:
    """Omit the slots of the last node if the query reached its row limit, which may have cut off slots of that node."""
    cut = found[-1].node_id if len(found) == CANDIDATES else None
    return (row for row in found if row.node_id != cut)


def _candidates(
    wanted: PlacementRequest, keys: Collection[str], lock: _Lock
) -> sa.Select[tuple[object, ...]]:
    """Return the query for free slots of the classes `keys` on nodes that are reachable, fit for placement, and have
    the requested image and public addresses free.

    Rows are ordered by node and slot. Each class is read in this order from the index of free slots, so that the query
    needs no sort of all free slots. Conditions on the node are scalar subqueries: the planner would turn an `exists`
    into joins over all slots and nodes.
    """
    wanted_class = (
        sa.func.unnest(_list("keys", keys)).table_valued("key", name="wanted_class").render_derived()
    )
    slot = slots.slot
    which = [
        *_is_free(slot),
        slot.c["class"] == wanted_class.c.key,
        placeable.all_hold(placeable.SLOT),
        *on_fit_node(wanted, slot.c.node_id),
    ]
    if wanted.request.slot_count > 1:
        # Otherwise all rows within the limit could be of nodes with too few free slots, followed by a suitable node.
        which.append(_free_beside(keys) >= sa.bindparam("wanted_slots", wanted.request.slot_count))
    of_class = sa.select(slot).where(*which).order_by(slot.c.node_id, slot.c.slot_index).limit(CANDIDATES)
    found = of_class.with_for_update(skip_locked=lock is _Lock.SKIP, of=slot).lateral("found")
    return (
        sa.select(found)
        .select_from(sa.join(wanted_class, found, sa.true()))
        .order_by(found.c.node_id, found.c.slot_index)
        .limit(CANDIDATES)
    )


def on_fit_node(wanted: PlacementRequest, node_id: sa.ColumnElement[str]) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the SQL conditions on the node with the id `node_id`: the request permits it, and it is reachable, fit for
    placement, and has an agent that supports the request.
    """
    if wanted.request.node is not None:
        yield node_id == sa.bindparam("wanted_node", wanted.request.node)
    if wanted.except_nodes:
        yield node_id != sa.all_(_list("except_nodes", wanted.except_nodes))
    if wanted.apart_nodes:
        yield node_id != sa.all_(_list("apart_nodes", wanted.apart_nodes))
    if wanted.kept_nodes:
        yield node_id != sa.all_(_list("kept_nodes", wanted.kept_nodes))
    yield _reachable(wanted.unreachable_after, node_id)
    yield _fit(wanted, node_id)
    yield from wanted.support_of(node_id)


def _reachable(unreachable_after: timedelta, node_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    seen = tables.node_seen
    limit: sa.BindParameter[timedelta] = sa.bindparam("unreachable_after", unreachable_after)
    reachable = placeable.all_hold(placeable.heartbeat(limit))
    return sa.select(reachable).where(seen.c.node_id == node_id).scalar_subquery()


def _fit(wanted: PlacementRequest, node_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    node, request = nodes.node, wanted.request
    simulated_allowed = wanted.simulated_allowed or request.node is not None
    fit = sa.and_(
        placeable.all_hold((*placeable.HOST, placeable.kind(simulated_allowed=simulated_allowed))),
        wanted.has_image(),
        wanted.supports_mode(),
        *has_free_ingress(wanted.ingress_requests),
    )
    return sa.select(fit).where(node.c.node_id == node_id).scalar_subquery()


def _list(name: str, values: Collection[str]) -> sa.BindParameter[Any]:
    """Return a named parameter with a list of texts."""
    return sa.bindparam(name, sorted(values), ARRAY(sa.Text))


def _is_free(slot: sa.FromClause) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the SQL conditions of a free slot."""
    yield slot.c.state == _FREE


def _free_beside(keys: Collection[str]) -> sa.ScalarSelect[int]:
    """Return a subquery that counts the usable free slots of the classes `keys` on the node of a slot, including this
    slot.
    """
    free = slots.slot.alias("free")
    alike = sa.and_(
        free.c.node_id == slots.slot.c.node_id,
        *_is_free(free),
        free.c["class"] == sa.any_(_list("keys", keys)),
        sa.not_(free.c.blocked),
        free.c.excluded.is_(None),
    )
    return sa.select(sa.func.count()).select_from(free).where(alike).scalar_subquery()
