"""A comparison side of the append benchmark: the ordered Postgres recorder of the `eventsourcing` package, unchanged.

Its application recorder locks the whole table in each transaction, so that its readers skip no event. The ledger
guarantees the same by an advisory lock (its fence). The recorder is used as its users would use it: by threads, with
one connection each from its own pool. Its tables and types are in a separate schema of the same database, created
before the clock starts.
"""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import psycopg
from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from psycopg.conninfo import conninfo_to_dict

from deploy.embedded.postgres import APP_ROLE, PostgresServer
from events import catalog
from events.ledger.append import LedgerCommand
from events.values import new_uuid

SCHEMA: Final = "recorder"


class OrderedRecorder:
    """The Postgres recorder of the `eventsourcing` package, with a thread pool that inserts events concurrently."""

    def __init__(self, recorder: PostgresApplicationRecorder, threads: ThreadPoolExecutor) -> None:
        self._recorder, self._threads = recorder, threads

    async def insert(self, rows: Sequence[Sequence[StoredEvent]]) -> None:
        """Insert each list of events in a separate thread, one event per transaction."""
        running = asyncio.get_running_loop()
        await asyncio.gather(
            *[running.run_in_executor(self._threads, self._one_by_one, each) for each in rows]
        )

    def _one_by_one(self, events: Sequence[StoredEvent]) -> None:
        for event in events:
            self._recorder.insert_events([event])


@contextmanager
def ordered_recorder(server: PostgresServer, connections: int) -> Iterator[OrderedRecorder]:
    """Open an `eventsourcing` recorder with `connections` threads and connections, as the application's role."""
    with psycopg.connect(server.admin_dsn, autocommit=True) as admin:
        admin.execute(f"create schema {SCHEMA} authorization {APP_ROLE}")
    to = {name: str(value) for name, value in conninfo_to_dict(server.app_dsn).items()}
    datastore = PostgresDatastore(
        dbname=to["dbname"],
        host=to["host"],
        port=to["port"],
        user=to["user"],
        password=to["password"],
        schema=SCHEMA,
        pool_size=connections,
    )
    recorder = PostgresApplicationRecorder(datastore)
    recorder.create_table()
    try:
        with ThreadPoolExecutor(connections) as threads:
            yield OrderedRecorder(recorder, threads)
    finally:
        datastore.close()


def stored_events(commands: Sequence[LedgerCommand]) -> list[StoredEvent]:
    """Convert ledger commands to stored events of `eventsourcing` with the same payloads and one originator id."""
    originator = new_uuid()
    return [
        StoredEvent(originator, version, name, data.encode())
        for version, (name, _, data) in enumerate(
            (
                catalog.encode(fact)
                for command in commands
                for change in command.changes
                for fact in change.facts
            ),
            1,
        )
    ]
