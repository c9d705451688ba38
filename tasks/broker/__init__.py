"""A Dramatiq broker for one node: it takes orders off the node's queue, and never puts any on.

Dramatiq gives the worker threads, the actors and the time limit. Everything between Redis and them is ours, for
reasons that design section 4 measured: no polling, no maintenance by workers, no delayed messages, no retries. A
retry is an order from the ledger, sent by the control plane.

Owner of an order: the queue, until a fetch; then the worker that holds it, until it settles it or is silent
for `worker_timeout`; then the queue again, when the control plane asks after the order. A crash leaves orders
held, and their deliveries counted.
"""

from tasks.broker.consumer import Failed, GivenBack, GivenUp, OnGivenUp, Poisoned, Unreadable
from tasks.broker.link import QueueAddress
from tasks.broker.node_broker import NodeBroker, NodesDoNotEnqueue, NotTheNodesQueue
from tasks.broker.worker import NodeWorker

__all__ = [
    "Failed",
    "GivenBack",
    "GivenUp",
    "NodeBroker",
    "NodeWorker",
    "NodesDoNotEnqueue",
    "NotTheNodesQueue",
    "OnGivenUp",
    "Poisoned",
    "QueueAddress",
    "Unreadable",
]
