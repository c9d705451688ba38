"""Typed reads of streams: one allocation or task, or the histories of many streams in one query."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final, TypeGuard, get_args
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions.access import Within
from events.allocations import AllocationFact
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.connection import ledger_connection
from events.ledger.store import COLUMNS, fetch_events, read_stream
from events.nodes import NodeFact
from events.orders import OrderFact
from events.projections import ProjectionFact
from events.tasks import TaskFact
from events.values import AllocationId, StreamId, stream_of_allocation, stream_of_task

History = tuple[Recorded[Fact], ...]
_MANY: Final = f"select {COLUMNS} from ledger.event where stream_id = any(%s) order by stream_id, version"  # noqa: S608 (constants)
_WITHIN: Final = (
    f"select {COLUMNS} from ledger.event where stream_id = %s and exists (select from ledger.event first where"  # noqa: S608 (constants)
    " first.stream_id = event.stream_id and first.version = 1 and first.project = any(%s)) order by version"
)
_PLACEMENTS: Final = (
    f"select {COLUMNS} from ledger.event where stream_id = %s and (version = 1 or type = any(%s))"  # noqa: S608 (constants)
    " and (%s::text[] is null or exists (select from ledger.event first where first.stream_id = event.stream_id"
    " and first.version = 1 and first.project = any(%s))) order by version"
)
_PLACING: Final = ["allocation.placed", "allocation.replaced"]
_ALLOCATION_FACTS: Final = frozenset(get_args(AllocationFact))
_NODE_FACTS: Final = frozenset(get_args(NodeFact | OrderFact))
_PROJECTION_FACTS: Final = frozenset(get_args(ProjectionFact))
_TASK_FACTS: Final = frozenset(get_args(TaskFact))


class WrongStream(TypeError):
    """The stream contains a fact that belongs to another kind of stream. `append` did not write this fact: the ledger
    was altered by other means.
    """

    def __init__(self, history: History, kind: str) -> None:
        super().__init__(
            f"stream {history[0].stream} contains facts that are not of {kind}; verify the ledger"
        )


def allocation_facts(history: History) -> tuple[Recorded[AllocationFact], ...]:
    """Return the history of an allocation with the type of its facts. Raises `WrongStream`."""
    if _is_of_allocation(history):
        return history
    raise WrongStream(history, "an allocation")


def task_facts(history: History) -> tuple[Recorded[TaskFact], ...]:
    """Return the history of a task with the type of its facts. Raises `WrongStream`."""
    if _is_of_task(history):
        return history
    raise WrongStream(history, "a task")


def node_facts(history: History) -> tuple[Recorded[NodeFact | OrderFact], ...]:
    """Return the history of a node with the type of its facts. Raises `WrongStream`."""
    if _is_of_node(history):
        return history
    raise WrongStream(history, "a node")


def projection_facts(history: History) -> tuple[Recorded[ProjectionFact], ...]:
    """Return the history of a projection with the type of its facts. Raises `WrongStream`."""
    if _is_of_projection(history):
        return history
    raise WrongStream(history, "a projection")


def _is_of_node(history: History) -> TypeGuard[tuple[Recorded[NodeFact | OrderFact], ...]]:
    return all(type(each.fact) in _NODE_FACTS for each in history)


def _is_of_projection(history: History) -> TypeGuard[tuple[Recorded[ProjectionFact], ...]]:
    return all(type(each.fact) in _PROJECTION_FACTS for each in history)


def _is_of_allocation(history: History) -> TypeGuard[tuple[Recorded[AllocationFact], ...]]:
    return all(type(each.fact) in _ALLOCATION_FACTS for each in history)


def _is_of_task(history: History) -> TypeGuard[tuple[Recorded[TaskFact], ...]]:
    return all(type(each.fact) in _TASK_FACTS for each in history)


async def allocation_history(
    conn: AsyncConnection, allocation: AllocationId, within: Within = None
) -> tuple[Recorded[AllocationFact], ...]:
    """Return every fact of an allocation, oldest first; empty if there is none, or none in the projects `within`."""
    ledger, stream = await ledger_connection(conn), stream_of_allocation(allocation)
    if within is None:
        return allocation_facts(await read_stream(ledger, stream))
    cursor = await ledger.execute(_WITHIN, [stream, sorted(within)], prepare=True, binary=True)
    return allocation_facts(await fetch_events(cursor))


async def allocation_placements(
    conn: AsyncConnection, allocation: AllocationId, within: Within = None
) -> tuple[Recorded[AllocationFact], ...]:
    """Return the first fact of an allocation and those that placed it, oldest first; empty if there is none, or none in
    the projects `within`. Unlike the whole history, they remain few, however often the lease is renewed.
    """
    projects = None if within is None else sorted(within)
    parameters = [stream_of_allocation(allocation), _PLACING, projects, projects]
    cursor = await (await ledger_connection(conn)).execute(_PLACEMENTS, parameters, prepare=True, binary=True)
    return allocation_facts(await fetch_events(cursor))


async def histories(conn: AsyncConnection, streams: Sequence[StreamId]) -> dict[StreamId, History]:
    """Return every fact of each stream, oldest first, with one query.

    A fact that this release cannot read is included as `Unreadable`, so that it affects only its own stream.
    """
    if not streams:
        return {}
    ledger = await ledger_connection(conn)
    cursor = await ledger.execute(_MANY, [list(streams)], prepare=True, binary=True)
    events = await fetch_events(cursor)
    return {stream: tuple(found) for stream, found in groupby(events, lambda each: each.stream)}


async def task_history(conn: AsyncConnection, task: UUID) -> tuple[Recorded[TaskFact], ...]:
    """Return every fact of a requested task, oldest first; empty if there is none."""
    history = await read_stream(await ledger_connection(conn), stream_of_task(task))
    return task_facts(history)
