"""A node's worker in a process of its own, to be killed: says when an order begins, and never finishes it."""

import sys
import threading

import dramatiq

from tasks.broker import NodeBroker, NodeWorker, QueueAddress
from tasks.timetable import Timetable
from tests.queue.node import WORKER_TIMEOUT


def main() -> None:
    host, port, username, namespace = sys.argv[1:]
    address = QueueAddress(host, int(port), username, sys.stdin.readline().strip(), namespace)
    broker = NodeBroker(address, Timetable(), on_given_up=print, worker_timeout=WORKER_TIMEOUT)

    def apply(order: str) -> None:
        print(order, flush=True)
        threading.Event().wait()

    dramatiq.actor(broker=broker, actor_name="slice.apply", queue_name="slices")(apply)
    NodeWorker(broker).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
