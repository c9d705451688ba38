"""A Dramatiq broker for one node: it takes orders from the node's queue and never enqueues any.

Dramatiq provides the worker threads, the actors and the time limit. Everything between Redis and them is our own, for
reasons measured in design section 4: no polling, no maintenance by workers, no delayed messages, no retries. A retry is
a new order from the ledger, sent by the control plane.

An order belongs to the queue until it is fetched; then to the worker that holds it, until the worker settles it or
sends no heartbeat for `worker_timeout`; then to the queue again, when the control plane checks the order. After a crash
the orders stay held, and their deliveries stay counted.
"""

from node_agent.transport.broker.consumer import (
    DeadLetter,
    Failed,
    OnDeadLetter,
    Poisoned,
    RequeueOrder,
    Unreadable,
)
from node_agent.transport.broker.link import QueueAddress
from node_agent.transport.broker.node_broker import NodeBroker, NodeCannotEnqueue, WrongQueue
from node_agent.transport.broker.worker import NodeWorker

__all__ = [
    "DeadLetter",
    "Failed",
    "NodeBroker",
    "NodeCannotEnqueue",
    "NodeWorker",
    "OnDeadLetter",
    "Poisoned",
    "QueueAddress",
    "RequeueOrder",
    "Unreadable",
    "WrongQueue",
]
