"""Nodes of a bench, in a process of their own as on a host: real brokers, real workers, one actor.

It reads what it shall serve from the first line of standard input (a command line would show passwords), says `ready`,
and then one line for each order begun. It ends when its standard input does, so it never outlives the bench.
"""

import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import dramatiq
import msgspec

from tasks.broker import GivenUp, NodeBroker, NodeWorker, QueueAddress
from tasks.orders import Order
from tasks.sealed import unseal
from tasks.signing import public_key
from tasks.timetable import Timetable


class Serving(msgspec.Struct, frozen=True):
    """The queues to serve, the control plane's key (PEM), and whether a handler never ends."""

    queues: Sequence[QueueAddress]
    trusted: str
    for_ever: bool = False


class Begun(msgspec.Struct, frozen=True):
    """The moment of a handler's first line, on the clock that the machine's processes share (`time.monotonic_ns`).

    The line that says that a process is ready is one too, of no allocation.
    """

    allocation_id: str
    at: int


def main() -> None:
    serving = msgspec.json.decode(sys.stdin.readline(), type=Serving)
    timetable = Timetable()
    workers = [_serve(queue, serving, timetable) for queue in serving.queues]
    say(Begun("", time.monotonic_ns()))
    sys.stdin.read()
    if serving.for_ever:
        return  # its handlers would be waited for
    with ThreadPoolExecutor(len(workers)) as at_once:
        list(at_once.map(_stop, workers))


def _stop(worker: NodeWorker) -> None:
    worker.stop()
    worker.broker.close()


def _serve(queue: QueueAddress, serving: Serving, timetable: Timetable) -> NodeWorker:
    broker = NodeBroker(queue, timetable, on_given_up=_given_up)
    key = public_key(serving.trusted)
    keys = {key.thumbprint(): key}

    def apply(order: str) -> None:
        at = time.monotonic_ns()
        say(Begun(Order.model_validate_json(unseal(order, keys).task).allocation_id, at))
        if serving.for_ever:
            threading.Event().wait()

    dramatiq.actor(broker=broker, queue_name=queue.queue, actor_name="slice.apply")(apply)
    worker = NodeWorker(broker)
    worker.start()
    return worker


def _given_up(order: GivenUp) -> None:
    sys.stderr.write(f"the node gave an order up: {order}\n")


_one_at_a_time = threading.Lock()


def say(begun: Begun) -> None:
    with _one_at_a_time:
        sys.stdout.write(f"{msgspec.json.encode(begun).decode()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
