"""Nodes of a benchmark in a separate process, as on a host: real brokers, real workers, one actor.

The process reads its settings from the first line of standard input (a command line would expose passwords) and answers
when it is ready. Then it writes one line for each order that a handler starts. It ends when its standard
input is closed, so it never outlives the benchmark.
"""

import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import dramatiq
import msgspec

from node_agent.runtime.timetable import Timetable
from node_agent.transport.broker import DeadLetter, NodeBroker, NodeWorker, QueueAddress
from tasks.orders import Order
from tasks.sealed import unseal
from tasks.signing import public_key


class QueueNodeSettings(msgspec.Struct, frozen=True):
    """The queues to serve, the control plane's public key (PEM), and whether handlers never finish."""

    queues: Sequence[QueueAddress]
    trusted: str
    never_finish: bool = False


class HandlerStarted(msgspec.Struct, frozen=True):
    """Output line of the process: a handler started at the time `at` (its first line, by `time.monotonic_ns`).

    All processes of the machine share this clock. A line with an empty allocation id means that the process is ready.
    """

    allocation_id: str
    at: int


def main() -> None:
    settings = msgspec.json.decode(sys.stdin.readline(), type=QueueNodeSettings)
    timetable = Timetable()
    workers = [_serve(queue, settings, timetable) for queue in settings.queues]
    write_line(HandlerStarted("", time.monotonic_ns()))
    sys.stdin.read()
    if settings.never_finish:
        return  # stopping the workers would wait for their handlers
    with ThreadPoolExecutor(len(workers)) as at_once:
        list(at_once.map(_stop, workers))


def _stop(worker: NodeWorker) -> None:
    worker.stop()
    worker.broker.close()


def _serve(queue: QueueAddress, settings: QueueNodeSettings, timetable: Timetable) -> NodeWorker:
    broker = NodeBroker(queue, timetable, on_dead_letter=_given_up)
    key = public_key(settings.trusted)
    keys = {key.thumbprint(): key}

    def apply(order: str) -> None:
        at = time.monotonic_ns()
        write_line(HandlerStarted(Order.model_validate_json(unseal(order, keys).task).allocation_id, at))
        if settings.never_finish:
            threading.Event().wait()

    dramatiq.actor(broker=broker, queue_name=queue.queue, actor_name="slice.apply")(apply)
    worker = NodeWorker(broker)
    worker.start()
    return worker


def _given_up(order: DeadLetter) -> None:
    sys.stderr.write(f"the node could not process an order: {order}\n")


_output_lock = threading.Lock()


def write_line(started: HandlerStarted) -> None:
    with _output_lock:
        sys.stdout.write(f"{msgspec.json.encode(started).decode()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
