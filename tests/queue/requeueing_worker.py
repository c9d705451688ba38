"""Worker process that requeues the orders that it has not begun. A failpoint may kill the process meanwhile.

`python -m tests.queue.requeueing_worker HOST PORT NAMESPACE`, with the control plane's Redis URL on standard input.
"""

import os
import sys
from typing import Final

import redis

from node_agent.runtime.timetable import Timetable
from node_agent.transport.broker import QueueAddress
from node_agent.transport.broker.queue import NodeQueue
from tasks.failpoints import arm_from
from tasks.scripts import ALL_SCRIPTS, ENQUEUE, QueueKeys

ORDERS: Final = ("0192a000-0000-7000-8000-000000000001", "0192a000-0000-7000-8000-000000000002")


def main() -> None:
    host, port, namespace = sys.argv[1:]
    arm_from(os.environ["SLICEPLANE_FAILPOINTS"])
    client = redis.Redis.from_url(sys.stdin.read())
    login = client.connection_pool.connection_kwargs
    keys = QueueKeys.of(namespace).all()
    for script in ALL_SCRIPTS:
        client.script_load(script.source)
    for order in ORDERS:
        client.evalsha(ENQUEUE.sha, len(keys), *keys, 8, 15_000, order, b"{}")
    address = QueueAddress(host, int(port), login["username"], login["password"], namespace)
    queue = NodeQueue(address, Timetable(), worker_timeout=15)
    assert len(queue.fetch(2, ())) == 2
    queue.requeue(ORDERS)


if __name__ == "__main__":
    main()
