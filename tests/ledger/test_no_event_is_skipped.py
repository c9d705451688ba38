"""P11: whatever befalls sixteen writers, every reader sees each event once and in its streams' order.

A tenth of the promise's 100,000 events in the usual run, all of them in `./dev torture --only P11`. A run that carried
too little load, or in which one of the faulty readers lost nothing, proves nothing and fails.
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

from deploy.embedded.postgres import PostgresServer, running_postgres
from deploy.embedded.schema import migrate
from events.tail import Tail
from tests import torture
from tests.ledger.skipping.crew import FAULTS, Crew, crew
from tests.ledger.skipping.journal import Account
from tests.ledger.skipping.readers import (
    Progress,
    Seen,
    by_batches,
    by_final,
    faulty_readers,
    follow,
    restlessly,
)
from tests.servers.postgres import Database, server_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
DRAWN_AHEAD = 32
"""A sequence writes this many numbers in advance to the server's log, and goes on behind them after a crash."""


@pytest.fixture
def writers(database: Database, tmp_path: Path) -> Iterator[Crew]:
    with crew(database, tmp_path, torture.seed()) as made:
        yield made


async def test_every_reader_sees_each_event_once_whatever_befalls_the_writers(
    database: Database, writers: Crew
) -> None:
    count, progress, began = torture.count(100_000), Progress(), time.monotonic()
    async with (
        readers(database, progress, writers.dice.getrandbits(32)) as reading,
        asyncio.TaskGroup() as group,
    ):
        faulty = group.create_task(faulty_readers(database, progress))
        reading["late"] = group.create_task(late(database, progress, count // 2))
        await befall(writers, progress, count)
        account = await writers.finish()
        seconds = time.monotonic() - began
        progress.end = await drawn(database)
    seen = {reader: task.result() for reader, task in reading.items()}
    lost = {reader: len(positions(seen["early"]) - found) for reader, found in faulty.result().items()}
    print(f"{len(seen['early'])} events of {account.commands} commands, {account.refused} of them refused,")
    print(f"in {seconds:.1f} s; befallen: {dict(writers.befallen)}; lost by faulty readers: {lost}")

    assert_all_saw_the_same(seen)
    assert_each_once_and_in_order(seen["early"])
    await assert_accounted_for(database, seen["early"], account)
    assert_load(account, writers, count)
    assert all(lost.values()), f"each of these readers must lose events here: {lost}"
    assert lost["naive"] > count / 100, "hardly an event was committed behind a later one"
    assert count <= len(seen["early"]) > 100 * seconds, "no load"


async def test_every_reader_sees_each_event_once_though_backends_are_killed_and_the_server_recovers(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    await crash_and_look(own_server, tmp_path, kill_a_backend)


async def test_every_reader_sees_each_event_once_though_the_server_is_killed(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    await crash_and_look(own_server, tmp_path, kill_the_server)


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


async def crash_and_look(server: PostgresServer, folder: Path, crash: Crash) -> None:
    count, crashes, seed = torture.count(20_000), max(3, torture.count(100) // 3), torture.seed()
    database, progress = Database(server, "sliceplane"), Progress()
    with crew(database, folder, seed) as writers:
        async with readers(database, progress, seed) as reading:
            for number in range(crashes):
                await seen_so_far(progress, count * (number + 1) // (crashes + 1))
                await crash(server, database, writers.dice)
            await seen_so_far(progress, count)
            account = await writers.finish()
            progress.end = await drawn(database)
    seen = {reader: task.result() for reader, task in reading.items()}

    assert_all_saw_the_same(seen)
    assert_each_once_and_in_order(seen["early"])
    await assert_accounted_for(database, seen["early"], account, never_drawn=DRAWN_AHEAD * crashes)
    assert account.lost > crashes, "the crashes met nobody at work"


async def kill_a_backend(server: PostgresServer, database: Database, dice: random.Random) -> None:
    """Its shared memory may be harmed, so the server ends every session and recovers."""
    query = "select pid from pg_stat_activity where application_name like 'writer%'"
    killed = False
    while not killed:
        await asyncio.sleep(0.01)
        if pids := await at_work(database, query):
            with suppress(ProcessLookupError):  # it ended by itself since
                os.kill(dice.choice(pids), signal.SIGKILL)
                killed = True


async def at_work(database: Database, query: str) -> list[int]:
    """None while the server recovers from the crash before."""
    with suppress(psycopg.OperationalError):
        async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as admin:
            return [pid for (pid,) in await (await admin.execute(query)).fetchall()]
    return []


async def kill_the_server(server: PostgresServer, database: Database, dice: random.Random) -> None:
    assert server.process is not None
    server.process.kill()
    await asyncio.to_thread(server.process.wait)
    await asyncio.to_thread(server.start)


@asynccontextmanager
async def readers(
    database: Database, progress: Progress, seed: int
) -> AsyncIterator[dict[str, asyncio.Task[list[Seen]]]]:
    """Three that follow the log from its start. The block ends when they have come to its end."""
    names = ("early", "restless", "asking")
    early, restless, asking = tails = [Tail(database.app_dsn, name) for name in names]
    steps = {
        "early": by_batches(early),
        "restless": restlessly(restless, random.Random(seed)),
        "asking": by_final(asking, database.app_dsn),
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


async def late(database: Database, progress: Progress, count: int) -> list[Seen]:
    """One who begins when the others are in the middle."""
    await seen_so_far(progress, count)
    tail = Tail(database.app_dsn, "late")
    try:
        return await follow(by_batches(tail), progress, [])
    finally:
        await tail.close()


async def befall(writers: Crew, progress: Progress, count: int) -> None:
    faults = [*FAULTS] * max(2, count // 10_000) + ["outstay"] * max(1, count // 25_000)
    writers.dice.shuffle(faults)
    for number, fault in enumerate(faults):
        await seen_so_far(progress, count * (number + 1) // (len(faults) + 1))
        await writers.suffer(fault)
    await seen_so_far(progress, count)


async def seen_so_far(progress: Progress, count: int) -> None:
    while len(progress.seen) < count:
        await asyncio.sleep(0.01)


async def drawn(database: Database) -> int:
    async with await psycopg.AsyncConnection.connect(database.app_dsn, autocommit=True) as conn:
        row = await (await conn.execute("select last from ledger.fence()")).fetchone()
    assert row is not None
    return int(row[0])


def positions(seen: list[Seen]) -> set[int]:
    return {event.position for event in seen}


def assert_all_saw_the_same(seen: dict[str, list[Seen]]) -> None:
    everything = set().union(*seen.values())
    missed = {reader: sorted(everything.difference(events))[:5] for reader, events in seen.items()}
    assert not any(missed.values()), f"events were skipped: {missed}"
    assert all(events == seen["early"] for events in seen.values())


def assert_each_once_and_in_order(seen: list[Seen]) -> None:
    order = [event.position for event in seen]
    assert order == sorted(set(order))
    streams: dict[str, list[int]] = {}
    for event in seen:
        streams.setdefault(event.stream, []).append(event.version)
    assert all(versions == list(range(1, len(versions) + 1)) for versions in streams.values())


async def assert_accounted_for(
    database: Database, seen: list[Seen], account: Account, *, never_drawn: int = 0
) -> None:
    """Every position drawn is an event or dead, and dead only where its writer rolled back or was killed."""
    async with await psycopg.AsyncConnection.connect(database.app_dsn, autocommit=True) as conn:
        rows = await (await conn.execute("select position from ledger.dead_position")).fetchall()
    dead, written = {position for (position,) in rows}, positions(seen)
    assert account.committed <= written <= account.committed | account.unsure
    assert written | dead == set(range(1, await drawn(database) + 1))
    assert not written & dead
    unexplained = dead - account.undone - account.unsure
    assert len(unexplained) <= account.unanswered + never_drawn, "a refused command burned a position"


def assert_load(account: Account, writers: Crew, count: int) -> None:
    assert account.commands > count / 5
    assert account.refused > count / 100
    assert len(account.undone) > count / 50
    assert account.lost > count / 2000
    assert set(writers.befallen) == {*FAULTS, "outstay"}
