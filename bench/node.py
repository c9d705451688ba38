"""The node's side of the dispatch bench, a process of its own as on a host: real broker, real worker, one actor.

It reads its queue's address from the first line of standard input (a command line would show the password), says
`ready`, and then one line for each order begun. It ends when its standard input does, so it never outlives the bench.
"""

import sys
import threading
import time

import dramatiq
import msgspec

from tasks.broker import GivenUp, NodeBroker, NodeWorker, QueueAddress
from tasks.orders import Order

READY = "ready"


class Begun(msgspec.Struct, frozen=True):
    """The moment of a handler's first line, on the clock that the machine's processes share (`time.monotonic_ns`)."""

    allocation_id: str
    at: int


def main() -> None:
    address = msgspec.json.decode(sys.stdin.readline(), type=QueueAddress)
    broker = NodeBroker(address, on_given_up=_given_up)
    one_at_a_time = threading.Lock()

    def apply(order: str) -> None:
        at = time.monotonic_ns()
        with one_at_a_time:
            _print(msgspec.json.encode(Begun(Order.model_validate_json(order).allocation_id, at)).decode())

    dramatiq.actor(broker=broker, queue_name=address.queue, actor_name="slice.apply")(apply)
    worker = NodeWorker(broker)
    worker.start()
    _print(READY)
    sys.stdin.read()
    worker.stop()
    broker.close()


def _given_up(order: GivenUp) -> None:
    sys.stderr.write(f"the node gave an order up: {order}\n")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
