"""Consumer of the node's task queue: the broker, its worker, and one actor for each kind of task.

The consumer fetches no task before `start`; `stop` requeues tasks that were fetched and not started.
"""

from collections.abc import Callable
from typing import Final

from node_agent.runtime.timetable import Timetable
from node_agent.slots.actors import declare_actors
from node_agent.transport.broker import NodeBroker, NodeWorker, OnDeadLetter, QueueAddress
from node_agent.transport.gate import Gate
from node_agent.transport.sessions import StoredSession
from tasks.catalogue import CREDIT
from tasks.reading import Task
from tasks.sealed import Unsealed
from tasks.streams import StreamRequest

_SPARE_THREADS: Final = 4
"""Number of worker threads in addition to the maximum number that orders and operations can occupy at the same time."""


class TaskConsumer:
    """Consumer of the node's task queue, to which the session grants access.

    `verify` checks a signed text and returns its task, or raises `BadCopy`; `take` executes a task; `on_dead_letter` is
    called with tasks that are dead-lettered; `open_stream` opens a requested stream.
    """

    def __init__(
        self,
        kept: StoredSession,
        slots: int,
        gate: Gate,
        *,
        verify: Callable[[str], Unsealed],
        take: Callable[[Task], None],
        on_dead_letter: OnDeadLetter,
        open_stream: Callable[[StreamRequest], None],
        timetable: Timetable,
    ) -> None:
        # Each slot can have two orders in flight: a running one, and a newer one that has just halted it. The number
        # of operations is limited, so there is always a thread for a newer order or a cancel, which end other work.
        prefetch = 2 * slots + CREDIT["operations"] + _SPARE_THREADS
        self._broker = NodeBroker(
            _queue_address(kept), timetable, on_dead_letter=on_dead_letter, prefetch=prefetch
        )
        queue = kept.granted.queue.queue
        declare_actors(self._broker, queue, take, gate, verify=verify, open_stream=open_stream)
        self._worker = NodeWorker(self._broker)

    def start(self) -> None:
        self._worker.start()

    def stop(self, timeout: float) -> None:
        """Stop fetching tasks.

        Wait up to `timeout` seconds for running tasks, and then up to `timeout` seconds for Redis requests.
        """
        self._worker.stop(timeout=int(timeout * 1000))
        self._broker.close()

    def use_session(self, kept: StoredSession) -> None:
        """Use the queue password and CA of a newer session from the next connection to Redis on."""
        self._broker.use_password(kept.secrets.queue_password)
        self._broker.trust_ca(kept.granted.queue.ca)


def _queue_address(kept: StoredSession) -> QueueAddress:
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
