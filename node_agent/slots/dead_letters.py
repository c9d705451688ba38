"""Reports about tasks that the queue dead-letters: unreadable, unsupported, poisoned, or failed with an exception.

A refusal ends an order for the control plane, so only an order that this node can never carry out is refused. An order
that failed with an exception is not refused: if the node stored it on disk, the survey resumes it; otherwise the
control plane re-sends it. An operation is reported as failed in every case, because it is not stored on disk.

The message's id and actor are not signed, so they are used only if the signed text contains the same. A message without
a valid signed text (`BadCopy`) is reported under its id, although the id may be forged: the control plane ends no task
because of this report, and sends the task again.

The broker calls the handler before the task leaves the queue. The handler must not raise, or the task would stay in
flight permanently.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never
from uuid import UUID

import msgspec
import structlog
from dramatiq.errors import ActorNotFound
from dramatiq.middleware import TimeLimitExceeded

from events.values import InvalidValue, SlotId, slot_id
from node_agent.slots.slots import Slots
from node_agent.transport.broker import DeadLetter, Failed, Poisoned, Unreadable
from node_agent.transport.reporter import Reporter
from tasks.catalogue import is_order
from tasks.fields import line
from tasks.reading import TaskRefused
from tasks.reasons import CopyCode, OperationFailureCode, RefusalCode
from tasks.reports import OperationFailed, OrderRefused, Reason
from tasks.sealed import BadCopy
from tasks.streams import ACTOR
from tasks.wire import OrderMessage

log = structlog.get_logger(__name__)


class _Body(msgspec.Struct):
    kind: str


class _TaskHeader(msgspec.Struct):
    """Fields that every task has, in any version."""

    body: _Body
    order_id: UUID | None = None
    operation_id: UUID | None = None
    slot_id: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterHandler:
    """Callback of the broker for dead-lettered tasks (`on_dead_letter`).

    `recall` verifies a signed text and returns its task, or raises `BadCopy`.
    """

    slots: Slots
    reporter: Reporter
    recall: Callable[[str], bytes]

    def __call__(self, given_up: DeadLetter) -> None:
        match given_up:
            case Unreadable(key=key, reason=reason):
                # Without an id and a slot nothing can be reported; the control plane never sent this entry.
                log.error("task_queue_entry_unreadable", key=key, reason=reason)
            case Poisoned(message=message) | Failed(message=message) if message.actor == ACTOR:
                # A request for a stream is not a task: the control plane waits for seconds, and for no report.
                log.error("slice_stream_request_dead_lettered", stream_id=str(message.order_id))
            case Poisoned(message=message, deliveries=deliveries):
                self._poisoned(message, deliveries)
            case Failed(message=message, error=ActorNotFound()):
                self._refuse(
                    message,
                    "unsupported",
                    f"this agent does not support the task type {message.actor[:100]!r}; upgrade it",
                )
            case Failed(message=message, error=TaskRefused(code=code, reason=explanation)):
                self._refuse(message, code, explanation)
            case Failed(message=message, error=BadCopy(code=code, reason=explanation)):
                self._refuse_copy(message, code, explanation)
            case Failed(message=message, error=error):
                log.error("task_ended_by_exception", message_id=str(message.order_id), exc_info=error)
                if not is_order(message.actor):
                    # An operation is not on disk, and nothing resumes it, so its failure must be reported.
                    self._report(
                        OperationFailed(operation_id=message.order_id, reason=_failure_reason(error)), message
                    )
            case _:
                assert_never(given_up)

    def _poisoned(self, message: OrderMessage, deliveries: int) -> None:
        if any(slot.held is not None and slot.held.order.order_id == message.order_id for slot in self.slots):
            # An earlier process of the agent admitted it, so it is carried out from disk and the copy can be dropped.
            log.warning(
                "dead_lettered_order_is_carried_out_already",
                order_id=str(message.order_id),
                deliveries=deliveries,
            )
            return
        reason = (
            f"the task was delivered {deliveries} times, and the agent crashed before accepting it each time"
        )
        self._refuse(message, "poisoned", reason)

    def _refuse(self, message: OrderMessage, code: RefusalCode, explanation: str) -> None:
        try:
            slot = self._slot_of(message)
        except BadCopy as bad:
            self._refuse_copy(message, bad.code, bad.reason)
            return
        log.error("task_refused", order_id=str(message.order_id), slot_id=slot, code=code, reason=explanation)
        reason = Reason(code=code, message=line(explanation))
        if not is_order(message.actor):
            self._report(OperationFailed(operation_id=message.order_id, reason=reason), message)
        else:
            self._report(OrderRefused(order_id=message.order_id, slot_id=slot, reason=reason), message)

    def _refuse_copy(self, message: OrderMessage, code: CopyCode, explanation: str) -> None:
        log.error(
            "invalid_task_message_refused", message_id=str(message.order_id), code=code, reason=explanation
        )
        reason = Reason(code=code, message=line(explanation))
        self._report(OrderRefused(order_id=message.order_id, reason=reason), message)

    def _slot_of(self, message: OrderMessage) -> SlotId | None:
        """Return the slot that the signed text of a dead-lettered task names, or None if it names no slot.

        Raises `BadCopy` if the message's id or actor differs from the signed text.
        """
        try:
            task = msgspec.json.decode(self.recall(message.order), type=_TaskHeader)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None  # a valid signature over a task that this release cannot read
        if (task.order_id or task.operation_id, task.body.kind) != (message.order_id, message.actor):
            raise BadCopy("forged", "the id or the actor of the message differs from the signed text")
        try:
            return None if task.slot_id is None else slot_id(task.slot_id)
        except InvalidValue:
            return None

    def _report(self, refusal: OrderRefused | OperationFailed, message: OrderMessage) -> None:
        try:
            self.reporter.report(refusal, order_id=message.order_id)
        except OSError:
            log.exception("task_refusal_report_not_spooled", order_id=str(message.order_id))


def _failure_reason(error: BaseException) -> Reason:
    late = isinstance(error, TimeLimitExceeded)
    code: OperationFailureCode = "time_limit" if late else "internal_error"
    message = (
        "the task exceeded its time limit and was interrupted" if late else f"{type(error).__name__}: {error}"
    )
    return Reason(code=code, message=line(message))
