"""Dramatiq actors: one for each task type of the catalogue, with the time limit that the catalogue declares, and one
for requests to open a stream, such as a serial console.

A task is trusted only by its signature, and is parsed completely before any part of it is executed. A task of a kind
without an actor is refused with a report and never dropped silently.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import dramatiq
import structlog

from node_agent.transport.gate import Gate
from node_agent.transport.trust import proved_by
from tasks.catalogue import TYPES, TaskType
from tasks.reading import Task, read_task
from tasks.sealed import BadCopy, Unsealed
from tasks.streams import ACTOR, MalformedRequest, StreamRequest, read_request

log = structlog.get_logger(__name__)
_STREAM_LIMIT: Final = timedelta(seconds=60)
"""Maximum time for opening a requested stream. After this time, the thread that opens the stream is interrupted."""
_GRACE: Final = timedelta(seconds=30)
"""Time after a task's own time limit until the thread of the task is interrupted. A task checks its time limit between
two steps, so the interruption affects only a task that hangs within a step."""


def declare_actors(
    broker: dramatiq.Broker,
    queue: str,
    take: Callable[[Task], None],
    gate: Gate,
    *,
    verify: Callable[[str], Unsealed],
    open_stream: Callable[[StreamRequest], None],
) -> None:
    """Declare a Dramatiq actor on `queue` for each task type, and one for requests for streams. The actor of a task
    type passes each of its tasks to `take`, and the actor for requests passes each request to `open_stream`.

    `verify` verifies the signature of a signed task and returns its content, or raises `BadCopy`.
    """

    def declare(type_: TaskType) -> None:
        limit = int((type_.bounds.time_limit + _GRACE).total_seconds() * 1000)

        def carry_out(payload: str) -> None:
            # Wait before the expiry is checked, so that it is compared with the time at which the task begins.
            gate.wait_until_open()
            task = read_for(type_.kind, verify(payload).task)
            with proved_by(payload):
                take(task)

        dramatiq.actor(broker=broker, queue_name=queue, actor_name=type_.kind, time_limit=limit)(carry_out)

    for type_ in TYPES:
        declare(type_)

    def open_requested_stream(payload: str) -> None:
        gate.wait_until_open()
        try:
            request = read_request(verify(payload).task)
        except (BadCopy, MalformedRequest) as refused:
            # A request for a stream is not a task, so no report is sent: the control plane stops waiting after seconds.
            log.warning("invalid_or_expired_slice_stream_request_refused", reason=str(refused))
            return
        open_stream(request)

    limit = int(_STREAM_LIMIT.total_seconds() * 1000)
    dramatiq.actor(broker=broker, queue_name=queue, actor_name=ACTOR, time_limit=limit)(open_requested_stream)


def read_for(kind: str, text: bytes) -> Task:
    """Parse a signed task that the actor for `kind` received.

    Raises `TaskRefused`, and `BadCopy` for a task of another kind.
    """
    task = read_task(text)
    if task.body.kind != kind:
        # The actor's name is not signed: it was changed on the way.
        raise BadCopy(
            "forged",
            f"the signed task has the kind {task.body.kind}, but was sent to the actor of kind {kind}",
        )
    return task
