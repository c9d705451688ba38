"""What is told of an order that the queue gives up: unreadable, unknown, poisonous, or broken on the way.

A refusal ends an order for the control plane, so only what can never be carried out here is refused. What broke on
the way is not: admitted, it stands on disk and the survey takes it up; not admitted, the control plane sends it again.

The broker calls this before the order leaves the queue. It must not raise, or the order would stay held for ever.
"""

import json
from dataclasses import dataclass
from typing import Final, assert_never

import structlog
from dramatiq.errors import ActorNotFound

from events.values import InvalidValue, SlotId, slot_id
from node_agent.actors import MalformedOrder
from node_agent.reporter import Reporter
from node_agent.slots import Slots
from tasks.broker import Failed, GivenUp, Poisoned, Unreadable
from tasks.reports import OrderRefused, Reason
from tasks.wire import OrderMessage

log = structlog.get_logger(__name__)

_LINE: Final = 2000


@dataclass(frozen=True, slots=True)
class GivenUpOrders:
    """The broker's `on_given_up`."""

    slots: Slots
    reporter: Reporter

    def __call__(self, given_up: GivenUp) -> None:
        match given_up:
            case Unreadable(key=key, reason=reason):
                # No order id and no slot: there is nobody to tell, and the control plane never sent it.
                log.error("queue_entry_unreadable", key=key, reason=reason)
            case Poisoned(message=message, deliveries=deliveries):
                self._poisoned(message, deliveries)
            case Failed(message=message, error=ActorNotFound()):
                self._refuse(message, "malformed", f"this agent knows no order {message.actor[:100]!r}")
            case Failed(message=message, error=MalformedOrder() as error):
                self._refuse(message, "malformed", str(error))
            case Failed(message=message, error=error):
                log.error("order_broke", order_id=str(message.order_id), exc_info=error)
            case _:
                assert_never(given_up)

    def _poisoned(self, message: OrderMessage, deliveries: int) -> None:
        if any(slot.held is not None and slot.held.order.order_id == message.order_id for slot in self.slots):
            # It was admitted by an agent that died at it, and is carried out from disk: the queue's copy can go.
            log.warning("order_held_already", order_id=str(message.order_id), deliveries=deliveries)
            return
        reason = f"given out {deliveries} times, and the agent died each time before it was admitted"
        self._refuse(message, "poisoned", reason)

    def _refuse(self, message: OrderMessage, code: str, why: str) -> None:
        slot = _slot_of(message)
        log.error("order_not_taken", order_id=str(message.order_id), slot_id=slot, code=code, reason=why)
        if slot is None:
            return
        try:
            reason = Reason(code=code, message=why[:_LINE])
            refused = OrderRefused(order_id=message.order_id, slot_id=slot, reason=reason)
            self.reporter.tell(refused, order_id=message.order_id)
        except OSError:
            log.exception("refusal_not_spooled", order_id=str(message.order_id))


def _slot_of(message: OrderMessage) -> SlotId | None:
    """The slot that a payload names, as far as it can be read."""
    try:
        return slot_id(json.loads(message.order)["slot_id"])
    except (ValueError, TypeError, KeyError, AttributeError, InvalidValue):
        return None
