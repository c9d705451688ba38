"""Facts about orders and other queue messages that a node refused. Stream: `node-<node_id>`."""

from uuid import UUID

from events.facts import Fact, Reason
from events.values import NodeId, SlotId


class OrderRefused(Fact, frozen=True):
    """A node refused an order; `reason` states why, for example because the slot already had a newer order.

    The refused message may also have been a forged or outdated copy of the order; then another copy is sent, and the
    refusal is recorded once.
    """

    node_id: NodeId
    slot_id: SlotId
    order_id: UUID
    """Id that the control plane assigned to the order."""
    reason: Reason


class MessageRefused(Fact, frozen=True):
    """A node refused a message from its queue that concerns no slot, or that belongs to no order of the node.

    In the latter case another client put the message there. Recorded once for each id and reason.
    """

    node_id: NodeId
    message_id: UUID
    """Id of the message in the queue. It is not trustworthy: any client with access to the queue may have chosen it."""
    reason: Reason


OrderFact = OrderRefused | MessageRefused
