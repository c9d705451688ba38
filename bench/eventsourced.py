"""What the `eventsourcing` package holds and how it is read: the other side of the replay bench.

An application of its own in a database of its own on the same server, with the package's defaults but for longer
sections of its notification log. Its events are of ordinary size for ours: a readiness report, and who said it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

import psycopg
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from psycopg.conninfo import conninfo_to_dict

from bench.measure import Progress
from deploy.embedded.postgres import PostgresServer
from events.values import new_uuid

DATABASE: Final = "eventsourced"
_STREAM_LENGTH: Final = 10
"""Events of an aggregate, as many as an allocation of one slot has."""
_SAVED_AT_ONCE: Final = 20


class Slice(Aggregate):
    """Something that is ready again and again."""

    @event("Ready")
    def ready(
        self,
        *,
        slot_id: str,
        address: str,
        port: int,
        banner: str,
        actor: str,
        why: str,
        correlation_id: UUID,
    ) -> None:
        """A readiness report, with the cause that our envelope would hold."""


class Slices(Application[UUID]):
    """The application; it reads its log in sections as long as our batches are said to be."""

    log_section_size = 1000


@contextmanager
def eventsourced(server: PostgresServer) -> Iterator[Slices]:
    """The application in a new database of the server."""
    with psycopg.connect(server.admin_dsn, autocommit=True) as admin:
        admin.execute(f"create database {DATABASE}")
    to = {name: str(value) for name, value in conninfo_to_dict(server.admin_dsn_of(DATABASE)).items()}
    application = Slices(
        {
            "PERSISTENCE_MODULE": "eventsourcing.postgres",
            "POSTGRES_DBNAME": to["dbname"],
            "POSTGRES_HOST": to["host"],
            "POSTGRES_PORT": to["port"],
            "POSTGRES_USER": to["user"],
            "POSTGRES_PASSWORD": to["password"],
        }
    )
    try:
        yield application
    finally:
        application.close()


def record(application: Slices, events: int, progress: Progress) -> None:
    """Record so many events; the first of an aggregate says that it exists."""
    aggregates: list[Slice] = []
    for number in range(events // _STREAM_LENGTH):
        aggregate = Slice()
        for slot in range(_STREAM_LENGTH - 1):
            aggregate.ready(
                slot_id=f"node-{number}/{slot}",
                address="10.100.1.10",
                port=22,
                banner="SSH-2.0-dropbear_2022.83",
                actor=f"node:node-{number}",
                why=f"report {slot}",
                correlation_id=new_uuid(),
            )
        aggregates.append(aggregate)
        if len(aggregates) == _SAVED_AT_ONCE:
            application.save(*aggregates)
            aggregates.clear()
            progress(number * _STREAM_LENGTH / events)
    application.save(*aggregates)


def read(application: Slices) -> int:
    """Read the whole log back to typed events, and return how many there were."""
    count, log, mapper = 0, application.notification_log, application.mapper
    while section := log.select(count + 1, application.log_section_size):
        for notification in section:
            mapper.to_domain_event(notification)
        count += len(section)
    return count
