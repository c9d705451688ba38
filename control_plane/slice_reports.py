"""Turn nodes' reports about slices into facts of their allocations.

A node may report only its own slots: a report about another slot is logged and leads to no fact, because refusing it
permanently would only block the node's spool.
"""

from dataclasses import dataclass
from typing import NamedTuple, assert_never
from uuid import UUID

import structlog

from control_plane import task_rows
from control_plane.commands.bring_ups import failure_changes, joined, success_changes
from control_plane.commands.living import Living, load
from control_plane.commands.replacing import Replacing
from control_plane.decisions import allocation as life
from control_plane.decisions import ingress
from control_plane.decisions.exclusion import is_of_node
from control_plane.decisions.refusals import UnknownName
from control_plane.decisions.skus import SKUS
from control_plane.decisions.slots import free, withhold
from control_plane.handle import Decision, Transaction
from control_plane.processes.allocation import is_newest, is_overtaken, wish_behind
from control_plane.task_rows import End
from events import allocations as facts
from events.append import Change
from events.bring_ups import FailedBringUp
from events.envelope import Cause
from events.facts import Reason
from events.values import NodeId, new_uuid, node_of
from tasks import reports
from tasks.reports import Report

log = structlog.get_logger()
_OtherReport = (
    reports.SliceStarting
    | reports.SliceAddress
    | reports.SliceExposed
    | reports.SliceInterrupted
    | reports.SliceStopped
    | reports.SliceRemoved
    | reports.SliceRemains
)
SliceReport = reports.SliceReady | reports.SliceFailed | _OtherReport


@dataclass(frozen=True, slots=True)
class Place:
    """The node and the spool of a report."""

    node: NodeId
    incarnation: UUID


class Taken(NamedTuple):
    """The changes that follow from a report, and whether it ends an order or operation that was still open."""

    decision: Decision
    ends_task: bool = False


def _why(place: Place, report: Report) -> str:
    return f"report {report.sequence} of {place.incarnation}"


def cause_of(place: Place, report: Report) -> Cause:
    """The cause of what a report leads to, where nothing else is known to have led to it."""
    return Cause(
        actor=f"node:{place.node}",
        why=_why(place, report),
        project=None,
        correlation_id=new_uuid(),
        causation_id=None,
        trace_context=report.trace_context,
        observed_at=report.observed_at,
    )


async def take_slice(
    transaction: Transaction, place: Place, report: Report, body: SliceReport, replacing: Replacing
) -> Taken:
    """Return the changes that follow from a report about a slice."""
    try:
        living = await load(transaction.conn, body.allocation_id)
    except UnknownName:
        living = None
    if living is None or body.slot_id not in living.rows or node_of(body.slot_id) != place.node:
        log.warning("report_not_its_own", node=place.node, slot=body.slot_id, sequence=report.sequence)
        return Taken(Decision((), cause_of(place, report)))
    wish = wish_behind(living.history, body.slot_id, report.order_id)
    cause = wish.leads_to(actor=f"node:{place.node}", why=_why(place, report), observed_at=report.observed_at)
    ends_task = False
    if report.order_id is not None:
        ends_task = await _follow_task(transaction, place, report.order_id, body)
        if is_overtaken(living.history, body.slot_id, report.order_id):
            # A late report: its proof, or its lack of proof, does not answer the current desired state.
            log.info("report_overtaken", slot=body.slot_id, kind=body.kind, order=str(report.order_id))
            return Taken(Decision((), cause), ends_task)
    newest = report.order_id is not None and is_newest(living.history, body.slot_id, report.order_id)
    match body:
        case reports.SliceReady():
            changes = await _came_up(transaction, living, body, newest=newest)
        case reports.SliceFailed():
            changes = await _failed(transaction, living, report, body, replacing)
        case _:
            changes = _slice_changes(transaction, living, body, newest=newest)
    return Taken(Decision(changes, cause), ends_task)


async def _came_up(
    transaction: Transaction, living: Living, body: reports.SliceReady, *, newest: bool
) -> tuple[Change, ...]:
    """The slice is ready; the first report of it also ends the count of failures in its slot and on its node."""
    slot, allocation = body.slot_id, body.allocation_id
    ready = facts.SliceReady(allocation, slot, body.address, body.port, body.banner)
    up = life.slice_ready(living.state, ready, transaction.now)
    applied = ingress.applied(living.ways, slot) if newest else ()
    changes = living.changes((*up, *applied))
    if not up:
        return changes
    return joined((*changes, *await success_changes(transaction.conn, living.rows[slot], allocation)))


async def _failed(
    transaction: Transaction,
    living: Living,
    report: Report,
    body: reports.SliceFailed,
    replacing: Replacing,
) -> tuple[Change, ...]:
    """Place the allocation of a slice that could not be made elsewhere, or fail it, and count a node fault."""
    slot, reason = body.slot_id, _reason(body.reason)
    changes = await replacing(transaction.conn, living, slot, reason, transaction.now)
    if not changes or not is_of_node(reason):
        return changes
    failure = FailedBringUp(slot, body.allocation_id, reason, report.observed_at)
    counted = await failure_changes(transaction.conn, living.rows[slot], failure)
    own, *others = changes
    return joined((own, *counted, *others))


def _slice_changes(
    transaction: Transaction, living: Living, body: _OtherReport, *, newest: bool
) -> tuple[Change, ...]:
    """Return what follows from a report; `newest` is whether it belongs to the newest order of its slot."""
    state, slot, allocation = living.state, body.slot_id, body.allocation_id
    match body:
        case reports.SliceStarting():
            return living.changes(life.start_slice(state, slot))
        case reports.SliceAddress():
            seen = facts.SliceAddressObserved(
                allocation, slot, body.mac, body.expected_ip, body.actual_ip, body.lease_state
            )
            return living.changes(life.observe_address(state, seen) if living.is_news(seen) else ())
        case reports.SliceExposed():
            # Also for an older order: the newest one has the same, and the node reports it once.
            return living.changes(
                ingress.seen(living.ways, slot, body.lost, newest=newest, others=body.others)
            )
        case reports.SliceInterrupted():
            deadline = transaction.now + SKUS[state.request.sku].ready_within
            interrupted = facts.SliceInterrupted(allocation, slot, _reason(body.reason), deadline)
            return living.changes(life.interrupt_slice(state, interrupted))
        case _:
            return _ended(living, body)


def _ended(
    living: Living, body: reports.SliceStopped | reports.SliceRemoved | reports.SliceRemains
) -> tuple[Change, ...]:
    """Return what follows from the report that nothing of a slice runs or is left, or that something is."""
    state, slot, allocation = living.state, body.slot_id, body.allocation_id
    row, ways = living.rows[slot], living.ways
    match body:
        case reports.SliceStopped(forced=forced):
            off = life.slice_stopped(state, slot, forced=forced)
            return living.changes((*off, *(ingress.closed(ways, slot) if off else ())))
        case reports.SliceRemoved():
            removed = life.slice_removed(state, slot)
            if not removed:
                return ()
            freed = free(slot, row.allocation_id, row.state, allocation, body.absent)
            return living.changes((*ingress.emptied(ways, slot), *removed), *living.slot_change(slot, freed))
        case reports.SliceRemains():
            unproved = facts.SliceRemovalUnproved(allocation, slot, body.leftovers)
            told = life.slice_remains(state, unproved)
            if not told or not living.is_news(unproved):
                return ()
            held = withhold(slot, row.allocation_id, row.state, allocation, body.leftovers)
            return living.changes(told, *living.slot_change(slot, held))
        case _:
            assert_never(body)


def _reason(reason: reports.Reason) -> Reason:
    return Reason(reason.code, reason.message)


async def _follow_task(transaction: Transaction, place: Place, order_id: UUID, body: SliceReport) -> bool:
    """Return whether the report ends an open order; until then the order is sent again."""
    conn, now = transaction.conn, transaction.now
    match body:
        case reports.SliceReady() | reports.SliceStopped() | reports.SliceRemoved():
            result = body.model_dump_json(exclude={"slot_id", "allocation_id"})
            return await task_rows.end(conn, place.node, order_id, End("done", result=result), now)
        case reports.SliceFailed(reason=reason):
            return await task_rows.end(conn, place.node, order_id, task_rows.failure(_reason(reason)), now)
        case reports.SliceRemains(leftovers=leftovers):
            why = Reason("leftovers", ", ".join(leftovers))
            await task_rows.note(conn, place.node, order_id, why)
            return False
        case _:
            return False
