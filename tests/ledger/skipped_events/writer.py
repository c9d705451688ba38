"""Writer process: it appends random commands to the ledger until the file `Instructions.enough` exists.

Each command has a random outcome: it is committed at once or after a delay, rolled back, wrapped in a savepoint, rolled
back to a savepoint and repeated, or its backend is terminated. On a signal, the process kills (USR1) or stops (USR2)
itself between an append and its commit, while readers wait for this commit.

The process shares some streams with all other writers. Its append to such a stream is rejected if another writer's
append came first.
"""

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Final

import msgspec
import psycopg

from events.ledger.append import Change, append
from events.ledger.errors import LedgerRefusal, VersionConflict
from tests.ledger.given import because, on, plain, takes
from tests.ledger.skipped_events.journal import Journal
from tests.waiting import dawdle

OWN_STREAMS: Final = 20
SHARED_STREAMS: Final = 12
DISPUTED: Final = "lab-a/0"
"""The first claim of this slot is never released: every later one is rejected, after the check of its stream heads."""
CONNECTION_LOST: Final = (psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout)
DELAYS: Final = (0.0,) * 16 + (0.002,) * 3 + (0.02,)


class Instructions(msgspec.Struct, frozen=True):
    """Parameters of one writer process. `pause` is the mean number of seconds between two commands."""

    name: str
    dsn: str
    seed: int
    pause: float
    journal: str
    enough: str

    def is_finished(self) -> bool:
        return Path(self.enough).exists()


class Writer:
    """Writer that appends random commands over one database connection and records each step in its journal."""

    def __init__(self, instructions: Instructions, conn: psycopg.AsyncConnection) -> None:
        self._instructions, self._conn = instructions, conn
        self._rng = random.Random(instructions.seed)
        self._versions: dict[str, int] = {}
        self._pending: signal.Signals | None = None
        signal.signal(signal.SIGUSR1, lambda *_: self._schedule(signal.SIGKILL))
        signal.signal(signal.SIGUSR2, lambda *_: self._schedule(signal.SIGSTOP))
        # Create the journal last: its existence shows that the signal handlers are installed.
        self._journal = Journal(Path(instructions.journal))

    async def run(self) -> None:
        while not self._instructions.is_finished():
            await dawdle(self._rng.expovariate(1 / self._instructions.pause))
            try:
                await self._command()
            except CONNECTION_LOST:
                self._journal.write("lost")
                await self._conn.close()
                self._conn = await connected(self._instructions)
        await self._conn.close()

    def _schedule(self, number: signal.Signals) -> None:
        self._pending = number

    async def _command(self) -> None:
        changes = self._changes()
        outcomes = (self._commit, self._release, self._repeat, self._roll_back, self._lose_backend)
        (outcome,) = self._rng.choices(outcomes, (800, 80, 60, 50, 4))
        try:
            versions = await outcome(changes)
        except LedgerRefusal as refusal:
            self._journal.write("refused")
            await self._conn.rollback()
            if isinstance(refusal, VersionConflict):
                self._versions[refusal.stream] = refusal.actual
        else:
            self._versions.update(versions)

    def _changes(self) -> list[Change]:
        own = f"{self._instructions.name}-{self._rng.randrange(OWN_STREAMS)}"
        if self._rng.random() < 0.02:
            return [on(own, self._versions.get(own, 0), takes(DISPUTED))]
        streams = [own] if self._rng.random() < 0.85 else []
        if not streams or self._rng.random() < 0.1:
            streams.append(f"shared-{self._rng.randrange(SHARED_STREAMS)}")
        count = self._rng.choice([1, 1, 2, 3, 8])
        return [on(stream, self._versions.get(stream, 0), *[plain()] * count) for stream in streams]

    async def _commit(self, changes: list[Change]) -> dict[str, int]:
        _, versions = await self._append(changes)
        await self._end()
        return versions

    async def _roll_back(self, changes: list[Change]) -> dict[str, int]:
        positions, _ = await self._append(changes)
        await self._conn.rollback()
        self._journal.write("undone", positions)
        return {}

    async def _release(self, changes: list[Change]) -> dict[str, int]:
        await self._conn.execute("savepoint command")
        _, versions = await self._append(changes)
        await self._conn.execute("release savepoint command")
        await self._end()
        return versions

    async def _repeat(self, changes: list[Change]) -> dict[str, int]:
        await self._conn.execute("savepoint command")
        positions, _ = await self._append(changes)
        await self._conn.execute("rollback to savepoint command")
        self._journal.write("undone", positions)
        return await self._commit(changes)

    async def _lose_backend(self, changes: list[Change]) -> dict[str, int]:
        await self._append(changes)
        await self._conn.execute("select pg_terminate_backend(pg_backend_pid())")
        raise AssertionError("a backend that terminated itself returned a result")

    async def _append(self, changes: list[Change]) -> tuple[list[int], dict[str, int]]:
        self._journal.write("append", [sum(len(change.facts) for change in changes)])
        recorded = await append(self._conn, changes, because())
        positions = [int(event.position) for event in recorded]
        self._journal.write("drew", positions)
        await self._delay()
        return positions, {event.stream: event.version for event in recorded}

    async def _delay(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            os.kill(os.getpid(), pending)
        if seconds := self._rng.choice(DELAYS):
            await dawdle(seconds)

    async def _end(self) -> None:
        self._journal.write("committing")
        await self._conn.commit()
        self._journal.write("committed")


async def connected(instructions: Instructions) -> psycopg.AsyncConnection:
    """Return a database connection of the writer; wait while the server is recovering."""
    while True:
        try:
            return await psycopg.AsyncConnection.connect(instructions.dsn, application_name=instructions.name)
        except psycopg.OperationalError:
            await asyncio.sleep(0.05)


def run(instructions: Instructions) -> None:
    """Append random commands to the ledger until the writer's instructions end it."""
    asyncio.run(_append(instructions))


async def _append(instructions: Instructions) -> None:
    await Writer(instructions, await connected(instructions)).run()
