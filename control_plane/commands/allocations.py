"""Commands about allocations that are: stop and start, release, and what time does to them."""

from dataclasses import replace
from datetime import datetime, timedelta

from control_plane.commands.bring_ups import failure_changes, joined
from control_plane.commands.living import Living, check_spoken, load
from control_plane.decisions import allocation as life
from control_plane.decisions.ingress import give_up
from control_plane.decisions.skus import SKUS, STOP_WITHIN
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from control_plane.processes.allocation import wanted_by
from control_plane.telling import has_recent_heartbeat, is_telling
from events.allocations import AllocationFact, AllocationFailed
from events.append import Change
from events.bring_ups import FailedBringUp
from events.envelope import Recorded
from events.facts import Reason
from events.ingress import IngressReserved, IngressWithdrawn
from events.values import AllocationId, NodeId, node_of
from tasks.catalogue import type_of


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
            await check_spoken(transaction.conn, _nodes(living), type_of("slice.stop").announced)
        return Decision(living.changes(facts), origin.at(transaction.now))

    return command


def start_allocation(allocation: AllocationId, origin: Origin, reason: Reason) -> Command:
    """Switch its slices on again. Asked again, nothing new happens."""

    async def command(transaction: Transaction) -> Decision:
        living = await load(transaction.conn, allocation)
        deadline = transaction.now + SKUS[living.state.request.sku].ready_within
        return Decision(
            living.changes(life.start(living.state, reason, deadline)), origin.at(transaction.now)
        )

    return command


def expire_lease(allocation: AllocationId) -> Command:
    """Release it, if its lease is over."""

    async def command(transaction: Transaction) -> Decision:
        living = await load(transaction.conn, allocation)
        expired = life.expire(living.state, transaction.now)
        return _by_the_clock(living, expired, transaction.now, "end of lease")

    return command


def miss_deadline(allocation: AllocationId, *, silent_after: timedelta) -> Command:
    """Fail it, if its deadline is over, unless the news may be among reports that wait on a node that is not silent."""

    async def command(transaction: Transaction) -> Decision:
        living = await load(transaction.conn, allocation)
        failed = life.miss_deadline(living.state, transaction.now)
        late = failed or give_up(living.state, living.ways, transaction.now)
        missed = _by_the_clock(living, late, transaction.now, "deadline")
        if missed.changes and await is_telling(transaction.conn, _nodes(living), silent_after):
            return replace(missed, changes=())
        match failed:
            case (AllocationFailed(reason=reason), *_):
                counted = await _counted(transaction, living, reason, silent_after)
                own, *others = missed.changes
                return replace(missed, changes=joined((own, *counted, *others)))
            case _:
                return missed

    return command


async def _counted(
    transaction: Transaction, living: Living, reason: Reason, silent_after: timedelta
) -> tuple[Change, ...]:
    """Count a missed deadline as a node fault if the node accepted the order, sends heartbeats and reported no result.

    The agent's own deadline is shorter, so a working agent reports the failure first.
    """
    slot = life.hung_slot(living.state)
    if slot is None or not await has_recent_heartbeat(transaction.conn, node_of(slot), silent_after):
        return ()
    failure = FailedBringUp(slot, living.state.request.allocation_id, reason, transaction.now)
    return await failure_changes(transaction.conn, living.rows[slot], failure)


def _nodes(living: Living) -> set[NodeId]:
    """Return the nodes of the allocation's current slots."""
    return {node_of(slot.slot_id) for slot in living.state.slots}


def _by_the_clock(living: Living, decided: tuple[AllocationFact, ...], now: datetime, why: str) -> Decision:
    """What the passing of time alone decided; its cause is the fact whose time is over."""
    cause = _timed(living, decided).leads_to(actor="process:allocation", why=why, observed_at=now)
    return Decision(living.changes(decided), cause)


def _timed(living: Living, decided: tuple[AllocationFact, ...]) -> Recorded[AllocationFact]:
    """What asked for that of which the time is over."""
    match decided:
        case (IngressWithdrawn(ingress_id=name), *_):
            return next(
                each
                for each in living.history
                if isinstance(each.fact, IngressReserved) and each.fact.ingress_id == name
            )
        case _:
            return wanted_by(living.history)
