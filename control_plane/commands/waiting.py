"""Requests that wait for capacity: place one, and keep requests behind from the slots that one ahead could take.

A waiting request is placed by a command of its own, which searches like the creation of an allocation and appends the
placement at the version of the stream that it read. So it makes no difference how many processes try it at once.
`work.waiting_attempt` holds only hints: why a request waits, and the node that is kept for it. Losing it loses
nothing; the next pass writes it again.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.admission.quotas import hold_project, ingress_use, with_budget
from control_plane.commands.admission.reservations import restricted
from control_plane.commands.outlook import first_fit
from control_plane.commands.placement_request import PlacementRequest, needs_root_disk
from control_plane.commands.searching import (
    FoundSlots,
    apart_nodes,
    find_slots,
    free_slots_of,
    suitable_classes,
)
from control_plane.decisions.allocation import end_of_wait
from control_plane.decisions.allocation_states import Waiting, fold
from control_plane.decisions.deadlines import ready_within
from control_plane.decisions.placing.choice import fits
from control_plane.decisions.placing.suitability import demand_of
from control_plane.decisions.quotas import CODE as QUOTA_EXCEEDED
from control_plane.decisions.quotas import over_quota, use_of, whole_use
from control_plane.decisions.refusals import Conflict, Refused, refuse_if
from control_plane.decisions.waiting import (
    MOST_QUEUED,
    Kept,
    Outcome,
    QueuedRequest,
    different_needs,
    kept_from,
    requested_ingress,
)
from control_plane.handle import Command, Decision, Handle, RetryWithoutLocks, Transaction, combined
from control_plane.histories import allocation_history, histories
from control_plane.work import tables
from control_plane.work.label_locks import nodes_with_labels
from events.allocations import (
    AllocationPlaced,
    AllocationQueued,
    AllocationRequested,
    AllocationSpecified,
)
from events.derived.waiting import Place
from events.envelope import Recorded
from events.facts import Fact, Reason
from events.ledger.append import Change
from events.ledger.errors import VersionConflict
from events.values import AllocationId, NodeId, node_of, stream_of_allocation
from read_models import waiting

ACTOR: Final = "process:waiting"
_NOT_ADMITTED: Final = (QUOTA_EXCEEDED, "project_archived")
"""Codes of refusals after which a waiting request does not keep slots from the requests behind it."""
_CACHED: Final = 2 * MOST_QUEUED
_requests: Final[OrderedDict[AllocationId, QueuedRequest]] = OrderedDict()
"""Waiting requests that this process has read from the ledger; their first events never change."""


@dataclass(frozen=True, slots=True)
class Placing:
    """Settings for the placement of waiting requests: a node without a heartbeat for `unreachable_after` gets no
    slices, and simulated nodes get slices only if `simulated_allowed` is true.
    """

    unreachable_after: timedelta
    simulated_allowed: bool


@dataclass(frozen=True, slots=True)
class Ahead:
    """The waiting requests that are ahead of the request at `place`, in their order, and the nodes kept for them
    (`kept`). `contested` collects the requests ahead that could take the slots found for the request at `place`.
    """

    place: Place
    requests: tuple[QueuedRequest, ...] = ()
    kept: tuple[Kept, ...] = ()
    contested: list[QueuedRequest] = field(default_factory=list)
    contested_nodes: set[NodeId] = field(default_factory=set)
    """Nodes of the slots that requests in `contested` could take."""

    async def without_kept(
        self, conn: AsyncConnection, wanted: PlacementRequest, now: datetime
    ) -> PlacementRequest:
        """Return the request for slots, changed so that it excludes the nodes that are kept for requests ahead."""
        if not self.kept:
            return wanted
        classes = await suitable_classes(conn, wanted.demand)
        end = now + ready_within(wanted.demand.sku) + timedelta(seconds=wanted.request.lease_seconds)
        return replace(wanted, kept_nodes=kept_from(self.kept, self.place, classes, end))


async def ahead_of(conn: AsyncConnection, place: Place) -> Ahead:
    """Return the waiting requests that are ahead of `place`. Those that a quota refused last are left out: they cannot
    take slots before a pass finds that their quota permits it.
    """
    places = await waiting.in_order(conn, MOST_QUEUED, place)
    attempt = tables.waiting_attempt
    query = sa.select(attempt).where(attempt.c.allocation_id.in_([each.allocation_id for each in places]))
    attempts = {row.allocation_id: row for row in await conn.execute(query)} if places else {}
    kept = tuple(
        Kept(each, NodeId(row.kept_node), frozenset(row.kept_classes), row.kept_from)
        for each in places
        if (row := attempts.get(each.allocation_id)) is not None and row.kept_node is not None
    )
    admitted = [
        each.allocation_id
        for each in places
        if (row := attempts.get(each.allocation_id)) is None or row.code not in _NOT_ADMITTED
    ]
    return Ahead(place, tuple(await _read(conn, admitted)), kept)


async def queued_requests(conn: AsyncConnection) -> list[QueuedRequest]:
    """Return the first waiting requests in their order."""
    places = await waiting.in_order(conn, MOST_QUEUED)
    return await _read(conn, [each.allocation_id for each in places])


async def _read(conn: AsyncConnection, names: Sequence[AllocationId]) -> list[QueuedRequest]:
    missing = [stream_of_allocation(each) for each in names if each not in _requests]
    if missing:
        for history in (await histories(conn, missing)).values():
            found = _queued_request(history)
            _requests[found.request.allocation_id] = found
    read = [_requests[each] for each in names]
    while len(_requests) > _CACHED:
        _requests.popitem(last=False)
    return read


def _queued_request(history: Sequence[Recorded[Fact]]) -> QueuedRequest:
    facts = [each.fact for each in history]
    [request] = (each for each in facts if isinstance(each, AllocationRequested))
    [specified] = (each for each in facts if isinstance(each, AllocationSpecified))
    [queued] = (each for each in facts if isinstance(each, AllocationQueued))
    return QueuedRequest(request, specified, queued, history[0].cause.actor)


def placement_request(queued: QueuedRequest, placing: Placing, apart: frozenset[NodeId]) -> PlacementRequest:
    """Return the request for slots that a waiting request makes. `apart` are the nodes with allocations from which it
    keeps apart.
    """
    return PlacementRequest(
        queued.request,
        demand_of(queued.specified),
        [(each.ingress_id, requested_ingress(each)) for each in queued.queued.ingress],
        placing.unreachable_after,
        simulated_allowed=placing.simulated_allowed,
        needs_root_disk=needs_root_disk(queued.specified),
        apart_nodes=apart,
    )


async def find_in_turn(transaction: Transaction, wanted: PlacementRequest, ahead: Ahead) -> FoundSlots:
    """Find and lock free slots like `find_slots`, but none that a request ahead could take. Raises `Conflict` or
    `UnknownName` if there are none; then `ahead.contested` has the requests that could take the slots that were found.
    """
    if not ahead.requests:
        return await find_slots(transaction, wanted)
    placing = Placing(wanted.unreachable_after, wanted.simulated_allowed)
    while True:
        async with transaction.conn.begin_nested() as attempt:
            found = await find_slots(transaction, wanted)
            host = node_of(found.slots[0].slot_id)
            taker = await _taker(transaction, ahead, host, placing)
            if taker is None:
                return found
            await attempt.rollback()
        ahead.contested.append(taker)
        ahead.contested_nodes.add(host)
        wanted = replace(wanted, kept_nodes=wanted.kept_nodes | {host})


async def _taker(
    transaction: Transaction, ahead: Ahead, host: NodeId, placing: Placing
) -> QueuedRequest | None:
    """Return the first request in `ahead` that fits on the node `host` now; None if no request fits."""
    for each in different_needs(ahead.requests):
        if await _fits_on(transaction, ahead, each, host, placing):
            return each
    return None


async def contest_kept(transaction: Transaction, ahead: Ahead, placing: Placing) -> None:
    """Add to `ahead.contested` the requests that fit now on the node that is kept for them. A request behind must not
    be refused for such a node, because slots may be left there.
    """
    owners = {each.place: each for each in ahead.requests}
    for kept in ahead.kept:
        owner = owners.get(kept.place)
        if owner is not None and await _fits_on(transaction, ahead, owner, kept.node, placing):
            ahead.contested.append(owner)


async def _fits_on(
    transaction: Transaction, ahead: Ahead, queued: QueuedRequest, host: NodeId, placing: Placing
) -> bool:
    """Return whether a waiting request fits on the node `host` now. Slots that another transaction has locked count as
    taken, unless this transaction has locked them itself.
    """
    conn, request = transaction.conn, queued.request
    if request.node not in (None, host):
        return False
    apart = await nodes_with_labels(conn, request.project, request.apart_from)
    wanted = placement_request(queued, placing, apart)
    wanted = await Ahead(queued.place, kept=ahead.kept).without_kept(conn, wanted, transaction.now)
    if host in wanted.kept_nodes:
        return False
    keys = [*await suitable_classes(conn, wanted.demand)]
    rows = await free_slots_of(conn, wanted, keys, [host]) if keys else {}
    return fits(rows, request.slot_count)


def place_waiting(queued: QueuedRequest, placing: Placing) -> Command:
    """Place a waiting request; the answer is the `Outcome`. Nothing changes if it does not wait any more.

    Raises `Conflict` or `UnknownName` if it cannot be placed now.
    """
    name, project = queued.request.allocation_id, queued.request.project

    async def command(transaction: Transaction) -> Decision:
        conn, now = transaction.conn, transaction.now
        against, quotas, _ = await hold_project(conn, project, queued.actor)
        history = await allocation_history(conn, name)
        state = fold(tuple(each.fact for each in history))
        cause = history[-1].leads_to(actor=ACTOR, reason="capacity became free", observed_at=now)
        if not isinstance(state, Waiting) or queued.queued.waits_until <= now:
            return Decision((), cause, Outcome.GONE)
        refuse_if(against)
        quotas = await with_budget(conn, project, quotas, now)
        wanted = placement_request(queued, placing, await apart_nodes(conn, queued.request))
        wanted, claimable = await restricted(conn, wanted, quotas.reserved)
        use = use_of(project, queued.actor, queued.specified)
        amounts = whole_use(use, queued.request.slot_count).plus(ingress_use(wanted.ingress_requests))
        cost = quotas.cost_of_lease(use, queued.request)
        if exceeded := quotas.exceeded(amounts, cost):
            raise over_quota(exceeded)
        ahead = await ahead_of(conn, queued.place)
        wanted = await ahead.without_kept(conn, wanted, now)
        try:
            found = await find_in_turn(transaction, wanted, ahead)
        except Conflict as nothing:
            if not transaction.wait_for_locked:
                raise RetryWithoutLocks from nothing
            raise
        deadline = now + ready_within(queued.specified.sku.content)
        # Ingress rules precede the placement, because its position becomes the token of an order that contains them.
        facts = (end_of_wait(state), *found.reserved, AllocationPlaced(name, found.slots, deadline))
        own = Change(stream_of_allocation(name), history[-1].version, facts)
        changes = (own, *found.claims(name, use))
        of_slots = claimable.last_check(transaction, wanted, found)
        check = combined(of_slots, quotas.last_check(amounts, cost))
        return Decision(changes, cause, Outcome.PLACED, check)

    return command


async def try_to_place(handle: Handle, queued: QueuedRequest, placing: Placing) -> Outcome:
    """Place a waiting request if that is possible now, else store the reason why it must wait longer."""
    try:
        return Outcome(await handle(place_waiting(queued, placing)))
    except (RetryWithoutLocks, VersionConflict):
        # Other requests changed the same rows in each run; the next pass tries it again.
        return Outcome.NO_CAPACITY
    except Refused as refused:
        [first, *_] = refused.objections
        await _store_attempt(handle, queued, first.code, str(refused))
        admitted = first.code not in _NOT_ADMITTED
        return Outcome.NO_CAPACITY if admitted else Outcome.NOT_ADMITTED


async def _store_attempt(handle: Handle, queued: QueuedRequest, code: str, message: str) -> None:
    row = {"allocation_id": queued.request.allocation_id, "code": code, "message": message}
    statement = insert(tables.waiting_attempt).values(row)
    changed = {"code": code, "message": message}
    async with handle.engine.begin() as conn:
        await conn.execute(statement.on_conflict_do_update(index_elements=["allocation_id"], set_=changed))


async def keep_node(handle: Handle, queued: QueuedRequest, placing: Placing) -> None:
    """Keep for a waiting request the node on which it fits first, according to the ends of leases. No node is kept if
    none that suits the request has enough slots.
    """
    attempt = tables.waiting_attempt
    async with handle.engine.begin() as conn:
        now = await handle.clock(conn)
        apart = await nodes_with_labels(conn, queued.request.project, queued.request.apart_from)
        ahead = await ahead_of(conn, queued.place)
        wanted = await ahead.without_kept(conn, placement_request(queued, placing, apart), now)
        first = await first_fit(conn, wanted)
        classes = sorted(await suitable_classes(conn, wanted.demand))
        kept = (
            {"kept_node": None, "kept_classes": None, "kept_from": None}
            if first is None
            else {"kept_node": first.node, "kept_classes": classes, "kept_from": first.at}
        )
        where = attempt.c.allocation_id == queued.request.allocation_id
        await conn.execute(sa.update(attempt).where(where).values(kept))


async def reasons_of_wait(conn: AsyncConnection, names: Sequence[AllocationId]) -> dict[AllocationId, Reason]:
    """Return why these waiting requests could not be placed at the last attempt. A request without an attempt is
    missing.
    """
    attempt = tables.waiting_attempt
    query = sa.select(attempt).where(attempt.c.allocation_id.in_(names))
    return {
        AllocationId(row.allocation_id): Reason(row.code, row.message) for row in await conn.execute(query)
    }


async def earliest_start(conn: AsyncConnection, name: AllocationId, placing: Placing) -> datetime | None:
    """Return when enough slots for a waiting request are free at the earliest, according to the ends of leases; None if
    it is not known.
    """
    [queued] = await _read(conn, [name])
    apart = await nodes_with_labels(conn, queued.request.project, queued.request.apart_from)
    first = await first_fit(conn, placement_request(queued, placing, apart))
    return None if first is None else first.at


async def forget_others(handle: Handle, kept: Sequence[AllocationId]) -> bool:
    """Release the nodes that are kept for waiting requests which are not in `kept`, and delete what is stored of
    requests that no longer wait. Return whether a node was released.
    """
    attempt, row = tables.waiting_attempt, waiting.waiting
    waits = sa.exists().where(row.c.allocation_id == attempt.c.allocation_id, row.c.is_waiting)
    other = sa.and_(attempt.c.kept_node.is_not(None), attempt.c.allocation_id.not_in(kept))
    nothing = {"kept_node": None, "kept_classes": None, "kept_from": None}
    async with handle.engine.begin() as conn:
        await conn.execute(sa.delete(attempt).where(~waits))
        released = await conn.execute(sa.update(attempt).where(other).values(nothing))
    return released.rowcount > 0


async def place_contested(handle: Handle, ahead: Ahead, placing: Placing) -> None:
    """Place the waiting requests that could take the slots that a request behind them found. Requests with an equal
    need are placed in their order, until one does not fit.
    """
    for contested in ahead.contested:
        for each in ahead.requests:
            if (
                each.need == contested.need
                and await try_to_place(handle, each, placing) is Outcome.NO_CAPACITY
            ):
                break
