"""Dramatiq actors: one for each task type of the catalogue, with the time limit that the catalogue declares.

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
"""Maximum time for opening a requested stream; its thread is interrupted then."""
_GRACE: Final = timedelta(seconds=30)
"""Time after a task's own time limit until the task's thread is interrupted. Work checks its time limit between two
steps, so the interruption affects only work that hangs within a step."""


def declare_actors(
    broker: dramatiq.Broker,
    queue: str,
    take: Callable[[Task], None],
    gate: Gate,
    *,
    verify: Callable[[str], Unsealed],
    open_stream: Callable[[StreamRequest], None],
) -> None:
    """Declare a Dramatiq actor on `queue` for each task type, and one for requests for streams. Each actor of a task
    type passes its tasks to `take`, and the other one its requests to `open_stream`.

    `verify` verifies the signature of a signed task and returns its content, or raises `BadCopy`.
    """

    def declare(type_: TaskType) -> None:
        limit = int((type_.bounds.time_limit + _GRACE).total_seconds() * 1000)

        def carry_out(payload: str) -> None:
            # First, so that the expiry of a task that waits here is checked against the time at which it begins.
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
            # Not a task, so there is nothing to report: the control plane has stopped waiting for the stream.
            log.warning("stream_request_refused", reason=str(refused))
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
