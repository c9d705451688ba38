"""Facts about orders that a node would not carry out. Stream: `node-<node_id>`."""

from uuid import UUID

from events.facts import Fact, Reason
from events.values import NodeId, SlotId


class OrderRefused(Fact, frozen=True):
    """A node refused an order: its fence token was old, its content differed, or it could not be understood.

    Or a copy of it, which was forged or too old; then another copy is sent, and this is recorded once.
    """

    node_id: NodeId
    slot_id: SlotId
    order_id: UUID
    """The order, as the control plane named it."""
    reason: Reason


class MessageRefused(Fact, frozen=True):
    """A node refused what stood in its queue, which is about no slot, or belongs to no order of the node at all.

    In the latter case somebody else put it there. Recorded once for each id and reason.
    """

    node_id: NodeId
    message_id: UUID
    """The id under which it stood in the queue; anybody may have chosen it."""
    reason: Reason


OrderFact = OrderRefused | MessageRefused
