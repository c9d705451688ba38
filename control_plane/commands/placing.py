"""The command that creates an allocation: find free slots for it on one node, and claim them.

It locks rows of free slots and skips rows that other transactions have locked, so that many callers do not wait for
each other. A skipped slot stays free if the transaction that locked its row rolls back, so the command waits for such
rows before it refuses a request for lack of capacity. It waits in a new transaction that has no locks yet: if it had
locked rows that the other transaction needs, both would wait for each other.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.catalogue import specification
from control_plane.commands.explaining import groups_of
from control_plane.commands.ingress import has_free_ingress, reserve
from control_plane.commands.placement_request import NewAllocation, PlacementRequest
from control_plane.commands.projects import against_project
from control_plane.decisions.deadlines import ready_within
from control_plane.decisions.fleet.slots import claim
from control_plane.decisions.placing.choice import (
    Candidate,
    choose,
    fits,
    unknown_node,
)
from control_plane.decisions.placing.explanation import Group, field_of_sku, unplaced, unplaced_with_any
from control_plane.decisions.placing.suitability import Demand, Suited, compare, demand_of
from control_plane.decisions.public_addresses import IngressRequest
from control_plane.decisions.refusals import Conflict, Objection, refuse_if
from control_plane.handle import Command, Decision, RetryWithoutLocks, Transaction
from control_plane.origin import Origin
from control_plane.work import placeable, tables
from events.allocations import (
    AllocationFact,
    AllocationPlaced,
    AllocationSpecified,
    PlacedSlot,
)
from events.ingress import IngressReserved
from events.ledger.append import Change
from events.slot_states import Free, slot_state_name
from events.values import (
    MAX_SLOTS,
    SkuName,
    SlotId,
    node_of,
    stream_of_allocation,
    stream_of_slot,
)
from read_models import nodes, slots
from read_models.slots import SlotRow

CANDIDATES: Final = MAX_SLOTS + 1
"""Number of rows read for one request; more than the slots of any node."""
_NAMED: Final = 5
"""Number of excluded nodes and slots that a refusal names."""
_FREE: Final[sa.ColumnClause[str]] = sa.literal_column(f"'{slot_state_name(Free())}'")
"""Not a parameter: the partial index of free slots is for this constant, and a generic plan could not use it."""


class _Lock(Enum):
    """What a query for free slots does with their rows."""

    NONE = "none"
    SKIP = "skip"
    """Lock them, and skip rows that another transaction has locked."""
    WAIT = "wait"
    """Lock them, and wait for other transactions."""


def create_allocation(
    new: NewAllocation, origin: Origin, render: Callable[[tuple[AllocationFact, ...], datetime], str]
) -> Command:
    """Create an allocation: choose and claim its slots and ingress rules.

    Raises `UnknownName` if its project or one of its entries of the catalogue does not exist, and `Conflict` if an
    entry is retired, if the entries do not fit each other, or if there is no capacity.

    `render` makes the caller's response from the allocation's first facts and their time.
    """

    async def command(transaction: Transaction) -> Decision:
        options = await _options(transaction.conn, new)
        try:
            option, found = await _find_first_place(transaction, options)
        except Conflict as nothing:
            if transaction.wait_for_locked:
                raise
            raise RetryWithoutLocks from nothing
        name = new.request.allocation_id
        placed = AllocationPlaced(
            allocation_id=name,
            slots=found.slots,
            deadline=transaction.now + ready_within(option.specified.sku.content),
        )
        # Ingress rules precede the placement, because its position becomes the token of an order that contains them.
        facts: tuple[AllocationFact, ...] = (
            option.wanted.request,
            option.specified,
            *found.reserved,
            placed,
        )
        answer = render(facts, transaction.now)
        changes = (Change(stream_of_allocation(name), 0, facts), *found.claims)
        return Decision(changes, origin.at(transaction.now), answer)

    return command


def preview_placement(
    new: NewAllocation,
    origin: Origin,
    render: Callable[[SkuName | None, Sequence[SlotId], Sequence[Objection], Sequence[Group]], str],
) -> Command:
    """Search slots for an allocation like `create_allocation`, without creating it.

    `render` makes the caller's response from the SKU and the slots that it would get, the reasons why it would be
    refused, and the groups of all nodes. Raises `UnknownName` and `Conflict` for a request that no placement can help.
    """

    async def command(transaction: Transaction) -> Decision:
        options = await _options(transaction.conn, new)
        groups = [group for each in options for group in await groups_of(transaction.conn, each.wanted)]
        try:
            option, found = await _find_first_place(transaction, options)
        except Conflict as nothing:
            if not transaction.wait_for_locked:
                raise RetryWithoutLocks from nothing
            answer = render(None, [], nothing.objections, groups)
        else:
            slot_ids = [each.slot_id for each in found.slots]
            answer = render(option.wanted.request.sku, slot_ids, [], groups)
        return Decision((), origin.at(transaction.now), answer)

    return command


class _Option(NamedTuple):
    """A SKU that a new allocation may get: the specification with this SKU, and the slots that it needs."""

    specified: AllocationSpecified
    wanted: PlacementRequest


async def _options(conn: AsyncConnection, new: NewAllocation) -> list[_Option]:
    """Return an option for each SKU of a new allocation, in the order of preference. Raises `UnknownName` or `Conflict`
    with every objection to its project and to its entries of the catalogue.
    """
    against, options = await against_project(conn, new.request.project, "/project"), list[_Option]()
    for place, sku in enumerate((new.request.sku, *new.alternative_skus)):
        request = replace(new.request, sku=sku)
        specified = await specification(conn, request, new.app_profile)
        if isinstance(specified, AllocationSpecified):
            options.append(_Option(specified, new.placed_as(request, demand_of(specified))))
        else:
            field = field_of_sku(place)
            against += (each._replace(field=field) if each.field == "/sku" else each for each in specified)
    refuse_if([*dict.fromkeys(against)])
    return options


async def _find_first_place(transaction: Transaction, options: Sequence[_Option]) -> "tuple[_Option, Place]":
    """Return the first option for which there is a place, with this place. Raises `Conflict` with the refusals of all
    options.

    The locks of an option without place are released before the next one is tried: the transaction may wait for rows of
    the next one, while others wait for those of the first.
    """
    refusals: list[Conflict] = []
    for each in options:
        try:
            if len(options) == 1:
                return each, await find_place(transaction, each.wanted)
            async with transaction.conn.begin_nested():
                return each, await find_place(transaction, each.wanted)
        except Conflict as nothing:
            refusals.append(nothing)
    raise unplaced_with_any(refusals)


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
    suitable = await _suitable_classes(conn, wanted.demand)
    lock = _Lock.WAIT if wait_for_locked else _Lock.SKIP
    rows = await _first_that_fits(conn, wanted, suitable, lock)
    if wait_for_locked and not fits(rows, request.slot_count):
        await _refuse(conn, wanted)
    candidates = {name: Candidate(suitable[row.class_], len(row.failures)) for name, row in rows.items()}
    chosen, reserved = await _chosen(conn, candidates, wanted)
    claims = (
        Change(stream_of_slot(slot), rows[slot].version, (claim(slot, request.allocation_id),))
        for slot in chosen
    )
    return Place(tuple(_placed(rows[slot]) for slot in chosen), tuple(claims), reserved)


async def _suitable_classes(conn: AsyncConnection, demand: Demand) -> dict[str, Suited]:
    """Return the classes of slots that suit a demand, by key."""
    found = {key: compare(demand, each) for key, each in (await slots.classes(conn)).items()}
    return {key: suited for key, suited in found.items() if isinstance(suited, Suited)}


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


async def _refuse(conn: AsyncConnection, wanted: PlacementRequest) -> None:
    """Raise the refusal of a request for which no node has enough free slots, with the reasons of all nodes."""
    found, node = await groups_of(conn, wanted), wanted.request.node
    if node is not None and not found:
        raise unknown_node(node)
    row = None if node is None else await nodes.find(conn, node)
    cordoned = None if row is None else row.cordoned
    raise unplaced(found, wanted.demand, wanted.request.slot_count, node, cordoned)


async def _chosen(
    conn: AsyncConnection, candidates: Mapping[SlotId, Candidate], wanted: PlacementRequest
) -> tuple[tuple[SlotId, ...], tuple[IngressReserved, ...]]:
    """Choose slots on the first node, in placement order, that is not cordoned and also has the requested public
    addresses and ports free.

    Raises `Conflict` if there is no such node.
    """
    request, left, refusal = wanted.request, dict(candidates), None
    while True:
        try:
            chosen = choose(left, request.slot_count, wanted.demand)
        except Conflict as nothing:
            raise (refusal or nothing) from None
        host = node_of(chosen[0])
        # The statement that chose the slots may have a snapshot older than a cordon of the node.
        if not await placeable.hold_open(conn, host):
            left = {slot: each for slot, each in left.items() if node_of(slot) != host}
            continue
        if not wanted.ingress_rules:
            return chosen, ()
        node = await nodes.held(conn, host)
        ingress_requests = [(name, chosen[rule.slot], rule) for name, rule in wanted.ingress_rules]
        try:
            return chosen, await reserve(conn, node, ingress_requests, request.allocation_id)
        except Conflict as lacking:
            refusal = lacking
            left = {slot: each for slot, each in left.items() if node_of(slot) != host}


def _placed(row: SlotRow) -> PlacedSlot:
    assert row.network is not None, "a free slot must have the network that its approval set"
    return PlacedSlot(row.slot_id, row.network)


async def _free_slots(
    conn: AsyncConnection, wanted: PlacementRequest, keys: Collection[str], lock: _Lock = _Lock.NONE
) -> dict[SlotId, SlotRow]:
    """Return free slots of the classes `keys` on suitable nodes, in the order of nodes: all of a node, or none."""
    query = _candidates(wanted, keys, lock)
    found = [SlotRow(row) for row in (await conn.execute(query)).mappings()]
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
    wanted_class = _keys(keys).table_valued("key", name="wanted_class").render_derived()
    slot, request = slots.slot, wanted.request
    which = [
        *_is_free(slot),
        slot.c["class"] == wanted_class.c.key,
        placeable.all_hold(placeable.SLOT),
        _reachable(wanted.unreachable_after),
        _fit(wanted, wanted.ingress_requests),
    ]
    if request.node is not None:
        which.append(slot.c.node_id == request.node)
    which += wanted.support_of(slot.c.node_id)
    if wanted.except_nodes:
        which.append(slot.c.node_id.not_in(wanted.except_nodes))
    if request.slot_count > 1:
        # Otherwise all rows within the limit could be of nodes with too few free slots, followed by a suitable node.
        which.append(_free_beside(keys) >= request.slot_count)
    of_class = sa.select(slot).where(*which).order_by(slot.c.node_id, slot.c.slot_index).limit(CANDIDATES)
    if lock is not _Lock.NONE:
        of_class = of_class.with_for_update(skip_locked=lock is _Lock.SKIP, of=slot)
    found = of_class.lateral("found")
    return (
        sa.select(found)
        .select_from(sa.join(wanted_class, found, sa.true()))
        .order_by(found.c.node_id, found.c.slot_index)
        .limit(CANDIDATES)
    )


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


def _keys(keys: Collection[str]) -> sa.Function[Any]:
    return sa.func.unnest(sa.cast([*keys], ARRAY(sa.Text)))


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
        free.c["class"] == sa.any_(sa.cast([*keys], ARRAY(sa.Text))),
        sa.not_(free.c.blocked),
        free.c.excluded.is_(None),
    )
    return sa.select(sa.func.count()).select_from(free).where(alike).scalar_subquery()
