"""A Dramatiq broker for one node: it takes orders from the node's queue and never enqueues any.

Dramatiq provides the worker threads, the actors and the time limit. This package replaces all parts between Redis and
the worker threads, for the reasons in docs/decisions/0007-our-own-queue-scripts.md: this broker has no polling, no
maintenance by workers, no delayed messages and no retries. A retry is a new order from the ledger, sent by the control
plane.

An order belongs to the queue until a worker fetches it, and then to this worker, until the worker settles the order
(removes it from the queue) or sends no heartbeat for `worker_timeout`. In the second case the control plane, at its
next check for dead workers, requeues the order, or removes it from the queue if its execution is no longer needed. A
requeued order keeps its number of deliveries.
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
