"""Conversion of nodes' reports about slices into facts of their allocations.

A node may report only its own slots: a report about another slot is logged and adds no fact, because refusing it
permanently would only block the node's spool.
"""

from dataclasses import dataclass
from typing import NamedTuple, assert_never
from uuid import UUID

import msgspec
import structlog

from control_plane.commands.bring_ups import failure_changes, merged_by_stream, success_changes
from control_plane.commands.loaded import LoadedAllocation, load
from control_plane.commands.replacing import Replacing
from control_plane.decisions import allocation as life
from control_plane.decisions import ingress, task_states
from control_plane.decisions.deadlines import ready_within
from control_plane.decisions.fleet.device_health import checked
from control_plane.decisions.fleet.exclusion import is_of_node
from control_plane.decisions.fleet.slots import free, quarantine
from control_plane.decisions.refusals import UnknownName
from control_plane.decisions.task_states import End
from control_plane.handle import Decision, Transaction
from control_plane.processes.allocation import cause_of_report, is_newest, is_superseded
from control_plane.work import task_rows
from events import allocations as facts
from events.envelope import Cause
from events.facts import FailedBringUp, Reason
from events.ledger.append import Change
from events.slots import CheckedDevice
from events.traces import continued, report_id
from events.values import NodeId, new_uuid, node_of
from read_models.slots import SlotRow
from tasks import reports
from tasks.reports import Report

log = structlog.get_logger()
_OtherReport = (
    reports.SliceStarting
    | reports.SliceAddress
    | reports.SliceIngressObserved
    | reports.SliceInterrupted
    | reports.SliceStopped
    | reports.SliceRemoved
    | reports.SliceNotRemoved
)
SliceReport = reports.SliceReady | reports.SliceFailed | _OtherReport


@dataclass(frozen=True, slots=True)
class Place:
    """The origin of a report: the node, and the incarnation id of the spool from which the node sent the report.

    `trace_context` is that of the request that delivered the report, for a report that no task caused.
    """

    node: NodeId
    incarnation: UUID
    trace_context: str | None = None

    def traced(self, context: str | None, report: Report) -> str | None:
        """Return the trace context of the events that follow from a report, in the trace of `context`."""
        return continued(context, report_id(self.incarnation, report.sequence))


class Taken(NamedTuple):
    """The facts that follow from a report, and whether the report ends an order or operation that was still open."""

    decision: Decision
    ends_task: bool = False


def _reason_of_facts(place: Place, report: Report) -> str:
    return f"report {report.sequence} of {place.incarnation}"


def cause_of(place: Place, report: Report) -> Cause:
    """Return the cause of a report's facts, with a new correlation id: no earlier fact is known to be their cause."""
    return Cause(
        actor=f"node:{place.node}",
        reason=_reason_of_facts(place, report),
        project=None,
        correlation_id=new_uuid(),
        causation_id=None,
        trace_context=place.traced(report.trace_context, report) or place.trace_context,
        observed_at=report.observed_at,
    )


async def take_slice(
    transaction: Transaction, place: Place, report: Report, body: SliceReport, replacing: Replacing
) -> Taken:
    """Return the facts that follow from a report about a slice, and end the order that the report completes."""
    try:
        loaded = await load(transaction.conn, body.allocation_id)
    except UnknownName:
        loaded = None
    if loaded is None or body.slot_id not in loaded.rows or node_of(body.slot_id) != place.node:
        log.warning(
            "report_from_wrong_node_ignored", node=place.node, slot=body.slot_id, sequence=report.sequence
        )
        return Taken(Decision((), cause_of(place, report)))
    desired = cause_of_report(loaded.history, body.slot_id, report.order_id)
    cause = desired.leads_to(
        actor=f"node:{place.node}", reason=_reason_of_facts(place, report), observed_at=report.observed_at
    )
    # The trace is that of the desired state, whatever the node reports: a node must not name another's trace.
    cause = msgspec.structs.replace(cause, trace_context=place.traced(desired.cause.trace_context, report))
    ends_task = False
    if report.order_id is not None:
        ends_task = await _follow_task(transaction, place, report.order_id, body)
        if is_superseded(loaded.history, body.slot_id, report.order_id):
            # A late report: what it proves, or fails to prove, does not answer the current desired state.
            log.info(
                "report_of_superseded_order_ignored",
                slot=body.slot_id,
                report_kind=body.kind,
                order=str(report.order_id),
            )
            return Taken(Decision((), cause), ends_task)
    newest = report.order_id is not None and is_newest(loaded.history, body.slot_id, report.order_id)
    match body:
        case reports.SliceReady():
            changes = await _came_up(transaction, loaded, body, newest=newest)
        case reports.SliceFailed():
            changes = await _failed(transaction, loaded, report, body, replacing)
        case _:
            changes = _slice_changes(transaction, loaded, body, newest=newest)
    return Taken(Decision(changes, cause), ends_task)


async def _came_up(
    transaction: Transaction, loaded: LoadedAllocation, body: reports.SliceReady, *, newest: bool
) -> tuple[Change, ...]:
    """Return the ledger changes for a report that a slice is ready.

    If the allocation waits for this slice to become ready, they also reset the failure counts of the slot and its node.
    """
    slot, allocation = body.slot_id, body.allocation_id
    ready = facts.SliceReady(allocation, slot, body.address, body.port, body.banner)
    up = life.slice_ready(loaded.state, ready, transaction.now)
    applied = ingress.applied(loaded.ingress_rules, slot) if newest else ()
    changes = loaded.changes((*up, *applied))
    if not up:
        return changes
    return merged_by_stream(
        (*changes, *await success_changes(transaction.conn, loaded.rows[slot], allocation))
    )


async def _failed(
    transaction: Transaction,
    loaded: LoadedAllocation,
    report: Report,
    body: reports.SliceFailed,
    replacing: Replacing,
) -> tuple[Change, ...]:
    """Return the ledger changes for a report that a slice failed: its allocation is placed again or fails, and a node
    fault is counted.
    """
    slot, reason = body.slot_id, _reason(body.reason)
    changes = await replacing(transaction, loaded, slot, reason)
    if not changes or not is_of_node(reason):
        return changes
    failure = FailedBringUp(slot, body.allocation_id, reason, report.observed_at)
    counted = await failure_changes(transaction.conn, loaded.rows[slot], failure)
    own, *others = changes
    return merged_by_stream((own, *counted, *others))


def _slice_changes(
    transaction: Transaction, loaded: LoadedAllocation, body: _OtherReport, *, newest: bool
) -> tuple[Change, ...]:
    """Return the ledger changes for a report about a slice, except reports that it is ready or failed.

    `newest` is whether the report belongs to the newest order of the slot.
    """
    state, slot, allocation = loaded.state, body.slot_id, body.allocation_id
    match body:
        case reports.SliceStarting():
            return loaded.changes(life.start_slice(state, slot))
        case reports.SliceAddress():
            seen = facts.SliceAddressObserved(
                allocation, slot, body.mac, body.expected_ip, body.actual_ip, body.lease_state
            )
            return loaded.changes(life.observe_address(state, seen) if loaded.is_new(seen) else ())
        case reports.SliceIngressObserved():
            # Accept this from an older order too: the newest order has the same rules, and the node reports it once.
            return loaded.changes(
                ingress.observe(loaded.ingress_rules, slot, body.lost, newest=newest, others=body.others)
            )
        case reports.SliceInterrupted():
            deadline = transaction.now + ready_within(state.specification.sku.content)
            interrupted = facts.SliceInterrupted(allocation, slot, _reason(body.reason), deadline)
            return loaded.changes(life.interrupt_slice(state, interrupted))
        case _:
            return _ended(loaded, body)


def _ended(
    loaded: LoadedAllocation, body: reports.SliceStopped | reports.SliceRemoved | reports.SliceNotRemoved
) -> tuple[Change, ...]:
    """Return the ledger changes for a report that a slice is stopped, removed, or only partly removed."""
    state, slot, allocation = loaded.state, body.slot_id, body.allocation_id
    row, ingress_rules = loaded.rows[slot], loaded.ingress_rules
    match body:
        case reports.SliceStopped(forced=forced):
            off = life.slice_stopped(state, slot, forced=forced)
            return loaded.changes((*off, *(ingress.closed(ingress_rules, slot) if off else ())))
        case reports.SliceRemoved():
            removed = life.slice_removed(state, slot)
            if not removed:
                return ()
            freed = (
                *free(slot, row.state, allocation, body.absent, row.use),
                *checked(slot, allocation, body.devices, _last_check(row), row.excluded),
            )
            return loaded.changes(
                (*ingress.emptied(ingress_rules, slot), *removed), *loaded.slot_change(slot, freed)
            )
        case reports.SliceNotRemoved():
            unproved = facts.SliceRemovalIncomplete(allocation, slot, body.leftovers)
            remaining = life.slice_removal_incomplete(state, unproved)
            if not remaining or not loaded.is_new(unproved):
                return ()
            held = quarantine(slot, row.state, allocation, body.leftovers)
            return loaded.changes(remaining, *loaded.slot_change(slot, held))
        case _:
            assert_never(body)


def _last_check(row: SlotRow) -> tuple[CheckedDevice, ...]:
    return () if row.device_check is None else row.device_check.devices


def _reason(reason: reports.Reason) -> Reason:
    return Reason(reason.code, reason.message)


async def _follow_task(transaction: Transaction, place: Place, order_id: UUID, body: SliceReport) -> bool:
    """End the order to which a slice report belongs, if the report ends it; return whether the order was still open."""
    conn, now = transaction.conn, transaction.now
    match body:
        case reports.SliceReady() | reports.SliceStopped() | reports.SliceRemoved():
            result = body.model_dump_json(exclude={"slot_id", "allocation_id"})
            return await task_rows.end(conn, place.node, order_id, End("done", result=result), now)
        case reports.SliceFailed(reason=reason):
            return await task_rows.end(conn, place.node, order_id, task_states.failure(_reason(reason)), now)
        case reports.SliceNotRemoved(leftovers=leftovers):
            note = Reason("leftovers", ", ".join(leftovers))
            await task_rows.set_reason(conn, place.node, order_id, note)
            return False
        case _:
            return False
