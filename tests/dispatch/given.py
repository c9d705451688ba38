"""What a dispatcher's part finds: task rows as the outbox writes them, nodes that were heard, tasks that ended."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg

from control_plane import outbox
from control_plane.derive import Looked, Task
from control_plane.handle import database_time
from control_plane.wiring import Plane
from events.connection import ledger_connection
from events.values import NodeId, SlotId, StreamId
from tasks.orders import Token
from tests.servers.postgres import Database

STATE = (
    "case when state = 'sent' and order_id in (select order_id from work.unsent) then 'due' else state end"
)
"""What state a row of `work.task` is in: what was never sent says that it was."""


def a_task(node: str, *, slot: str | None = None, position: int = 1) -> Task:
    slot_id = slot or f"{node}/{uuid4()}"
    return Task(uuid4(), NodeId(node), "slice.apply", "{}", SlotId(slot_id), token=Token(1, position))


@dataclass(frozen=True)
class Given:
    made: Plane
    database: Database

    async def tasks(self, *tasks: Task) -> list[UUID]:
        """One stream's look found these due."""
        async with self.made.engine.begin() as conn:
            looked = Looked(StreamId("allocation-test"), tasks)
            await outbox.write(await ledger_connection(conn), [looked], await database_time(conn))
        return [task.order_id for task in tasks]

    def heard(self, node: str, *, seconds_ago: float = 0.0) -> None:
        """The node's last heartbeat."""
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
        """Whatever has a moment has reached it."""
        self.rows(
            "update work.task set due_at = clock_timestamp() - interval '1 s' where due_at is not null returning 1"
        )

    def states(self, node: str) -> dict[tuple[str, bool], int]:
        """How many of the node's tasks are in which state, with a moment or without."""
        found = self.rows(
            f"""select {STATE}, due_at is not null, count(*) from work.task where node_id = %(node)s
            group by 1, 2""",
            node=node,
        )
        return {(state, moment): count for state, moment, count in found}

    def rows(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        """What the database says, as its superuser."""
        with psycopg.connect(self.database.admin_dsn, autocommit=True) as conn:
            return conn.execute(query, values or None).fetchall()
