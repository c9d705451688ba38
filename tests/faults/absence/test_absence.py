"""Promises P28 and P8: the control plane was away for an hour, and no deadline or lease passes falsely afterwards.

Wrong clocks of nodes and of the control plane's host make no difference. The usage equals a recomputation from the
events of the ledger.
"""

import asyncio
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg
import pytest

from control_plane.database import engine_of
from control_plane.schema import migrate
from deploy.embedded.children import REPOSITORY
from deploy.embedded.postgres import PostgresServer
from deploy.embedded.stack import sqlalchemy_url
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.tail import Tail
from events.values import AllocationId, Position, stream_of_allocation
from read_models.usage import entries as usage
from read_models.usage.entries import Entry
from read_models.usage.intervals import UsageFilter
from read_models.usage.periods import Bill, Piece
from tests import matrix
from tests.faults.absence.scenario import HOUR, Configuration, Errors, Result, Situation
from tests.faults.shifted_clock import ShiftedClock, build_library
from tests.projections import usage_by_hand as by_hand
from tests.servers.postgres import Database, cloned, server_folder
from tests.torture import count, seed

ALLOCATIONS: Final = 500
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800 if matrix.is_full() else 120)]
_INACCURACY: Final = 60
"""Seconds by which a measured error of a clock may be wrong."""
CLOCKS: Final = {
    "nodes ahead": (Errors(HOUR, HOUR), Errors()),
    "nodes behind": (Errors(-HOUR, -HOUR), Errors()),
    "nodes stepping back": (Errors(HOUR, -HOUR), Errors()),
    "host ahead": (Errors(), Errors(HOUR, HOUR)),
    "host behind": (Errors(), Errors(-HOUR, -HOUR)),
    "host stepping back": (Errors(), Errors(HOUR, -HOUR)),
    "all wrong": (Errors(-HOUR, HOUR), Errors(HOUR, -HOUR)),
}
"""Errors of the clocks of the nodes and of the control plane's host."""
_CREATED: Final = ("requested", "specified")
_UP: Final = ("slice_ready", "activated", "lease_granted")
_RELEASED: Final = ("releasing", "lease_ended", "slice_removed", "released")
_EXPIRED: Final = ("lease_expired", *_RELEASED)
_STOPPED: Final = ("stopping", "slice_stopped", "stopped")
EVENTS: Final = {
    Situation.RUNS_ON: ("placed", *_UP),
    Situation.EXPIRES: ("placed", *_UP, *_EXPIRED),
    Situation.STOPPED: ("placed", *_UP, *_STOPPED, *_EXPIRED),
    Situation.STOPS: ("placed", *_UP, *_STOPPED),
    Situation.STARTS: ("placed", *_UP),
    Situation.NOT_ORDERED: ("placed", *_UP),
    Situation.REMOVED: ("placed", *_UP, *_RELEASED),
    Situation.STILL_REMOVING: ("placed", *_UP, *_RELEASED),
    Situation.WAITS: ("queued", "dequeued", "placed", *_UP),
    Situation.WAIT_ENDS: ("queued", "dequeued", "failed"),
}
"""For each situation, the types of the events that an allocation and each of its slices must have after the request,
and no others.
"""


@pytest.fixture(scope="module")
def library() -> Iterator[Path]:
    with server_folder() as folder:
        yield build_library(folder)


@pytest.fixture(scope="module")
def clock(library: Path) -> ShiftedClock:
    made = ShiftedClock(library, library.parent / "database")
    made.step(0)
    return made


@pytest.fixture(scope="module")
def server(clock: ShiftedClock, postgres_programs: Path) -> Iterator[PostgresServer]:
    """PostgreSQL server with a clock that a test steps."""
    with server_folder() as folder:
        made = PostgresServer(
            folder / "postgres",
            folder / "run",
            settings={"fsync": "off"},
            programs=postgres_programs,
            environment=clock.environment,
        )
        made.start()
        try:
            migrate(made.admin_dsn)
            yield made
        finally:
            made.stop()


@pytest.fixture
def own_database(server: PostgresServer, clock: ShiftedClock) -> Iterator[Database]:
    with cloned(server) as made:
        yield made
    clock.step(0)


def away_for_an_hour(
    database: Database, clock: ShiftedClock, nodes: Errors, own: Errors, allocations: int
) -> Result:
    """Run the scenario as a program with a clock of its own, and return its result."""
    host = ShiftedClock(clock.library, clock.file.with_name("host"))
    host.step(0)
    configuration = Configuration(
        database.app_dsn,
        str(clock.library),
        str(clock.file),
        str(host.file),
        nodes,
        own,
        allocations,
        seed(),
    )
    command = [
        sys.executable,
        "-m",
        "tests.faults.absence.scenario",
        msgspec.json.encode(configuration).decode(),
    ]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={
            "PATH": "/usr/bin:/bin",
            "SLICEPLANE_PERSONAL_KEY_FILE": os.environ["SLICEPLANE_PERSONAL_KEY_FILE"],
            **host.environment,
        },
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=Result)


async def recorded(database: Database) -> list[Recorded[Fact]]:
    found, after, tail = list[Recorded[Fact]](), Position(0), Tail(database.app_dsn)
    try:
        while (batch := await tail.batch(after, 1000)).final > after:
            found += batch.events
            after = batch.final
        return found
    finally:
        await tail.close()


async def metered(database: Database, until: datetime) -> tuple[dict[AllocationId, Entry], Any]:
    """Return the usage entry of each allocation up to a time, and the sum of all entries."""
    engine = engine_of(sqlalchemy_url(database.app_dsn).render_as_string(hide_password=False), 1)
    bill = Bill(Piece(None, until))
    try:
        async with engine.connect() as conn:
            found = await usage.entries(conn, UsageFilter(), bill, after=None, limit=10**6)
            [total] = await usage.totals(conn, UsageFilter(), bill, None)
            return {each.allocation_id: each for each in found}, total.amount
    finally:
        await engine.dispose()


def check_clocks(database: Database, result: Result, nodes: Errors, own: Errors) -> None:
    """Check that the clocks really had these errors, those of the nodes by the times in their reports."""
    expected = pytest.approx([own.before, own.after], abs=_INACCURACY)
    assert [result.own_error_before, result.own_error_after] == expected
    query = """select recorded_at > %s, extract(epoch from min(observed_at - recorded_at))::float,
                      extract(epoch from max(observed_at - recorded_at))::float
                 from ledger.event where stream_id like 'allocation-%%' and actor like 'node:%%' group by 1 order by 1"""
    with psycopg.connect(database.admin_dsn) as conn:
        found = conn.execute(query, [result.left_at]).fetchall()
    assert [each for _, *errors in found for each in errors] == pytest.approx(
        [nodes.before, nodes.before, nodes.after, nodes.after], abs=_INACCURACY
    )


def check_events(database: Database, situations: dict[AllocationId, Situation]) -> None:
    """Check that each allocation has the events of its situation, and no others."""
    types = defaultdict[str, list[str]](list)
    with psycopg.connect(database.admin_dsn) as conn:
        for stream, kind in conn.execute("select stream_id, type from ledger.event order by position"):
            types[stream].append(kind.partition(".")[2])
    for name, situation in situations.items():
        expected = [*_CREATED, *EVENTS[situation]]
        assert types[stream_of_allocation(name)] == expected, situation


async def check_usage(database: Database, result: Result) -> None:
    """Check that the usage equals a recomputation, and that no lease is metered for longer than it was granted."""
    events = await recorded(database)
    until = max(each.recorded_at for each in events)
    entries, total = await metered(database, until)
    leases = by_hand.leases(events)
    durations = {name: by_hand.metered(lease, None, until) for name, lease in leases.items()}
    assert {name for name, duration in durations.items() if duration} == entries.keys()
    assert total == by_hand.rounded([(lease, durations[name]) for name, lease in leases.items()])
    for name, situation in result.situations.items():
        if situation is Situation.WAIT_ENDS:
            assert name not in entries
            continue
        entry, lease = entries[name], leases[name]
        assert lease.granted is not None
        seconds = Decimal(durations[name] // timedelta(microseconds=1)) / 10**6
        assert (entry.amount.slot_seconds, entry.starts_at) == (seconds, lease.granted)
        match situation:
            case Situation.EXPIRES | Situation.STOPPED:
                assert result.left_at < entry.ends_at == max(lease.expires) < result.returned_at
            case Situation.REMOVED | Situation.STILL_REMOVING:
                assert entry.ends_at < result.left_at
            case Situation.STARTS | Situation.NOT_ORDERED | Situation.WAITS:
                assert result.returned_at < entry.starts_at < entry.ends_at == until
            case _:
                assert entry.starts_at < result.left_at < entry.ends_at == until


def check_absence(
    database: Database, clock: ShiftedClock, nodes: Errors, own: Errors, allocations: int
) -> None:
    result = away_for_an_hour(database, clock, nodes, own, allocations)
    assert result.returned_at - result.left_at >= timedelta(seconds=HOUR)
    assert len(result.situations) == allocations

    check_clocks(database, result, nodes, own)
    check_events(database, result.situations)
    asyncio.run(check_usage(database, result))
    assert result.differences == 0


@matrix.cases("P28", [ALLOCATIONS], few=1)
def test_no_deadline_or_lease_expires_falsely_after_the_control_plane_was_away_for_an_hour(
    own_database: Database, clock: ShiftedClock, case: int
) -> None:
    check_absence(own_database, clock, Errors(), Errors(), count(case, 50))


@matrix.cases("P8", [*CLOCKS], few=2)
def test_wrong_clocks_affect_no_deadline_lease_or_usage_after_the_control_plane_was_away_for_an_hour(
    own_database: Database, clock: ShiftedClock, case: str
) -> None:
    check_absence(own_database, clock, *CLOCKS[case], count(ALLOCATIONS, 50))
