"""Commands about allocations: create, stop and start, release, and what time does to them.

A new allocation takes its slots by row lock and skips rows that others hold, so that many callers pass each
other. Rows skipped that way may come back when their holder rolls back: before a request is refused for lack
of capacity, they are waited for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane import work
from control_plane.commands.free_ways import reserve
from control_plane.decisions import allocation as life
from control_plane.decisions.allocation_states import Allocation, Placed, Requested, fold
from control_plane.decisions.ingress import Ways, give_up, ways_of
from control_plane.decisions.placement import choose, fits
from control_plane.decisions.public_addresses import WayWish, uses_of
from control_plane.decisions.refusals import Conflict, Objection, UnknownName
from control_plane.decisions.skus import SKUS, STOP_WITHIN
from control_plane.decisions.slots import claim, give_back
from control_plane.decisions.tasks import not_spoken
from control_plane.handle import Command, Decision, Transaction
from control_plane.histories import allocation_history
from control_plane.origin import Origin
from control_plane.processes.allocation import wanted_by
from control_plane.sessions import knows, spoken
from control_plane.telling import is_telling
from events.allocations import (
    AllocationFact,
    AllocationFailed,
    AllocationPlaced,
    AllocationReleasing,
    AllocationRequested,
    PlacedSlot,
    SliceAddressObserved,
    SliceRemovalUnproved,
)
from events.append import Change
from events.envelope import Recorded
from events.facts import Reason
from events.ingress import IngressReserved
from events.slots import SlotFact
from events.values import (
    AllocationId,
    IngressId,
    NodeId,
    SlotId,
    node_of,
    stream_of_allocation,
    stream_of_slot,
)
from read_models import nodes, slots
from read_models.slots import SlotRow
from tasks.catalogue import RATE, type_of

CANDIDATES: Final = 64
"""Rows looked at for one request; more than the slots of any node."""
_FREE: Final[sa.ColumnClause[str]] = sa.literal_column("'free'")
"""Not a parameter: the index of free slots is for this word alone, and a plan for any word cannot use it."""


def create_allocation(
    request: AllocationRequested,
    ways: Sequence[tuple[IngressId, WayWish]],
    origin: Origin,
    render: Callable[[tuple[AllocationFact, ...], datetime], str],
    *,
    silent_after: timedelta,
) -> Command:
    """Place a request and claim its slots, and its ways in. Raises `Conflict` when there is no room.

    `render` makes the caller's answer of the allocation's first facts and their time. A node unheard of for
    `silent_after` gets nothing new (PLT-3).
    """

    async def command(transaction: Transaction) -> Decision:
        rows = await _free_slots(transaction.conn, request, ways, silent_after)
        chosen, reserved = await _chosen(transaction.conn, rows, request, ways)
        placed = AllocationPlaced(
            allocation_id=request.allocation_id,
            slots=tuple(_placed(rows[slot]) for slot in chosen),
            deadline=transaction.now + SKUS[request.sku].provisioning,
        )
        claims = (
            Change(stream_of_slot(slot), rows[slot].version, (claim(slot, request.allocation_id),))
            for slot in chosen
        )
        stream = stream_of_allocation(request.allocation_id)
        # Ways in before the placement: its position is the token of an order that has them.
        facts: tuple[AllocationFact, ...] = (request, *reserved, placed)
        answer = render(facts, transaction.now)
        return Decision((Change(stream, 0, facts), *claims), origin.at(transaction.now), answer)

    return command


async def _chosen(
    conn: AsyncConnection,
    rows: Mapping[SlotId, SlotRow],
    request: AllocationRequested,
    ways: Sequence[tuple[IngressId, WayWish]],
) -> tuple[tuple[SlotId, ...], tuple[IngressReserved, ...]]:
    """Slots of the first node, in placement's order, that has what the ways in want too. Raises `Conflict`."""
    left, refusal = dict(rows), None
    while True:
        try:
            chosen = choose(left, request.slot_count)
        except Conflict as nothing:
            raise (refusal or nothing) from None
        host = node_of(chosen[0])
        if not ways:
            return chosen, ()
        node = await nodes.find(conn, host)
        assert node is not None, "a slot's node was expected once"
        wishes = [(name, chosen[wish.slot], wish) for name, wish in ways]
        try:
            return chosen, await reserve(conn, node, wishes, request.allocation_id)
        except Conflict as lacking:
            refusal = lacking
            left = {slot: row for slot, row in left.items() if row.node_id != host}


def _placed(row: SlotRow) -> PlacedSlot:
    assert row.network is not None, "a free slot was approved, and approval fixes its network"
    return PlacedSlot(row.slot_id, row.network)


async def _free_slots(
    conn: AsyncConnection,
    request: AllocationRequested,
    ways: Sequence[tuple[IngressId, WayWish]],
    silent_after: timedelta,
) -> dict[SlotId, SlotRow]:
    """Free slots of nodes that are fit, heard of and have the image, locked for this transaction."""
    rows: dict[SlotId, SlotRow] = {}
    for skip_locked in (True, False):
        query = _candidates(request, uses_of(wish for _, wish in ways), silent_after, skip_locked=skip_locked)
        candidates = await conn.execute(query)
        found = [SlotRow(row) for row in candidates.mappings()]
        rows = {row.slot_id: row for row in _of_whole_nodes(found)}
        if fits(rows, request.slot_count):
            break
    return rows


def _of_whole_nodes(found: list[SlotRow]) -> Iterator[SlotRow]:
    """Without those of a node that the look ended in: it has more room than they tell."""
    cut = found[-1].node_id if len(found) == CANDIDATES else None
    return (row for row in found if row.node_id != cut)


def _candidates(
    request: AllocationRequested, uses: frozenset[str], silent_after: timedelta, *, skip_locked: bool
) -> sa.Select[tuple[object, ...]]:
    """The free slots in their index's order, each with questions about its node.

    Asked as scalars, not by `exists`, of which the planner would make joins over all slots and nodes there are.
    """
    slot = slots.slot
    sound = sa.not_(slot.c.blocked)
    wanted = [
        slot.c.state == _FREE,
        sound,
        slot.c.sku == request.sku,
        _heard(silent_after),
        _fit(request, uses),
    ]
    if SKUS[request.sku].rate_mbit is not None:
        # An agent that knows of no rate refuses the order.
        wanted.append(knows(slot.c.node_id, RATE))
    if request.slot_count > 1:
        # Else the rows looked at could all be of nodes with too few, and one with enough come after them.
        wanted.append(_free_beside(request) >= request.slot_count)
    return (
        sa.select(slot)
        .where(*wanted)
        .order_by(slot.c.node_id, slot.c.slot_index)
        .limit(CANDIDATES)
        .with_for_update(skip_locked=skip_locked, of=slot)
    )


def _heard(silent_after: timedelta) -> sa.ScalarSelect[bool]:
    seen = work.node_seen
    heard = sa.and_(seen.c.resynced, seen.c.seen_at > sa.func.clock_timestamp() - silent_after)
    return sa.select(heard).where(seen.c.node_id == slots.slot.c.node_id).scalar_subquery()


def _fit(request: AllocationRequested, uses: frozenset[str]) -> sa.ScalarSelect[bool]:
    node, has = nodes.node, nodes.node.c.public_addresses
    fit = sa.and_(
        node.c.key_thumbprint.is_not(None),
        sa.func.cardinality(node.c.missing) == 0,
        sa.not_(node.c.blocked),
        node.c.images.any_() == request.image,
        *(has.contains([{"use": use}]) for use in sorted(uses)),
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
    )
    return sa.select(sa.func.count()).select_from(free).where(alike).scalar_subquery()


@dataclass(frozen=True, slots=True)
class Living:
    """An allocation as a command finds it: its history, the state that follows, and its locked slot rows."""

    history: tuple[Recorded[AllocationFact], ...]
    state: Placed
    rows: dict[SlotId, SlotRow]

    def changes(self, facts: tuple[AllocationFact, ...], *slot_changes: Change) -> tuple[Change, ...]:
        """Append facts to the allocation; an end of its life also gives its claimed slots back."""
        if not facts:
            return slot_changes
        stream = stream_of_allocation(self.state.request.allocation_id)
        own = Change(stream, self.history[-1].version, facts)
        return own, *(self._given_back() if _ends(facts) else ()), *slot_changes

    def slot_change(self, slot: SlotId, facts: tuple[SlotFact, ...]) -> tuple[Change, ...]:
        return (Change(stream_of_slot(slot), self.rows[slot].version, facts),) if facts else ()

    @property
    def ways(self) -> Ways:
        """Its ways in from outside."""
        return ways_of(recorded.fact for recorded in self.history)

    def is_news(self, fact: SliceAddressObserved | SliceRemovalUnproved) -> bool:
        return life.is_news(tuple(recorded.fact for recorded in self.history), fact)

    def leftovers(self, slot: SlotId) -> tuple[str, ...]:
        """What the slot's node found there last of a slice that was to be gone; empty where it said nothing."""
        told = (recorded.fact for recorded in reversed(self.history))
        remains = (fact for fact in told if isinstance(fact, SliceRemovalUnproved) and fact.slot_id == slot)
        return next((fact.leftovers for fact in remains), ())

    def _given_back(self) -> tuple[Change, ...]:
        by = self.state.request.allocation_id
        return tuple(
            change
            for row in self.rows.values()
            for change in self.slot_change(
                row.slot_id, give_back(row.slot_id, row.allocation_id, row.state, by)
            )
        )


def _ends(facts: tuple[AllocationFact, ...]) -> bool:
    return any(isinstance(fact, AllocationReleasing | AllocationFailed) for fact in facts)


async def load(conn: AsyncConnection, allocation: AllocationId) -> Living:
    """Find an allocation and lock its slots. Raises `UnknownName`."""
    history = await allocation_history(conn, allocation)
    state = fold(tuple(recorded.fact for recorded in history))
    if state is None or isinstance(state, Requested):
        raise UnknownName(Objection("unknown_allocation", f"there is no allocation {allocation}"))
    rows = await slots.locked(conn, [slot.slot_id for slot in state.slots])
    return Living(history, state, rows)


def release_allocation(allocation: AllocationId, origin: Origin, reason: Reason) -> Command:
    """Begin the release. Asked again, nothing new happens."""

    async def command(transaction: Transaction) -> Decision:
        living = await load(transaction.conn, allocation)
        cause = origin.at(transaction.now)
        return Decision(living.changes(life.release(living.state, reason)), cause)

    return command


def stop_allocation(allocation: AllocationId, origin: Origin, reason: Reason) -> Command:
    """Switch its slices off. Asked again, nothing new happens. Raises `Conflict` where a node's agent cannot."""

    async def command(transaction: Transaction) -> Decision:
        living = await load(transaction.conn, allocation)
        facts = life.stop(living.state, reason, transaction.now + STOP_WITHIN)
        if facts:
            await check_spoken(transaction.conn, map(node_of, living.rows), type_of("slice.stop").announced)
        return Decision(living.changes(facts), origin.at(transaction.now))

    return command


async def check_spoken(conn: AsyncConnection, hosts: Iterable[NodeId], announced: str) -> None:
    """Raises `Conflict` naming every node whose agent does not speak what others announce by this."""
    against = [
        objection
        for host in sorted(set(hosts))
        for objection in not_spoken(host, await spoken(conn, host), announced)
    ]
    if against:
        raise Conflict(*against)


def start_allocation(allocation: AllocationId, origin: Origin, reason: Reason) -> Command:
    """Switch its slices on again. Asked again, nothing new happens."""

    async def command(transaction: Transaction) -> Decision:
        living = await load(transaction.conn, allocation)
        deadline = transaction.now + SKUS[living.state.request.sku].provisioning
        return Decision(
            living.changes(life.start(living.state, reason, deadline)), origin.at(transaction.now)
        )

    return command


def expire_lease(allocation: AllocationId) -> Command:
    """Release it, if its lease is over."""

    async def command(transaction: Transaction) -> Decision:
        living = await load(transaction.conn, allocation)
        return _by_the_clock(living, transaction.now, "end of lease", life.expire)

    return command


def miss_deadline(allocation: AllocationId, *, silent_after: timedelta) -> Command:
    """Fail it, if its deadline is over, unless the news may be among reports that wait on a node that is not silent."""

    async def command(transaction: Transaction) -> Decision:
        living = await load(transaction.conn, allocation)
        missed = _by_the_clock(
            living,
            transaction.now,
            "deadline",
            lambda state, now: life.miss_deadline(state, now) or give_up(living.ways, now),
        )
        hosts = {node_of(slot) for slot in living.rows}
        if missed.changes and await is_telling(transaction.conn, hosts, silent_after):
            return replace(missed, changes=())
        return missed

    return command


def _by_the_clock(
    living: Living,
    now: datetime,
    why: str,
    decide: Callable[[Allocation, datetime], tuple[AllocationFact, ...]],
) -> Decision:
    """What the passing of time alone decides; its cause is the fact that set the time."""
    cause = wanted_by(living.history).leads_to(actor="process:allocation", why=why, observed_at=now)
    return Decision(living.changes(decide(living.state, now)), cause)
