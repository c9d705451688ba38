"""The command that creates an allocation: find free slots for it on one node, and claim them.

It locks rows of free slots and skips rows that other transactions have locked, so that many callers do not wait for
each other. A skipped slot stays free if the transaction that locked its row rolls back, so the command waits for such
rows before it refuses a request for lack of capacity. It waits in a new transaction that has no locks yet: if it had
locked rows that the other transaction needs, both would wait for each other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.catalogue import specification
from control_plane.commands.ingress import has_free_ingress, reserve
from control_plane.commands.projects import against_project
from control_plane.decisions.placement import choose, fits, node_blocked, only_simulated_left, unknown_node
from control_plane.decisions.public_addresses import IngressRequest, no_free_address_anywhere
from control_plane.decisions.refusals import Conflict, refuse_if
from control_plane.decisions.skus import ready_within
from control_plane.decisions.slots import claim
from control_plane.handle import Command, Decision, RetryWithoutLocks, Transaction
from control_plane.identity.sessions import supports
from control_plane.origin import Origin
from control_plane.work import placeable, tables
from events.allocations import (
    AllocationFact,
    AllocationPlaced,
    AllocationRequested,
    AllocationSpecified,
    PlacedSlot,
)
from events.entries import SkuContent
from events.ingress import IngressReserved
from events.ledger.append import Change
from events.slot_states import Free, slot_state_name
from events.values import (
    MAX_SLOTS,
    AppProfileName,
    IngressId,
    NodeId,
    SlotId,
    node_of,
    stream_of_allocation,
    stream_of_slot,
)
from read_models import nodes, slots
from read_models.slots import SlotRow
from tasks.catalogue import INGRESS, RATE

CANDIDATES: Final = MAX_SLOTS + 1
"""Number of rows read for one request; more than the slots of any node."""
_NAMED: Final = 5
"""Number of excluded nodes and slots that a refusal names."""
_FREE: Final[sa.ColumnClause[str]] = sa.literal_column(f"'{slot_state_name(Free())}'")
"""Not a parameter: the partial index of free slots is for this constant, and a generic plan could not use it."""


def create_allocation(
    request: AllocationRequested,
    app_profile: AppProfileName | None,
    ingress_rules: Sequence[tuple[IngressId, IngressRequest]],
    origin: Origin,
    render: Callable[[tuple[AllocationFact, ...], datetime], str],
    *,
    unreachable_after: timedelta,
    simulated_allowed: bool,
) -> Command:
    """Create an allocation: choose and claim its slots and ingress rules.

    Raises `UnknownName` if its project or one of its entries of the catalogue does not exist, and `Conflict` if an
    entry is retired, if the entries do not fit each other, or if there is no capacity.

    `render` makes the caller's response from the allocation's first facts and their time. A node without heartbeat for
    `unreachable_after` is not chosen (PLT-3). A simulated node is chosen only if the request names it, unless
    `simulated_allowed`.
    """

    async def command(transaction: Transaction) -> Decision:
        specified = await _specified(transaction.conn, request, app_profile)
        wanted = PlacementRequest(
            request,
            specified.sku.content,
            ingress_rules,
            unreachable_after,
            simulated_allowed=simulated_allowed,
        )
        try:
            found = await find_place(transaction, wanted)
        except Conflict as nothing:
            if transaction.wait_for_locked:
                raise await _with_exclusions(transaction.conn, wanted, nothing) from None
            raise RetryWithoutLocks from nothing
        placed = AllocationPlaced(
            allocation_id=request.allocation_id,
            slots=found.slots,
            deadline=transaction.now + ready_within(specified.sku.content),
        )
        stream = stream_of_allocation(request.allocation_id)
        # Ingress rules precede the placement, because its position becomes the token of an order that contains them.
        facts: tuple[AllocationFact, ...] = (request, specified, *found.reserved, placed)
        answer = render(facts, transaction.now)
        return Decision((Change(stream, 0, facts), *found.claims), origin.at(transaction.now), answer)

    return command


async def _specified(
    conn: AsyncConnection, request: AllocationRequested, app_profile: AppProfileName | None
) -> AllocationSpecified:
    """Return the specification of an allocation. Raises `UnknownName` or `Conflict` with every objection to its project
    and to its entries of the catalogue.
    """
    against = await against_project(conn, request.project, "/project")
    specified = await specification(conn, request, app_profile)
    if isinstance(specified, AllocationSpecified):
        refuse_if(against)
        return specified
    refuse_if([*against, *specified])
    raise AssertionError("without a specification there is an objection")


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A request for slots of the size `sku` and ingress rules on one node, which must not be in `except_nodes`.

    Placement ignores nodes without heartbeat for `unreachable_after`. It ignores a simulated node too, unless the
    request names this node or `simulated_allowed` is set.
    """

    request: AllocationRequested
    sku: SkuContent
    ingress_rules: Sequence[tuple[IngressId, IngressRequest]]
    unreachable_after: timedelta
    simulated_allowed: bool
    except_nodes: frozenset[NodeId] = frozenset()

    @property
    def ingress_requests(self) -> list[IngressRequest]:
        """The requested ingress rules without their ids."""
        return [rule for _, rule in self.ingress_rules]


@dataclass(frozen=True, slots=True)
class Place:
    """Free slots of one node with locked rows, the changes that claim them, and the ingress rules on that node."""

    slots: tuple[PlacedSlot, ...]
    claims: tuple[Change, ...]
    reserved: tuple[IngressReserved, ...]


async def find_place(transaction: Transaction, wanted: PlacementRequest) -> Place:
    """Find and lock free slots for a request, all on one node. Raises `Conflict` or `UnknownName` if there are none.

    With `Transaction.wait_for_locked`, the query waits for rows that other transactions have locked; else it skips
    them.
    """
    conn, wait_for_locked, request = transaction.conn, transaction.wait_for_locked, wanted.request
    query = _candidates(wanted)
    rows = await _free_slots(conn, query.with_for_update(skip_locked=not wait_for_locked, of=slots.slot))
    if wait_for_locked and wanted.ingress_rules and not fits(rows, request.slot_count):
        anywhere = await _free_slots(conn, _candidates(wanted, require_free_ingress=False))
        if fits(anywhere, request.slot_count):
            raise no_free_address_anywhere()
    if wait_for_locked and not fits(rows, request.slot_count):
        await _refuse_for_its_node(conn, wanted)
    chosen, reserved = await _chosen(conn, rows, request, wanted.ingress_rules)
    claims = (
        Change(stream_of_slot(slot), rows[slot].version, (claim(slot, request.allocation_id),))
        for slot in chosen
    )
    return Place(tuple(_placed(rows[slot]) for slot in chosen), tuple(claims), reserved)


async def _refuse_for_its_node(conn: AsyncConnection, wanted: PlacementRequest) -> None:
    """Raise the refusal if the requested node is unknown or blocked, or if only simulated nodes have capacity."""
    request = wanted.request
    if request.node is None:
        simulated = _candidates(replace(wanted, ingress_rules=(), simulated_allowed=True))
        if not wanted.simulated_allowed and fits(await _free_slots(conn, simulated), request.slot_count):
            raise only_simulated_left(request.slot_count, request.sku)
        return
    if await nodes.find(conn, request.node) is None:
        raise unknown_node(request.node)
    blocked = await placeable.hosts_blocked(
        conn, [request.node], wanted.unreachable_after, simulated_allowed=True
    )
    if request.node in blocked:
        raise node_blocked(request.node, blocked[request.node])


async def _chosen(
    conn: AsyncConnection,
    rows: Mapping[SlotId, SlotRow],
    request: AllocationRequested,
    ingress_rules: Sequence[tuple[IngressId, IngressRequest]],
) -> tuple[tuple[SlotId, ...], tuple[IngressReserved, ...]]:
    """Choose slots on the first node, in placement order, that also has the requested public addresses and ports free.

    Raises `Conflict` if there is no such node.
    """
    left, refusal = dict(rows), None
    failures = {slot: len(row.failures) for slot, row in rows.items() if row.failures}
    while True:
        try:
            chosen = choose(left, request.slot_count, request.sku, failures, node=request.node)
        except Conflict as nothing:
            raise (refusal or nothing) from None
        host = node_of(chosen[0])
        if not ingress_rules:
            return chosen, ()
        node = await nodes.held(conn, host)
        ingress_requests = [(name, chosen[rule.slot], rule) for name, rule in ingress_rules]
        try:
            return chosen, await reserve(conn, node, ingress_requests, request.allocation_id)
        except Conflict as lacking:
            refusal = lacking
            left = {slot: row for slot, row in left.items() if row.node_id != host}


async def _with_exclusions(conn: AsyncConnection, wanted: PlacementRequest, lacking: Conflict) -> Conflict:
    """Return the refusal for lack of capacity, and add the names of excluded nodes and slots with free capacity."""
    slot, node = slots.slot, nodes.node
    free = sa.and_(*_is_free(slot, wanted))
    has_free = sa.select(sa.true()).where(slot.c.node_id == node.c.node_id, free).limit(1).scalar_subquery()
    whole = sa.select(node.c.node_id).where(node.c.excluded.is_not(None), has_free)
    single = sa.select(slot.c.slot_id).where(slot.c.excluded.is_not(None), free)
    query = whole.union_all(single).limit(_NAMED + 1)
    found = [str(name) for name in await conn.scalars(query)]
    if not found:
        return lacking
    named = ", ".join(found[:_NAMED]) + (", and more" if len(found) > _NAMED else "")
    first, *others = lacking.objections
    reason = f"{first.message}; nodes or slots excluded after failed bring-ups: {named}; an operator can readmit them"
    return Conflict(first._replace(message=reason), *others)


def _placed(row: SlotRow) -> PlacedSlot:
    assert row.network is not None, "a free slot must have the network that its approval set"
    return PlacedSlot(row.slot_id, row.network)


async def _free_slots(
    conn: AsyncConnection, candidates: sa.Select[tuple[object, ...]]
) -> dict[SlotId, SlotRow]:
    found = [SlotRow(row) for row in (await conn.execute(candidates)).mappings()]
    return {row.slot_id: row for row in _of_whole_nodes(found)}


def _of_whole_nodes(found: list[SlotRow]) -> Iterator[SlotRow]:
    """Omit the slots of the last node if the query reached its row limit, which may have cut off slots of that node."""
    cut = found[-1].node_id if len(found) == CANDIDATES else None
    return (row for row in found if row.node_id != cut)


def _candidates(
    wanted: PlacementRequest, *, require_free_ingress: bool = True
) -> sa.Select[tuple[object, ...]]:
    """Return the query for free slots on nodes that are reachable, fit for placement and have the requested image.

    With `require_free_ingress`, the node also has the requested public addresses and ports free. Rows are ordered by
    node and slot. Conditions on the node are scalar subqueries: the planner would turn an `exists` into joins over all
    slots and nodes.
    """
    slot, request, ingress_requests = slots.slot, wanted.request, wanted.ingress_requests
    which = [
        *_is_free(slot, wanted),
        placeable.all_hold(placeable.SLOT),
        _reachable(wanted.unreachable_after),
        _fit(wanted, ingress_requests if require_free_ingress else ()),
    ]
    if request.node is not None:
        which.append(slot.c.node_id == request.node)
    # An agent that does not support rates, or ingress rules, would refuse the order.
    needed_support = {RATE: wanted.sku.rate_mbit is not None, INGRESS: bool(ingress_requests)}
    which += (supports(slot.c.node_id, announced) for announced, needed in needed_support.items() if needed)
    if wanted.except_nodes:
        which.append(slot.c.node_id.not_in(wanted.except_nodes))
    if request.slot_count > 1:
        # Otherwise all rows within the limit could be of nodes with too few free slots, followed by a suitable node.
        which.append(_free_beside(wanted) >= request.slot_count)
    return sa.select(slot).where(*which).order_by(slot.c.node_id, slot.c.slot_index).limit(CANDIDATES)


def _reachable(unreachable_after: timedelta) -> sa.ScalarSelect[bool]:
    seen = tables.node_seen
    reachable = placeable.all_hold(placeable.heartbeat(unreachable_after))
    return sa.select(reachable).where(seen.c.node_id == slots.slot.c.node_id).scalar_subquery()


def _fit(wanted: PlacementRequest, ingress_requests: Sequence[IngressRequest]) -> sa.ScalarSelect[bool]:
    node, request = nodes.node, wanted.request
    simulated_allowed = wanted.simulated_allowed or request.node is not None
    fit = sa.and_(
        placeable.all_hold((*placeable.HOST, placeable.kind(simulated_allowed=simulated_allowed))),
        node.c.images.any_() == request.image,
        *has_free_ingress(ingress_requests),
    )
    return sa.select(fit).where(node.c.node_id == slots.slot.c.node_id).scalar_subquery()


def _is_free(slot: sa.FromClause, wanted: PlacementRequest) -> Iterator[sa.ColumnElement[bool]]:
    """Return the conditions of a free slot that was approved for the SKU and is large enough for its version."""
    yield slot.c.state == _FREE
    yield slot.c.sku == wanted.request.sku
    yield slot.c.vcpus >= wanted.sku.vcpus
    yield slot.c.memory_mib >= wanted.sku.memory_mib


def _free_beside(wanted: PlacementRequest) -> sa.ScalarSelect[int]:
    """Return a subquery that counts the usable free slots of the SKU on the node of a slot, including this slot."""
    free = slots.slot.alias("free")
    alike = sa.and_(
        free.c.node_id == slots.slot.c.node_id,
        *_is_free(free, wanted),
        sa.not_(free.c.blocked),
        free.c.excluded.is_(None),
    )
    return sa.select(sa.func.count()).select_from(free).where(alike).scalar_subquery()
