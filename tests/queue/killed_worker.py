"""Worker process of a node that a test kills: it prints an order when the order's handler begins, and never finishes
the order.
"""

import sys
import threading

import dramatiq

from node_agent.runtime.timetable import Timetable
from node_agent.transport.broker import NodeBroker, NodeWorker, QueueAddress
from tests.queue.node import WORKER_TIMEOUT


def main() -> None:
    host, port, username, namespace = sys.argv[1:]
    address = QueueAddress(host, int(port), username, sys.stdin.readline().strip(), namespace)
    broker = NodeBroker(address, Timetable(), on_dead_letter=print, worker_timeout=WORKER_TIMEOUT)

    def apply(order: str) -> None:
        print(order, flush=True)
        threading.Event().wait()

    dramatiq.actor(broker=broker, actor_name="slice.apply", queue_name="slices")(apply)
    NodeWorker(broker).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
