"""From a node's report to facts: each report once, in its spool's order.

The cursor of a spool moves in the transaction that records what the report said, so a report delivered twice
is taken once, and one that was answered is in the ledger. A node speaks for its own slots alone: what it says
of others is logged and taken without a fact, because refusing it for ever would only stop its spool. The answer
of every report is how far its spool was taken: a node whose disk was restored learns from it that it counts anew
what was counted before.
"""

from dataclasses import dataclass, replace
from typing import assert_never
from uuid import UUID

import sqlalchemy as sa
import structlog
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane import task_rows, work
from control_plane.commands.living import Living, load
from control_plane.commands.nodes import Survey, inspect_node, take_mended
from control_plane.decisions import allocation as life
from control_plane.decisions import ingress
from control_plane.decisions.refusals import Conflict, Objection, UnknownName
from control_plane.decisions.skus import SKUS
from control_plane.decisions.slots import free, withhold
from control_plane.handle import Command, Decision, Transaction
from control_plane.operation_reports import take_operation
from control_plane.processes.allocation import is_newest, is_overtaken, wish_behind
from control_plane.refused_orders import take_refusal
from control_plane.task_rows import End
from events import allocations as facts
from events.append import Change
from events.envelope import Cause
from events.facts import Reason
from events.values import NodeId, new_uuid, node_of
from tasks import reports
from tasks.reports import Report

log = structlog.get_logger()
SliceReport = (
    reports.SliceStarting
    | reports.SliceAddress
    | reports.SliceReady
    | reports.SliceExposed
    | reports.SliceInterrupted
    | reports.SliceFailed
    | reports.SliceStopped
    | reports.SliceRemoved
    | reports.SliceRemains
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a report stands: whose, in which spool."""

    node: NodeId
    incarnation: UUID


def take_report(place: Place, report: Report) -> Command:
    """Take one report. Raises `Conflict` when an earlier one of its spool is still missing."""

    async def command(transaction: Transaction) -> Decision:
        if not await _advance(transaction.conn, place, report.sequence):
            last = await _last_taken(transaction.conn, place)
            if report.sequence <= last:
                return Decision((), _cause(place, report), str(last))
            if report.sequence > last + 1:
                why = f"report {last + 1} of this spool must come first"
                raise Conflict(Objection("report_missing", why, "/reports"))
            await _advance(transaction.conn, place, report.sequence)
        return replace(await _decide(transaction, place, report), answer=str(report.sequence))

    return command


async def _decide(transaction: Transaction, place: Place, report: Report) -> Decision:
    match report.body:
        case reports.NodeSurveyed() as body:
            return await inspect_node(transaction, Survey(place.node, body, _cause(place, report)))
        case reports.DriftMended() as body:
            return await take_mended(transaction, place.node, body, _cause(place, report))
        case reports.OrderRefused() as body:
            return await take_refusal(transaction, place.node, body, _cause(place, report))
        case reports.OperationDone() | reports.OperationFailed() as body:
            return await take_operation(transaction, place.node, body, _cause(place, report))
        case body:
            return await _slice(transaction, place, report, body)


async def _advance(conn: AsyncConnection, place: Place, sequence: int) -> bool:
    """Whether it is the next report of its spool; a twin of it waits here, and is then none."""
    cursor = work.report_cursor
    next_one = sa.and_(_cursor_of(place), cursor.c.sequence == sequence - 1)
    moved = await conn.execute(sa.update(cursor).where(next_one).values(sequence=sequence))
    return bool(moved.rowcount)


async def _last_taken(conn: AsyncConnection, place: Place) -> int:
    """How far the spool was taken, 0 for one that is new; the row stays locked."""
    cursor = work.report_cursor
    key = {"node_id": place.node, "incarnation": place.incarnation}
    await conn.execute(insert(cursor).values(**key, sequence=0).on_conflict_do_nothing())
    found = await conn.execute(sa.select(cursor.c.sequence).where(_cursor_of(place)).with_for_update())
    last: int = found.scalar_one()
    return last


def _cursor_of(place: Place) -> sa.ColumnElement[bool]:
    cursor = work.report_cursor
    return sa.and_(cursor.c.node_id == place.node, cursor.c.incarnation == place.incarnation)


def _why(place: Place, report: Report) -> str:
    return f"report {report.sequence} of {place.incarnation}"


def _cause(place: Place, report: Report) -> Cause:
    return Cause(
        actor=f"node:{place.node}",
        why=_why(place, report),
        project=None,
        correlation_id=new_uuid(),
        causation_id=None,
        trace_context=report.trace_context,
        observed_at=report.observed_at,
    )


async def _slice(transaction: Transaction, place: Place, report: Report, body: SliceReport) -> Decision:
    try:
        living = await load(transaction.conn, body.allocation_id)
    except UnknownName:
        living = None
    if living is None or body.slot_id not in living.rows or node_of(body.slot_id) != place.node:
        log.warning("report_not_its_own", node=place.node, slot=body.slot_id, sequence=report.sequence)
        return Decision((), _cause(place, report))
    wish = wish_behind(living.history, body.slot_id, report.order_id)
    cause = wish.leads_to(actor=f"node:{place.node}", why=_why(place, report), observed_at=report.observed_at)
    if report.order_id is not None:
        await _follow_task(transaction, place, report.order_id, body)
        if is_overtaken(living.history, body.slot_id, report.order_id):
            # It waited on the node: what it proves, or could not prove, was never asked for by the wish of now.
            log.info("report_overtaken", slot=body.slot_id, kind=body.kind, order=str(report.order_id))
            return Decision((), cause)
    newest = report.order_id is not None and is_newest(living.history, body.slot_id, report.order_id)
    return Decision(_slice_changes(transaction, living, body, newest=newest), cause)


def _slice_changes(
    transaction: Transaction, living: Living, body: SliceReport, *, newest: bool
) -> tuple[Change, ...]:
    """What follows from a report; `newest` says whether it came of the newest order of its slot."""
    state, slot, allocation = living.state, body.slot_id, body.allocation_id
    match body:
        case reports.SliceStarting():
            return living.changes(life.start_slice(state, slot))
        case reports.SliceAddress():
            seen = facts.SliceAddressObserved(
                allocation, slot, body.mac, body.expected_ip, body.actual_ip, body.lease_state
            )
            return living.changes(life.observe_address(state, seen) if living.is_news(seen) else ())
        case reports.SliceReady():
            ready = facts.SliceReady(allocation, slot, body.address, body.port, body.banner)
            applied = ingress.applied(living.ways, slot) if newest else ()
            return living.changes((*life.slice_ready(state, ready, transaction.now), *applied))
        case reports.SliceExposed():
            # Of an older order too: what it speaks of the newest has as well, and its node says it once.
            return living.changes(
                ingress.seen(living.ways, slot, body.lost, newest=newest, others=body.others)
            )
        case reports.SliceInterrupted():
            deadline = transaction.now + SKUS[state.request.sku].ready_within
            interrupted = facts.SliceInterrupted(allocation, slot, _reason(body.reason), deadline)
            return living.changes(life.interrupt_slice(state, interrupted))
        case reports.SliceFailed():
            return living.changes(life.fail(state, _reason(body.reason)))
        case _:
            return _ended(living, body)


def _ended(
    living: Living, body: reports.SliceStopped | reports.SliceRemoved | reports.SliceRemains
) -> tuple[Change, ...]:
    """What follows from the word that nothing of a slice runs, or is left; or that something is."""
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


async def _follow_task(transaction: Transaction, place: Place, order_id: UUID, body: SliceReport) -> None:
    """An order ends with what it was for; until then the relay keeps seeing to it."""
    conn, now = transaction.conn, transaction.now
    match body:
        case reports.SliceReady() | reports.SliceStopped() | reports.SliceRemoved():
            result = body.model_dump_json(exclude={"slot_id", "allocation_id"})
            await task_rows.end(conn, place.node, order_id, End("done", result=result), now)
        case reports.SliceFailed(reason=reason):
            await task_rows.end(conn, place.node, order_id, task_rows.failure(_reason(reason)), now)
        case reports.SliceRemains(leftovers=leftovers):
            why = Reason("leftovers", ", ".join(leftovers))
            await task_rows.note(conn, place.node, order_id, why)
        case _:
            pass
