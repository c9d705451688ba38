"""Facts about orders that a node would not carry out. Stream: `node-<node_id>`."""

from uuid import UUID

from events.facts import Fact, Reason
from events.values import NodeId, SlotId


class OrderRefused(Fact, frozen=True):
    """A node refused an order: its fence token was old, its content differed, or it could not be understood."""

    node_id: NodeId
    slot_id: SlotId
    order_id: UUID
    """The order, as the control plane named it."""
    reason: Reason


OrderFact = OrderRefused
