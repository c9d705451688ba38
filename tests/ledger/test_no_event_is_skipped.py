"""Promise P11: every reader of the ledger sees each event once and in stream order, while faults are injected into
sixteen writers.

The usual run appends a twentieth of the promise's 100,000 events; `./dev torture --only P11` appends all of them. A run
with too little load, or in which a faulty reader lost no event, proves nothing and fails.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from control_plane.schema import migrate
from deploy.embedded.postgres import PostgresServer, running_postgres
from events.ledger.tail import Tail
from tests import matrix, torture
from tests.ledger.skipped_events.crew import FAULTS, Crew, crew
from tests.ledger.skipped_events.journal import Account
from tests.ledger.skipped_events.readers import (
    Progress,
    Seen,
    by_batches,
    by_final,
    by_random_batches,
    faulty_readers,
    follow,
)
from tests.servers.postgres import Database, server_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
DRAWN_AHEAD = 32
"""Numbers of a sequence that PostgreSQL logs in advance; after a crash the sequence continues behind them."""


@pytest.fixture
def writers(database: Database, tmp_path: Path) -> Iterator[Crew]:
    with crew(database, tmp_path, torture.seed()) as made:
        yield made


async def test_every_ledger_reader_sees_each_event_once_while_writers_are_killed_stopped_and_disconnected(
    database: Database, writers: Crew
) -> None:
    count, progress, began = torture.count(100_000, usual_share=20), Progress(), time.monotonic()
    async with (
        readers(database, progress, writers.rng.getrandbits(32)) as reading,
        asyncio.TaskGroup() as group,
    ):
        faulty = group.create_task(faulty_readers(database, progress))
        reading["late"] = group.create_task(run_late_reader(database, progress, count // 2))
        await inject_faults(writers, progress, count)
        account = await writers.finish()
        seconds = time.monotonic() - began
        progress.end = await drawn(database)
    seen = {reader: task.result() for reader, task in reading.items()}
    lost = {reader: len(positions(seen["early"]) - found) for reader, found in faulty.result().items()}
    print(f"{len(seen['early'])} events of {account.commands} commands, {account.refused} of them refused,")
    print(f"in {seconds:.1f} s; injected: {dict(writers.injected)}; lost by faulty readers: {lost}")

    assert_equal_readers(seen)
    assert_once_and_in_order(seen["early"])
    await assert_accounted_for(database, seen["early"], account)
    assert_sufficient_load(account, writers, count)
    subtle = [number for reader, number in lost.items() if reader != "naive"]
    # With a twentieth of the events, one of the subtle faults may have no effect on a busy machine.
    assert all(subtle) if matrix.is_full() else any(subtle), f"these readers must lose events here: {lost}"
    assert lost["naive"] > count / 100, "too few events were committed after an event with a higher position"
    assert count <= len(seen["early"]) > 100 * seconds, "the load was too low"


async def test_every_ledger_reader_sees_each_event_once_while_backends_are_killed_and_postgres_recovers(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    await check_readers_during_crashes(own_server, tmp_path, kill_a_backend)


async def test_every_ledger_reader_sees_each_event_once_while_postgres_is_killed_and_restarted(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    await check_readers_during_crashes(own_server, tmp_path, kill_the_server)


@pytest.fixture
def own_server(postgres_programs: Path) -> Iterator[PostgresServer]:
    settings = {"fsync": "off"}
    with (
        server_folder() as folder,
        running_postgres(
            folder / "pg", folder / "run", settings=settings, programs=postgres_programs
        ) as server,
    ):
        migrate(server.admin_dsn)
        yield server


Crash = Callable[[PostgresServer, Database, random.Random], Awaitable[None]]


async def check_readers_during_crashes(server: PostgresServer, folder: Path, crash: Crash) -> None:
    count, crashes, seed = (
        torture.count(20_000, usual_share=20),
        max(3, torture.count(100) // 3),
        torture.seed(),
    )
    database, progress = Database(server, "sliceplane"), Progress()
    with crew(database, folder, seed) as writers:
        async with readers(database, progress, seed) as reading:
            for number in range(crashes):
                await until_seen(progress, count * (number + 1) // (crashes + 1))
                await crash(server, database, writers.rng)
            await until_seen(progress, count)
            account = await writers.finish()
            progress.end = await drawn(database)
    seen = {reader: task.result() for reader, task in reading.items()}

    assert_equal_readers(seen)
    assert_once_and_in_order(seen["early"])
    await assert_accounted_for(database, seen["early"], account, never_drawn=DRAWN_AHEAD * crashes)
    assert account.lost > crashes, "too few crashes interrupted a writer"


async def kill_a_backend(server: PostgresServer, database: Database, rng: random.Random) -> None:
    """Kill one Postgres backend of a writer. The server then ends every session and recovers, because the killed
    backend may have corrupted the shared memory.
    """
    query = "select pid from pg_stat_activity where application_name like 'writer%'"
    killed = False
    while not killed:
        await asyncio.sleep(0.01)
        if pids := await writer_backends(database, query):
            with suppress(ProcessLookupError):  # It has ended in the meantime.
                os.kill(rng.choice(pids), signal.SIGKILL)
                killed = True


async def writer_backends(database: Database, query: str) -> list[int]:
    """Return the process ids of the Postgres backends of the ledger's writers; an empty list while the
    server recovers.
    """
    with suppress(psycopg.OperationalError):
        async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as admin:
            return [pid for (pid,) in await (await admin.execute(query)).fetchall()]
    return []


async def kill_the_server(server: PostgresServer, database: Database, rng: random.Random) -> None:
    assert server.process is not None
    server.process.kill()
    await asyncio.to_thread(server.process.wait)
    await asyncio.to_thread(server.start)


@asynccontextmanager
async def readers(
    database: Database, progress: Progress, seed: int
) -> AsyncIterator[dict[str, asyncio.Task[list[Seen]]]]:
    """Run three readers from the start of the ledger. The context ends when they have reached the end of the ledger."""
    names = ("early", "random batches", "final position")
    early, in_batches, at_final = tails = [Tail(database.app_dsn, name) for name in names]
    steps = {
        "early": by_batches(early),
        "random batches": by_random_batches(in_batches, random.Random(seed)),
        "final position": by_final(at_final, database.app_dsn),
    }
    try:
        async with asyncio.TaskGroup() as group:
            yield {
                name: group.create_task(follow(step, progress, progress.seen if name == "early" else []))
                for name, step in steps.items()
            }
    finally:
        for tail in tails:
            await tail.close()


async def run_late_reader(database: Database, progress: Progress, count: int) -> list[Seen]:
    """Run a reader that starts at the beginning of the ledger after `count` events were appended. Return the events
    that it read.
    """
    await until_seen(progress, count)
    tail = Tail(database.app_dsn, "late")
    try:
        return await follow(by_batches(tail), progress, [])
    finally:
        await tail.close()


async def inject_faults(writers: Crew, progress: Progress, count: int) -> None:
    faults = [*FAULTS] * max(2, count // 10_000) + ["stop_until_timeout"] * max(1, count // 25_000)
    writers.rng.shuffle(faults)
    for number, fault in enumerate(faults):
        await until_seen(progress, count * (number + 1) // (len(faults) + 1))
        await writers.inject(fault)
    await until_seen(progress, count)


async def until_seen(progress: Progress, count: int) -> None:
    while len(progress.seen) < count:
        await asyncio.sleep(0.01)


async def drawn(database: Database) -> int:
    async with await psycopg.AsyncConnection.connect(database.app_dsn, autocommit=True) as conn:
        row = await (await conn.execute("select last from ledger.fence()")).fetchone()
    assert row is not None
    return int(row[0])


def positions(seen: list[Seen]) -> set[int]:
    return {event.position for event in seen}


def assert_equal_readers(seen: dict[str, list[Seen]]) -> None:
    everything = set().union(*seen.values())
    missed = {reader: sorted(everything.difference(events))[:5] for reader, events in seen.items()}
    assert not any(missed.values()), f"events were skipped: {missed}"
    assert all(events == seen["early"] for events in seen.values())


def assert_once_and_in_order(seen: list[Seen]) -> None:
    order = [event.position for event in seen]
    assert order == sorted(set(order))
    streams: dict[str, list[int]] = {}
    for event in seen:
        streams.setdefault(event.stream, []).append(event.version)
    assert all(versions == list(range(1, len(versions) + 1)) for versions in streams.values())


async def assert_accounted_for(
    database: Database, seen: list[Seen], account: Account, *, never_drawn: int = 0
) -> None:
    """Check that every drawn position has an event or is recorded as dead (it never gets one). Only positions of a
    writer that rolled back, was killed or lost its connection may be dead.
    """
    async with await psycopg.AsyncConnection.connect(database.app_dsn, autocommit=True) as conn:
        rows = await (await conn.execute("select position from ledger.dead_position")).fetchall()
    dead, written = {position for (position,) in rows}, positions(seen)
    assert account.committed <= written <= account.committed | account.unsure
    assert written | dead == set(range(1, await drawn(database) + 1))
    assert not written & dead
    unexplained = dead - account.undone - account.unsure
    assert len(unexplained) <= account.unanswered + never_drawn, "a rejected append drew a position"


def assert_sufficient_load(account: Account, writers: Crew, count: int) -> None:
    assert account.commands > count / 5
    assert account.refused > count / 100
    assert len(account.undone) > count / 50
    assert account.lost > count / 2000
    assert set(writers.injected) == {*FAULTS, "stop_until_timeout"}
