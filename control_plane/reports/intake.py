"""Intake of reports: record each node report as facts, once, in the order of its spool.

The cursor of a spool is the sequence number of its last accepted report. It advances in the transaction that records
the report's facts, so a report delivered twice is recorded once, and an acknowledged report is in the ledger or stored
for later. Every response contains the spool's cursor: a node with a restored disk detects by it that it repeats
sequence numbers that were recorded before.

All reports of a node share a budget (`control_plane.work.report_budget`). A description of the host that exceeds the
budget is stored and recorded later, in place of all earlier ones; any other report that exceeds it is refused, and its
cursor stays where it is. The cursors of a node's `KEPT_SPOOLS` newest spools are stored. An agent has one spool at a
time, so an older spool belongs to a disk that was replaced.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final
from uuid import UUID

import sqlalchemy as sa
import structlog
from pydantic import ValidationError
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from structlog.contextvars import bound_contextvars

from control_plane.commands.loaded import locked_node
from control_plane.commands.nodes import Survey, inspect_node, take_repair
from control_plane.commands.replacing import Replacing
from control_plane.decisions.refusals import Conflict, Objection, Refused
from control_plane.handle import Command, Decision, Handle, Transaction, database_time
from control_plane.origin import Origin
from control_plane.reports.operation_reports import take_operation
from control_plane.reports.refused_orders import take_refusal, take_refused_head
from control_plane.reports.slice_reports import Place, Taken, cause_of, take_slice
from control_plane.work import report_budget, tables
from control_plane.work.report_budget import CREDIT, Limits
from events.envelope import Cause
from events.ledger.append import Change
from events.ledger.errors import VersionConflict
from events.nodes import NodeReportsResumed, NodeReportsThrottled
from events.traces import trace_id
from events.values import NodeId, new_uuid, stream_of_node
from read_models import nodes
from tasks import reports
from tasks.fields import Wire
from tasks.reports import Report

log = structlog.get_logger()
KEPT_SPOOLS: Final = 8
"""Number of cursors kept per node: those that advanced last."""


@dataclass(frozen=True, slots=True)
class Step:
    """A report to record, and the number of host descriptions directly before it in the spool that this report
    replaces.
    """

    report: Report
    replaced: int = 0

    @property
    def after(self) -> int:
        """The sequence number of the spool's last report that must be recorded before this report."""
        return self.report.sequence - self.replaced - 1


def single(batch: Sequence[Report]) -> Iterator[Step]:
    """Return a `Step` for each report, for a node within its report budget: every report is recorded separately."""
    return map(Step, batch)


def merged(batch: Sequence[Report]) -> Iterator[Step]:
    """Return `Step`s for a node over its report budget: of consecutive host descriptions only the last is recorded."""
    replaced = 0
    for report, following in zip(batch, (*batch[1:], None), strict=True):
        if following is not None and _is_description(report) and _is_description(following):
            replaced += 1
            continue
        yield Step(report, replaced)
        replaced = 0


def _is_description(report: Report) -> bool:
    return isinstance(report.body, reports.NodeSurveyed)


def take_report(
    place: Place, step: Step, limits: Limits, *, unreachable_after: timedelta, simulated_allowed: bool
) -> Command:
    """Record one report. Raises `Conflict` if an earlier one of its spool is missing, and `Throttled`.

    If the report causes an allocation to be placed again, nodes without heartbeat for `unreachable_after` are not
    eligible.
    """
    report, replacing = step.report, Replacing(unreachable_after, simulated_allowed=simulated_allowed)

    async def command(transaction: Transaction) -> Decision:
        with bound_contextvars(trace_id=trace_id(cause_of(place, report).trace_context)):
            return await take(transaction)

    async def take(transaction: Transaction) -> Decision:
        budget = await report_budget.take(transaction.conn, place.node, limits, transaction.now)
        if not await _advance(transaction.conn, place, step):
            last = await _last_taken(transaction.conn, place)
            if report.sequence <= last:
                # Already recorded: after a timeout a node resends everything, and must not be charged twice.
                await report_budget.charge(transaction.conn, place.node, limits, -1)
                return Decision((), cause_of(place, report), str(last))
            if step.after > last:
                message = f"report {last + 1} of this spool is missing; send it first"
                raise Conflict(Objection("report_missing", message, "/reports"))
            await _advance(transaction.conn, place, step)
        if step.replaced:
            await report_budget.count_merged(transaction.conn, place.node, step.replaced)
        if _is_description(report) and not report_budget.may_record(budget, limits, transaction.now):
            decision = await _hold(transaction, place, report, limits)
        else:
            decision = await _record(transaction, place, report, limits, replacing)
        return replace(decision, answer=str(report.sequence))

    return command


async def _record(
    transaction: Transaction, place: Place, report: Report, limits: Limits, replacing: Replacing
) -> Decision:
    """Return the facts to record for a report, and charge the node's report budget for each fact after the first."""
    if _is_description(report):
        await report_budget.release(transaction.conn, place.node, replaced=True)
    taken = await _decide(transaction, place, report, replacing)
    more = report_budget.cost_of(taken.decision.changes) - 1 - (CREDIT if taken.ends_task else 0)
    await report_budget.charge(transaction.conn, place.node, limits, more)
    return taken.decision


class _Held(Wire):
    """A host description that waits for the node's report budget, and the spool that it came from."""

    incarnation: UUID
    report: Report


async def _hold(transaction: Transaction, place: Place, report: Report, limits: Limits) -> Decision:
    text = _Held(incarnation=place.incarnation, report=report).model_dump_json()
    began = await report_budget.hold(transaction.conn, place.node, text, transaction.now)
    return await _throttled(transaction, place.node, limits, cause_of(place, report), began=began)


def refuse_reports(node: NodeId, limits: Limits, times: int, origin: Origin) -> Command:
    """Return the command that counts refused requests of a node, and records that its throttling begins unless the node
    is throttled already.
    """

    async def command(transaction: Transaction) -> Decision:
        began = await report_budget.count_refused(transaction.conn, node, times, transaction.now)
        return await _throttled(transaction, node, limits, origin.at(transaction.now), began=began)

    return command


async def _throttled(
    transaction: Transaction, node_id: NodeId, limits: Limits, cause: Cause, *, began: bool
) -> Decision:
    if not began:
        return Decision((), cause)
    node = await locked_node(transaction.conn, node_id)
    fact = NodeReportsThrottled(node_id, transaction.now, limits.burst, limits.per_minute)
    return Decision((Change(stream_of_node(node_id), node.version, (fact,)),), cause)


def record_held(node: NodeId, limits: Limits) -> Command:
    """Return the command that records a node's stored host description, which waited for its report budget."""

    async def command(transaction: Transaction) -> Decision:
        text = await report_budget.held(transaction.conn, node)
        if text is None:
            return Decision((), _own_cause(transaction, node))
        await report_budget.release(transaction.conn, node, replaced=False)
        registered = await nodes.find(transaction.conn, node, lock=True)
        if registered is None or registered.key_thumbprint is None:
            # The node's access was revoked after the description arrived.
            return Decision((), _own_cause(transaction, node))
        held = _Held.model_validate_json(text)
        place, report = Place(node, held.incarnation), held.report
        assert isinstance(report.body, reports.NodeSurveyed), (
            "only a report that describes a host may wait for the node's report budget"
        )
        decision = await inspect_node(transaction, Survey(node, report.body, cause_of(place, report)))
        more = report_budget.cost_of(decision.changes) - 1
        await report_budget.charge(transaction.conn, node, limits, more)
        return decision

    return command


def resume_reports(node_id: NodeId, limits: Limits) -> Command:
    """Return the command that records the end of a node's throttling, once the node has stayed within its budget."""

    async def command(transaction: Transaction) -> Decision:
        cause = _own_cause(transaction, node_id)
        over = await report_budget.end_episode(transaction.conn, node_id, limits, transaction.now)
        if over is None:
            return Decision((), cause)
        node = await locked_node(transaction.conn, node_id)
        fact = NodeReportsResumed(node_id, over.since, over.refused, over.merged)
        return Decision((Change(stream_of_node(node_id), node.version, (fact,)),), cause)

    return command


async def settle(engine: AsyncEngine, handle: Handle, limits: Limits) -> None:
    """Record the host descriptions that waited for report budgets, and end the throttling of nodes that again stay
    within their budgets.
    """
    async with engine.connect() as conn:
        due = await report_budget.due(conn, limits, await database_time(conn))
    for node in due.held:
        await _settled(handle, node, record_held(node, limits))
    for node in due.over:
        await _settled(handle, node, resume_reports(node, limits))


async def _settled(handle: Handle, node: NodeId, command: Command) -> None:
    """Run a command about one node's report budget.

    A failed command must not stop those of other nodes: it is logged, and run again one second later.
    """
    try:
        await handle(command)
    except (Refused, ValidationError, VersionConflict) as error:
        log.warning("node_report_budget_update_failed", node=node, error=str(error))


def _own_cause(transaction: Transaction, node: NodeId) -> Cause:
    origin = Origin(
        actor="process:report_budget", reason=f"budget of {node}'s reports", correlation_id=new_uuid()
    )
    return origin.at(transaction.now)


async def _decide(transaction: Transaction, place: Place, report: Report, replacing: Replacing) -> Taken:
    cause = cause_of(place, report)
    match report.body:
        case reports.NodeSurveyed() as body:
            return Taken(await inspect_node(transaction, Survey(place.node, body, cause)))
        case reports.DriftRepaired() as body:
            return Taken(await take_repair(transaction, place.node, body, cause))
        case reports.OrderRefused() as body:
            return Taken(await take_refusal(transaction, place.node, body, cause))
        case reports.HeadRefused() as body:
            return Taken(await take_refused_head(transaction, place.node, body, cause))
        case reports.OperationDone() | reports.OperationFailed() as body:
            decision = await take_operation(transaction, place.node, body, cause)
            return Taken(decision, ends_task=bool(decision.changes))
        case body:
            return await take_slice(transaction, place, report, body, replacing)


async def _advance(conn: AsyncConnection, place: Place, step: Step) -> bool:
    """Advance the cursor of a spool to this report if the report is the next one; return whether the cursor advanced.

    A concurrent duplicate waits here for the row lock and then finds that the cursor has moved.
    """
    cursor = tables.report_cursor
    next_one = sa.and_(_cursor_of(place), cursor.c.sequence.between(step.after, step.report.sequence - 1))
    values = {"sequence": step.report.sequence, "moved_at": sa.func.clock_timestamp()}
    moved = await conn.execute(sa.update(cursor).where(next_one).values(values))
    return bool(moved.rowcount)


async def _last_taken(conn: AsyncConnection, place: Place) -> int:
    """Return the last recorded sequence number of the spool, 0 for a new spool; the row stays locked."""
    cursor = tables.report_cursor
    key = {"node_id": place.node, "incarnation": place.incarnation}
    made = await conn.execute(insert(cursor).values(**key, sequence=0).on_conflict_do_nothing())
    if made.rowcount:
        await _forget_spools(conn, place.node)
    found = await conn.execute(sa.select(cursor.c.sequence).where(_cursor_of(place)).with_for_update())
    last: int = found.scalar_one()
    return last


async def _forget_spools(conn: AsyncConnection, node: NodeId) -> None:
    """Delete the cursors of all but the node's newest spools."""
    cursor = tables.report_cursor
    newest = sa.select(cursor.c.incarnation).where(cursor.c.node_id == node)
    kept = newest.order_by(cursor.c.moved_at.desc()).limit(KEPT_SPOOLS)
    old = sa.and_(cursor.c.node_id == node, cursor.c.incarnation.not_in(kept))
    await conn.execute(sa.delete(cursor).where(old))


def _cursor_of(place: Place) -> sa.ColumnElement[bool]:
    cursor = tables.report_cursor
    return sa.and_(cursor.c.node_id == place.node, cursor.c.incarnation == place.incarnation)
