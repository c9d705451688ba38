"""Taking tasks off the node's queue: the broker, its worker, and an actor for each kind of task.

Nothing is taken before `start`, and after `stop` what was fetched and not begun is back in the queue.
"""

from collections.abc import Callable
from typing import Final

from node_agent.actors import declare_actors
from node_agent.gate import Gate
from node_agent.sessions import Kept
from tasks.broker import NodeBroker, NodeWorker, OnGivenUp, QueueAddress
from tasks.catalogue import CREDIT
from tasks.reading import Task
from tasks.sealed import Unsealed
from tasks.timetable import Timetable

_TO_SPARE: Final = 4
"""Threads beyond those that can be kept busy."""


class Taking:
    """The queue of session `kept`, and of each later one that it is told of.

    `believe` opens a signed text, or raises `BadCopy`; `take` carries a task out; `on_given_up` hears of those that
    never will be.
    """

    def __init__(
        self,
        kept: Kept,
        slots: int,
        gate: Gate,
        *,
        believe: Callable[[str], Unsealed],
        take: Callable[[Task], None],
        on_given_up: OnGivenUp,
        timetable: Timetable,
    ) -> None:
        # Two orders a slot can be in hand: one at work, and a newer one that has just halted it. Operations take so
        # many threads and no more, so there is always one for what ends another: a newer order, or a cancel.
        prefetch = 2 * slots + CREDIT["operations"] + _TO_SPARE
        self._broker = NodeBroker(_queue_address(kept), timetable, on_given_up=on_given_up, prefetch=prefetch)
        declare_actors(self._broker, kept.granted.queue.queue, take, gate, believe)
        self._worker = NodeWorker(self._broker)

    def start(self) -> None:
        self._worker.start()

    def stop(self, timeout: float) -> None:
        """Waits up to `timeout` seconds for what was begun, and as long for Redis."""
        self._worker.stop(timeout=int(timeout * 1000))
        self._broker.close()

    def go_on(self, kept: Kept) -> None:
        """With a newer session, from the next connection on."""
        self._broker.use_password(kept.secrets.queue_password)
        self._broker.believe(kept.granted.queue.ca)


def _queue_address(kept: Kept) -> QueueAddress:
    queue = kept.granted.queue
    return QueueAddress(
        host=queue.host,
        port=queue.port,
        username=queue.username,
        password=kept.secrets.queue_password,
        namespace=queue.namespace,
        queue=queue.queue,
        tls=queue.tls,
        ca=queue.ca,
    )
