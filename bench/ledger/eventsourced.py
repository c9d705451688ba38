"""The comparison side of the replay benchmark: events stored and read with the `eventsourcing` package.

It is a separate application in a separate database on the same server. It uses the package's defaults, except for
longer sections of the notification log. Its events have the size of typical ledger events: a readiness report and its
cause.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

import psycopg
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from psycopg.conninfo import conninfo_to_dict

from bench.harness.measure import Progress
from deploy.embedded.postgres import PostgresServer
from events.values import new_uuid

DATABASE: Final = "eventsourced"
_STREAM_LENGTH: Final = 10
"""Events per aggregate, as many as an allocation with one slot has."""
_SAVED_AT_ONCE: Final = 20


class SliceAggregate(Aggregate):
    """`eventsourcing` aggregate of a slice that repeatedly becomes ready."""

    @event("Ready")
    def ready(
        self,
        *,
        slot_id: str,
        address: str,
        port: int,
        banner: str,
        actor: str,
        reason: str,
        correlation_id: UUID,
    ) -> None:
        """Record that the slice is ready, with the cause that the ledger's envelope would contain."""


class SliceApplication(Application[UUID]):
    """`eventsourcing` application for slices. Log sections have the size of the ledger reader's batches."""

    log_section_size = 1000


@contextmanager
def eventsourced(server: PostgresServer) -> Iterator[SliceApplication]:
    """Open an `eventsourcing` application in a new database, and close it at the end of the `with` block."""
    with psycopg.connect(server.admin_dsn, autocommit=True) as admin:
        admin.execute(f"create database {DATABASE}")
    options = {name: str(value) for name, value in conninfo_to_dict(server.admin_dsn_of(DATABASE)).items()}
    application = SliceApplication(
        {
            "PERSISTENCE_MODULE": "eventsourcing.postgres",
            "POSTGRES_DBNAME": options["dbname"],
            "POSTGRES_HOST": options["host"],
            "POSTGRES_PORT": options["port"],
            "POSTGRES_USER": options["user"],
            "POSTGRES_PASSWORD": options["password"],
        }
    )
    try:
        yield application
    finally:
        application.close()


def record(application: SliceApplication, events: int, progress: Progress) -> None:
    """Record the given number of events in the application; the first event of each aggregate is its creation."""
    aggregates: list[SliceAggregate] = []
    for number in range(events // _STREAM_LENGTH):
        aggregate = SliceAggregate()
        for slot in range(_STREAM_LENGTH - 1):
            aggregate.ready(
                slot_id=f"node-{number}/{slot}",
                address="10.100.1.10",
                port=22,
                banner="SSH-2.0-dropbear_2022.83",
                actor=f"node:node-{number}",
                reason=f"report {slot}",
                correlation_id=new_uuid(),
            )
        aggregates.append(aggregate)
        if len(aggregates) == _SAVED_AT_ONCE:
            application.save(*aggregates)
            aggregates.clear()
            progress(number * _STREAM_LENGTH / events)
    application.save(*aggregates)


def read(application: SliceApplication) -> int:
    """Read the application's whole notification log back into typed events. Return their number."""
    count, log, mapper = 0, application.notification_log, application.mapper
    while section := log.select(count + 1, application.log_section_size):
        for notification in section:
            mapper.to_domain_event(notification)
        count += len(section)
    return count
