"""The comparison side of the dispatch benchmark: Dramatiq's own Redis broker and worker, started as documented.

Run as a program, this module is the consumer, with one actor. It reads the Redis URL from standard input and writes
`HandlerStarted` lines like `bench.dispatch.queue_nodes`.
"""

import sys
import time
from typing import Final

import dramatiq
import msgspec
from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker

from bench.dispatch.queue_nodes import HandlerStarted, write_line

QUEUE: Final = "stock"
_ACTOR: Final = "apply"


class ConsumerSettings(msgspec.Struct, frozen=True):
    redis_url: str


def broker_of(redis_url: str) -> RedisBroker:
    broker = RedisBroker(url=redis_url, namespace="stock")  # type: ignore[no-untyped-call]  # Dramatiq lacks the type
    broker.declare_queue(QUEUE)
    return broker


def enqueue(broker: RedisBroker, name: str) -> int:
    """Put a message on the queue. Return the time directly before the enqueue (`time.monotonic_ns`)."""
    message: Message[None] = Message(queue_name=QUEUE, actor_name=_ACTOR, args=(name,), kwargs={}, options={})
    at = time.monotonic_ns()
    broker.enqueue(message)
    return at


def main() -> None:
    settings = msgspec.json.decode(sys.stdin.readline(), type=ConsumerSettings)
    broker = broker_of(settings.redis_url)

    def apply(name: str) -> None:
        write_line(HandlerStarted(name, time.monotonic_ns()))

    dramatiq.actor(broker=broker, queue_name=QUEUE, actor_name=_ACTOR)(apply)
    broker.emit_after("process_boot")
    worker = dramatiq.Worker(broker)
    worker.start()
    write_line(HandlerStarted("", time.monotonic_ns()))
    sys.stdin.read()
    worker.stop()
    broker.close()


if __name__ == "__main__":
    main()
