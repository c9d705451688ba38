"""What is told of an order that the queue gives up: unreadable, unknown, poisonous, or broken on the way.

A refusal ends an order for the control plane, so only what can never be carried out here is refused. What broke on
the way is not: admitted, it stands on disk and the survey takes it up; not admitted, the control plane sends it
again. An operation is told as failed whatever it was: it stands on no disk.

What stands around a signed text, the message's id and its actor, is believed only as far as the text says the same. A
bad copy is told under the message's id, whoever chose that, and ends nothing: the control plane sends another.

The broker calls this before the order leaves the queue. It must not raise, or the order would stay held for ever.
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
from node_agent.reporter import Reporter
from node_agent.slots import Slots
from tasks.broker import Failed, GivenUp, Poisoned, Unreadable
from tasks.catalogue import is_order
from tasks.fields import line
from tasks.reading import TaskRefused
from tasks.reasons import CopyCode, OperationFailureCode, RefusalCode
from tasks.reports import OperationFailed, OrderRefused, Reason
from tasks.sealed import BadCopy
from tasks.wire import OrderMessage

log = structlog.get_logger(__name__)


class _Body(msgspec.Struct):
    kind: str


class _Named(msgspec.Struct):
    """What every task says of itself, in any version."""

    body: _Body
    order_id: UUID | None = None
    operation_id: UUID | None = None
    slot_id: str | None = None


@dataclass(frozen=True, slots=True)
class GivenUpOrders:
    """The broker's `on_given_up`. `recall` gives the task in a signed text, or raises `BadCopy`."""

    slots: Slots
    reporter: Reporter
    recall: Callable[[str], bytes]

    def __call__(self, given_up: GivenUp) -> None:
        match given_up:
            case Unreadable(key=key, reason=reason):
                # No order id and no slot: there is nobody to tell, and the control plane never sent it.
                log.error("queue_entry_unreadable", key=key, reason=reason)
            case Poisoned(message=message, deliveries=deliveries):
                self._poisoned(message, deliveries)
            case Failed(message=message, error=ActorNotFound()):
                self._refuse(message, "unsupported", f"this agent knows no order {message.actor[:100]!r}")
            case Failed(message=message, error=TaskRefused(code=code, why=why)):
                self._refuse(message, code, why)
            case Failed(message=message, error=BadCopy(code=code, why=why)):
                self._refuse_copy(message, code, why)
            case Failed(message=message, error=error):
                log.error("order_broke", order_id=str(message.order_id), exc_info=error)
                if not is_order(message.actor):
                    # It stands on no disk and is taken up by nobody again: its end must be told.
                    self._tell(OperationFailed(operation_id=message.order_id, reason=_broke(error)), message)
            case _:
                assert_never(given_up)

    def _poisoned(self, message: OrderMessage, deliveries: int) -> None:
        if any(slot.held is not None and slot.held.order.order_id == message.order_id for slot in self.slots):
            # It was admitted by an agent that died at it, and is carried out from disk: the queue's copy can go.
            log.warning("order_held_already", order_id=str(message.order_id), deliveries=deliveries)
            return
        reason = f"given out {deliveries} times, and the agent died each time before it was admitted"
        self._refuse(message, "poisoned", reason)

    def _refuse(self, message: OrderMessage, code: RefusalCode, why: str) -> None:
        try:
            slot = self._slot_of(message)
        except BadCopy as bad:
            self._refuse_copy(message, bad.code, bad.why)
            return
        log.error("order_not_taken", order_id=str(message.order_id), slot_id=slot, code=code, reason=why)
        reason = Reason(code=code, message=line(why))
        if not is_order(message.actor):
            self._tell(OperationFailed(operation_id=message.order_id, reason=reason), message)
        else:
            self._tell(OrderRefused(order_id=message.order_id, slot_id=slot, reason=reason), message)

    def _refuse_copy(self, message: OrderMessage, code: CopyCode, why: str) -> None:
        log.error("copy_not_believed", message_id=str(message.order_id), code=code, reason=why)
        reason = Reason(code=code, message=line(why))
        self._tell(OrderRefused(order_id=message.order_id, reason=reason), message)

    def _slot_of(self, message: OrderMessage) -> SlotId | None:
        """The slot that a signed text names, if any. Raises `BadCopy` when the message says what the text does not."""
        try:
            named = msgspec.json.decode(self.recall(message.order), type=_Named)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None  # signed by us, and nothing that this release understands
        if (named.order_id or named.operation_id, named.body.kind) != (message.order_id, message.actor):
            raise BadCopy("forged", "its id or its actor is not what was signed")
        try:
            return None if named.slot_id is None else slot_id(named.slot_id)
        except InvalidValue:
            return None

    def _tell(self, refusal: OrderRefused | OperationFailed, message: OrderMessage) -> None:
        try:
            self.reporter.tell(refusal, order_id=message.order_id)
        except OSError:
            log.exception("refusal_not_spooled", order_id=str(message.order_id))


def _broke(error: BaseException) -> Reason:
    late = isinstance(error, TimeLimitExceeded)
    code: OperationFailureCode = "time_limit" if late else "broke"
    why = "it ran past its time limit and was interrupted" if late else f"{type(error).__name__}: {error}"
    return Reason(code=code, message=line(why))
