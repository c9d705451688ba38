"""Writers that dawdle, roll back and are killed, against the tail and against a naive one.

Bounded for every run of the tests; `./dev torture` will run it at the promise's full count (P11). The naive tail reads
what is there and goes on from the last position: in the same run it must lose events, or the run proved nothing.
"""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import psycopg

from events.append import append
from events.envelope import Recorded
from events.errors import VersionConflict
from events.facts import Fact
from events.store import read_range
from events.tail import Tail
from events.values import Position, StreamId
from tests.ledger.given import because, on
from tests.servers.postgres import Database

WRITERS: Final = 8
COMMANDS: Final = 400
STREAMS: Final = 40
END: Final = Position(2**62)


@dataclass
class Log:
    """What was certainly committed, and what each reader saw."""

    committed: set[Position] = field(default_factory=set)
    unsure: set[Position] = field(default_factory=set)
    killed: int = 0
    rolled_back: int = 0


async def write(database: Database, log: Log, seed: int) -> None:
    dice = random.Random(seed)
    versions: dict[str, int] = {}
    conn = await psycopg.AsyncConnection.connect(database.app_dsn)
    for _ in range(COMMANDS):
        try:
            await one_command(database, conn, log, dice, versions)
        except psycopg.OperationalError:
            await conn.close()
            conn = await psycopg.AsyncConnection.connect(database.app_dsn)
    await conn.close()


async def one_command(
    database: Database, conn: psycopg.AsyncConnection, log: Log, dice: random.Random, versions: dict[str, int]
) -> None:
    streams = dice.sample(range(STREAMS), dice.choice([1, 1, 2]))
    changes = [on(f"slot-{stream}", versions.get(f"slot-{stream}", 0)) for stream in streams]
    try:
        recorded = await append(conn, changes, because())
    except VersionConflict as lost:
        await conn.rollback()
        versions[lost.stream] = lost.actual
        return
    await conn.execute("select pg_sleep(%s)", [dice.choice([0, 0, 0, 0.002, 0.02])])  # a slow command
    fate = dice.randrange(20)
    if fate < 2:
        await conn.rollback()
        log.rolled_back += 1
        return
    if fate == 2:
        log.unsure.update(event.position for event in recorded)
        await kill(database, conn)
        log.killed += 1
    await conn.commit()
    log.committed.update(event.position for event in recorded)
    versions.update((event.stream, event.version) for event in recorded)


async def kill(database: Database, conn: psycopg.AsyncConnection) -> None:
    async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as admin:
        await admin.execute("select pg_terminate_backend(%s)", [conn.info.backend_pid])


async def follow(tail: Tail, writing: asyncio.Task[None]) -> list[Recorded[Fact]]:
    seen: list[Recorded[Fact]] = []
    position = Position(0)
    while True:
        ended = writing.done()
        batch = await tail.batch(position, 50)
        seen += batch.events
        if ended and batch.final == position:
            return seen
        position = batch.final


async def follow_naively(database: Database, writing: asyncio.Task[None]) -> set[Position]:
    seen: set[Position] = set()
    position = Position(0)
    async with await psycopg.AsyncConnection.connect(database.app_dsn, autocommit=True) as conn:
        while True:
            ended = writing.done()
            events = await read_range(conn, position, END, limit=50)
            if ended and not events:
                return seen
            seen.update(event.position for event in events)
            position = events[-1].position if events else position


async def test_every_committed_event_is_seen_once_and_in_stream_order(database: Database) -> None:
    log = Log()

    async def write_all() -> None:
        await asyncio.gather(*(write(database, log, seed) for seed in range(WRITERS)))

    writing = asyncio.create_task(write_all())
    early, late = Tail(database.app_dsn, "early"), Tail(database.app_dsn, "late")
    seen, naive = await asyncio.gather(follow(early, writing), follow_naively(database, writing))
    again = await follow(late, writing)

    assert len(log.committed) > WRITERS * COMMANDS / 4, "a run without load proves nothing"
    assert log.killed > 5
    assert log.rolled_back > 20
    positions = [event.position for event in seen]
    assert positions == sorted(set(positions))
    assert log.committed <= set(positions) <= log.committed | log.unsure
    assert again == seen
    assert versions_are_dense(seen)
    assert set(positions) - naive, "a naive tail must lose events here"
    with suppress(psycopg.OperationalError):
        await early.close()
        await late.close()


def versions_are_dense(seen: list[Recorded[Fact]]) -> bool:
    streams: dict[StreamId, list[int]] = {}
    for event in seen:
        streams.setdefault(event.stream, []).append(event.version)
    return all(versions == list(range(1, len(versions) + 1)) for versions in streams.values())
