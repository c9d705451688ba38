"""The command that makes an allocation: find it a place and claim that.

It takes its slots by row lock and skips rows that others hold, so that many callers pass each other. Rows skipped that
way may come back when their holder rolls back: before a request is refused for lack of capacity, they are waited for.
In another transaction: their holder may want next what this one took beside them, and neither would come on.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane import placeable, work
from control_plane.commands.free_ways import have_free, reserve
from control_plane.decisions.placement import choose, fits, node_blocked, only_simulated_left, unknown_node
from control_plane.decisions.public_addresses import WayWish, nowhere_free
from control_plane.decisions.readiness import Check, named
from control_plane.decisions.refusals import Conflict
from control_plane.decisions.skus import SKUS
from control_plane.decisions.slots import claim
from control_plane.handle import Command, Decision, StartAgain, Transaction
from control_plane.origin import Origin
from control_plane.sessions import knows
from events.allocations import AllocationFact, AllocationPlaced, AllocationRequested, PlacedSlot
from events.append import Change
from events.ingress import IngressReserved
from events.values import MAX_SLOTS, IngressId, NodeId, SlotId, node_of, stream_of_allocation, stream_of_slot
from read_models import nodes, slots
from read_models.slots import SlotRow
from tasks.catalogue import INGRESS, RATE

CANDIDATES: Final = MAX_SLOTS + 1
"""Rows looked at for one request; more than the slots of any node."""
_NAMED: Final = 5
"""Excluded nodes and slots that a refusal names."""
_FREE: Final[sa.ColumnClause[str]] = sa.literal_column("'free'")
"""Not a parameter: the index of free slots is for this word alone, and a plan for any word cannot use it."""


def create_allocation(
    request: AllocationRequested,
    check: Check,
    ways: Sequence[tuple[IngressId, WayWish]],
    origin: Origin,
    render: Callable[[tuple[AllocationFact, ...], datetime], str],
    *,
    silent_after: timedelta,
    simulated_allowed: bool,
) -> Command:
    """Place a request and claim its slots, and its ways in. Raises `Conflict` when there is no room.

    `check` is by what its slices are to be found ready; `render` makes the caller's answer of the allocation's first
    facts and their time. A node without a heartbeat for `silent_after` gets nothing new (PLT-3), and a simulated
    one only requests that name it, unless `simulated_allowed`.
    """

    patient = False
    wanted = Wanted(request, ways, silent_after, simulated_allowed=simulated_allowed)

    async def command(transaction: Transaction) -> Decision:
        nonlocal patient
        try:
            found = await find_place(transaction.conn, wanted, patient=patient)
        except Conflict as nothing:
            if patient:
                raise await _with_exclusions(transaction.conn, request, nothing) from None
            patient = True
            raise StartAgain from nothing
        placed = AllocationPlaced(
            allocation_id=request.allocation_id,
            slots=found.slots,
            deadline=transaction.now + SKUS[request.sku].ready_within,
        )
        stream = stream_of_allocation(request.allocation_id)
        # Ways in before the placement: its position is the token of an order that has them.
        facts: tuple[AllocationFact, ...] = (
            request,
            *named(request.allocation_id, check),
            *found.reserved,
            placed,
        )
        answer = render(facts, transaction.now)
        return Decision((Change(stream, 0, facts), *found.claims), origin.at(transaction.now), answer)

    return command


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request to be placed, with its ingress rules, on a node that is not in `besides`.

    A node without a heartbeat for `silent_after` is left out, and so is a simulated one that the request does not name,
    unless `simulated_allowed`.
    """

    request: AllocationRequested
    ways: Sequence[tuple[IngressId, WayWish]]
    silent_after: timedelta
    simulated_allowed: bool
    besides: frozenset[NodeId] = frozenset()

    @property
    def wishes(self) -> list[WayWish]:
        """Return the requested ingress rules without their names."""
        return [wish for _, wish in self.ways]


@dataclass(frozen=True, slots=True)
class Place:
    """Free slots of one node, whose rows are locked; the changes that claim them; and the ingress rules there."""

    slots: tuple[PlacedSlot, ...]
    claims: tuple[Change, ...]
    reserved: tuple[IngressReserved, ...]


async def find_place(conn: AsyncConnection, wanted: Wanted, *, patient: bool) -> Place:
    """Find and lock slots for a request, all of one node. Raises `Conflict`.

    Rows that others hold are waited for where this is `patient`, else skipped.
    """
    request = wanted.request
    query = _candidates(wanted)
    rows = await _free_slots(conn, query.with_for_update(skip_locked=not patient, of=slots.slot))
    if patient and wanted.ways and not fits(rows, request.slot_count):
        any_ways = await _free_slots(conn, _candidates(wanted, free_ways=False))
        if fits(any_ways, request.slot_count):
            raise nowhere_free()
    if patient and not fits(rows, request.slot_count):
        await _refuse_for_its_node(conn, wanted)
    chosen, reserved = await _chosen(conn, rows, request, wanted.ways)
    claims = (
        Change(stream_of_slot(slot), rows[slot].version, (claim(slot, request.allocation_id),))
        for slot in chosen
    )
    return Place(tuple(_placed(rows[slot]) for slot in chosen), tuple(claims), reserved)


async def _refuse_for_its_node(conn: AsyncConnection, wanted: Wanted) -> None:
    """Raise `Conflict` or `UnknownName` if the named node is the reason, or if only simulated nodes have room."""
    request = wanted.request
    if request.node is None:
        simulated = _candidates(replace(wanted, ways=(), simulated_allowed=True))
        if not wanted.simulated_allowed and fits(await _free_slots(conn, simulated), request.slot_count):
            raise only_simulated_left(request.slot_count, request.sku)
        return
    if await nodes.find(conn, request.node) is None:
        raise unknown_node(request.node)
    blocked = await placeable.hosts_blocked(conn, [request.node], wanted.silent_after, simulated_allowed=True)
    if request.node in blocked:
        raise node_blocked(request.node, blocked[request.node])


async def _chosen(
    conn: AsyncConnection,
    rows: Mapping[SlotId, SlotRow],
    request: AllocationRequested,
    ways: Sequence[tuple[IngressId, WayWish]],
) -> tuple[tuple[SlotId, ...], tuple[IngressReserved, ...]]:
    """Slots of the first node, in placement's order, that has what the ways in want too. Raises `Conflict`."""
    left, refusal = dict(rows), None
    failures = {slot: len(row.failures) for slot, row in rows.items() if row.failures}
    while True:
        try:
            chosen = choose(left, request.slot_count, request.sku, failures, node=request.node)
        except Conflict as nothing:
            raise (refusal or nothing) from None
        host = node_of(chosen[0])
        if not ways:
            return chosen, ()
        node = await nodes.held(conn, host)
        wishes = [(name, chosen[wish.slot], wish) for name, wish in ways]
        try:
            return chosen, await reserve(conn, node, wishes, request.allocation_id)
        except Conflict as lacking:
            refusal = lacking
            left = {slot: row for slot, row in left.items() if row.node_id != host}


async def _with_exclusions(
    conn: AsyncConnection, request: AllocationRequested, lacking: Conflict
) -> Conflict:
    """Return the refusal with the free nodes and slots that are excluded after failed bring-ups in its message."""
    slot, node = slots.slot, nodes.node
    free = sa.and_(slot.c.state == _FREE, slot.c.sku == request.sku)
    has_free = sa.select(sa.true()).where(slot.c.node_id == node.c.node_id, free).limit(1).scalar_subquery()
    whole = sa.select(node.c.node_id).where(node.c.excluded.is_not(None), has_free)
    single = sa.select(slot.c.slot_id).where(slot.c.excluded.is_not(None), free)
    query = whole.union_all(single).limit(_NAMED + 1)
    found = [str(name) for name in await conn.scalars(query)]
    if not found:
        return lacking
    named = ", ".join(found[:_NAMED]) + (", and more" if len(found) > _NAMED else "")
    first, *others = lacking.objections
    why = f"{first.message}; excluded after failed bring-ups: {named}; readmit those that are repaired"
    return Conflict(first._replace(message=why), *others)


def _placed(row: SlotRow) -> PlacedSlot:
    assert row.network is not None, "a free slot was approved, and approval fixes its network"
    return PlacedSlot(row.slot_id, row.network)


async def _free_slots(
    conn: AsyncConnection, candidates: sa.Select[tuple[object, ...]]
) -> dict[SlotId, SlotRow]:
    found = [SlotRow(row) for row in (await conn.execute(candidates)).mappings()]
    return {row.slot_id: row for row in _of_whole_nodes(found)}


def _of_whole_nodes(found: list[SlotRow]) -> Iterator[SlotRow]:
    """Without those of a node that the look ended in: it has more room than they tell."""
    cut = found[-1].node_id if len(found) == CANDIDATES else None
    return (row for row in found if row.node_id != cut)


def _candidates(wanted: Wanted, *, free_ways: bool = True) -> sa.Select[tuple[object, ...]]:
    """Free slots of nodes that are fit, heard of and have the image, and unless told otherwise the ways in free.

    They come in their index's order, each with questions about its node: scalars, not `exists`, of which the
    planner would make joins over all slots and nodes there are.
    """
    slot, request, wishes = slots.slot, wanted.request, wanted.wishes
    which = [
        slot.c.state == _FREE,
        placeable.all_hold(placeable.SLOT),
        slot.c.sku == request.sku,
        _heard(wanted.silent_after),
        _fit(wanted, wishes if free_ways else ()),
    ]
    if request.node is not None:
        which.append(slot.c.node_id == request.node)
    # An agent that knows of no rate, or of no way in, refuses the order.
    besides = {RATE: SKUS[request.sku].rate_mbit is not None, INGRESS: bool(wishes)}
    which += (knows(slot.c.node_id, announced) for announced, needed in besides.items() if needed)
    if wanted.besides:
        which.append(slot.c.node_id.not_in(wanted.besides))
    if request.slot_count > 1:
        # Else the rows looked at could all be of nodes with too few, and one with enough come after them.
        which.append(_free_beside(request) >= request.slot_count)
    return sa.select(slot).where(*which).order_by(slot.c.node_id, slot.c.slot_index).limit(CANDIDATES)


def _heard(silent_after: timedelta) -> sa.ScalarSelect[bool]:
    seen = work.node_seen
    heard = placeable.all_hold(placeable.heartbeat(silent_after))
    return sa.select(heard).where(seen.c.node_id == slots.slot.c.node_id).scalar_subquery()


def _fit(wanted: Wanted, wishes: Sequence[WayWish]) -> sa.ScalarSelect[bool]:
    node, request = nodes.node, wanted.request
    simulated_allowed = wanted.simulated_allowed or request.node is not None
    fit = sa.and_(
        placeable.all_hold((*placeable.HOST, placeable.kind(simulated_allowed=simulated_allowed))),
        node.c.images.any_() == request.image,
        *have_free(wishes),
    )
    return sa.select(fit).where(node.c.node_id == slots.slot.c.node_id).scalar_subquery()


def _free_beside(request: AllocationRequested) -> sa.ScalarSelect[int]:
    """How many slots of the slot's node are free, itself included."""
    free = slots.slot.alias("free")
    alike = sa.and_(
        free.c.node_id == slots.slot.c.node_id,
        free.c.state == _FREE,
        free.c.sku == request.sku,
        sa.not_(free.c.blocked),
        free.c.excluded.is_(None),
    )
    return sa.select(sa.func.count()).select_from(free).where(alike).scalar_subquery()
