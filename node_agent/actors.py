"""Task -> function: an actor for each type of the catalogue, within the bounds that it declares.

A task is believed only by its signature, and read whole before any of it is carried out. One of a kind that has no
actor here is refused in words, never dropped.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import dramatiq

from node_agent.gate import Gate
from node_agent.trust import proved_by
from tasks.catalogue import TYPES, TaskType
from tasks.reading import Task, read_task
from tasks.sealed import BadCopy, Unsealed

_GRACE: Final = timedelta(seconds=30)
"""Work looks at its own time limit between two steps; the thread is interrupted only when it ignores that."""


def declare_actors(
    broker: dramatiq.Broker,
    queue: str,
    take: Callable[[Task], None],
    gate: Gate,
    believe: Callable[[str], Unsealed],
) -> None:
    """`believe` opens a signed text, or raises `BadCopy`."""

    def declare(type_: TaskType) -> None:
        limit = int((type_.bounds.time_limit + _GRACE).total_seconds() * 1000)

        def carry_out(payload: str) -> None:
            # First, so that a task which waited here is judged by the time when it begins.
            gate.pass_through()
            task = read_for(type_.kind, believe(payload).task)
            with proved_by(payload):
                take(task)

        dramatiq.actor(broker=broker, queue_name=queue, actor_name=type_.kind, time_limit=limit)(carry_out)

    for type_ in TYPES:
        declare(type_)


def read_for(kind: str, text: bytes) -> Task:
    """The task in a signed text that came to the actor of `kind`. Raises `TaskRefused` and `BadCopy`."""
    task = read_task(text)
    if task.body.kind != kind:
        # The actor's name is not signed: somebody changed it.
        raise BadCopy("forged", f"{task.body.kind} came to the actor of {kind}")
    return task
