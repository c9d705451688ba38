"""Preconditions of the dispatcher's tests: task rows as the dispatcher writes them, heartbeats of nodes, and ended
tasks.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg

from control_plane.dispatcher import outbox
from control_plane.dispatcher.derive import Evaluation, Task
from control_plane.handle import database_time
from control_plane.wiring import Plane
from events.ledger.connection import ledger_connection
from events.values import NodeId, SlotId, StreamId
from tasks.orders import Token
from tests.servers.postgres import Database

STATE = (
    "case when state = 'sent' and order_id in (select order_id from work.unsent) then 'due' else state end"
)
"""SQL expression for the state of a task. Its row already has state `sent` before the task is sent."""


def a_task(node: str, *, slot: str | None = None, position: int = 1) -> Task:
    slot_id = slot or f"{node}/{uuid4()}"
    return Task(uuid4(), NodeId(node), "slice.apply", "{}", SlotId(slot_id), token=Token(1, position))


@dataclass(frozen=True)
class Given:
    """Database of a dispatcher test: methods that prepare and read its task rows and heartbeats."""

    made: Plane
    database: Database

    async def tasks(self, *tasks: Task) -> list[UUID]:
        """Write the rows of tasks, as the dispatcher does for an event stream. Return the order ids of the tasks."""
        async with self.made.engine.begin() as conn:
            evaluation = Evaluation(StreamId("allocation-test"), tasks)
            await outbox.write(await ledger_connection(conn), [evaluation], await database_time(conn))
        return [task.order_id for task in tasks]

    def heartbeat(self, node: str, *, seconds_ago: float = 0.0) -> None:
        """Record the last heartbeat of a node, at the given number of seconds in the past."""
        self.rows(
            """insert into work.node_seen values
            (%(node)s, clock_timestamp() - make_interval(secs => %(ago)s), 'test', 0, true)
            on conflict (node_id) do update set seen_at = excluded.seen_at returning 1""",
            node=node,
            ago=seconds_ago,
        )

    def end(self, *order_ids: UUID) -> None:
        self.rows(
            "update work.task set state = 'done' where order_id = any(%(ids)s) returning 1", ids=[*order_ids]
        )

    def overdue(self) -> None:
        """Set the due time to one second ago in every task row that has a due time."""
        self.rows(
            "update work.task set due_at = clock_timestamp() - interval '1 s' where due_at is not null returning 1"
        )

    def states(self, node: str) -> dict[tuple[str, bool], int]:
        """Return the number of the node's task rows for each state, separately for rows with and without a due time."""
        found = self.rows(
            f"""select {STATE}, due_at is not null, count(*) from work.task where node_id = %(node)s
            group by 1, 2""",
            node=node,
        )
        return {(state, has_due_time): count for state, has_due_time, count in found}

    def rows(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        """Run an SQL query as the database's superuser and return its rows."""
        with psycopg.connect(self.database.admin_dsn, autocommit=True) as conn:
            return conn.execute(query, values or None).fetchall()
