"""What the dispatch bench is held against: Dramatiq's own Redis broker and worker, as its documentation starts them.

As a program it is the consumer, with one actor. It is told where Redis is and says `Begun` as `bench.queue_nodes` does.
"""

import sys
import time
from typing import Final

import dramatiq
import msgspec
from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker

from bench.queue_nodes import Begun, say

QUEUE: Final = "stock"
_ACTOR: Final = "apply"


class Consuming(msgspec.Struct, frozen=True):
    redis_url: str


def broker_of(redis_url: str) -> RedisBroker:
    broker = RedisBroker(url=redis_url, namespace="stock")  # type: ignore[no-untyped-call]  # it ships without
    broker.declare_queue(QUEUE)
    return broker


def enqueue(broker: RedisBroker, name: str) -> int:
    """Put a message on the queue; returns the moment before."""
    message: Message[None] = Message(queue_name=QUEUE, actor_name=_ACTOR, args=(name,), kwargs={}, options={})
    at = time.monotonic_ns()
    broker.enqueue(message)
    return at


def main() -> None:
    consuming = msgspec.json.decode(sys.stdin.readline(), type=Consuming)
    broker = broker_of(consuming.redis_url)

    def apply(name: str) -> None:
        say(Begun(name, time.monotonic_ns()))

    dramatiq.actor(broker=broker, queue_name=QUEUE, actor_name=_ACTOR)(apply)
    broker.emit_after("process_boot")
    worker = dramatiq.Worker(broker)
    worker.start()
    say(Begun("", time.monotonic_ns()))
    sys.stdin.read()
    worker.stop()
    broker.close()


if __name__ == "__main__":
    main()
