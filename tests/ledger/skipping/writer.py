"""A writer as a process of its own: `python -m tests.ledger.skipping.writer`, its `Orders` on standard input.

It appends until the file `enough` exists, each command with a fate by its dice: committed at once or after dawdling,
rolled back, wrapped in a savepoint, undone to a savepoint and done again, or its backend gone. Asked by a signal it
dies (USR1) or stops (USR2) with an append done and no commit: where it holds readers back.
Most streams are its own, some it shares with all: there it is refused whenever another was first.
"""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec
import psycopg

from events.append import Change, append
from events.errors import LedgerRefusal, VersionConflict
from tests.ledger.given import because, on, plain, takes
from tests.ledger.skipping.journal import Journal
from tests.waiting import dawdle

OWN_STREAMS: Final = 20
SHARED_STREAMS: Final = 12
DISPUTED: Final = "lab-a/0"
"""Whoever comes first has this slot for ever, so that every other taker is refused, after its heads were checked."""
GONE: Final = (psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout)
DAWDLING: Final = (0.0,) * 16 + (0.002,) * 3 + (0.02,)


class Orders(msgspec.Struct, frozen=True):
    """`pause` is the mean of the seconds between two commands."""

    name: str
    dsn: str
    seed: int
    pause: float
    journal: str
    enough: str

    def has_enough(self) -> bool:
        return Path(self.enough).exists()


class Writer:
    def __init__(self, orders: Orders, conn: psycopg.AsyncConnection) -> None:
        self._orders, self._conn = orders, conn
        self._dice = random.Random(orders.seed)
        self._versions: dict[str, int] = {}
        self._asked: signal.Signals | None = None
        signal.signal(signal.SIGUSR1, lambda *_: self._ask(signal.SIGKILL))
        signal.signal(signal.SIGUSR2, lambda *_: self._ask(signal.SIGSTOP))
        self._journal = Journal(Path(orders.journal))  # Says that the signals are listened to.

    async def run(self) -> None:
        while not self._orders.has_enough():
            await dawdle(self._dice.expovariate(1 / self._orders.pause))
            try:
                await self._command()
            except GONE:
                self._journal.write("lost")
                await self._conn.close()
                self._conn = await connected(self._orders)
        await self._conn.close()

    def _ask(self, fate: signal.Signals) -> None:
        self._asked = fate

    async def _command(self) -> None:
        changes = self._changes()
        fates = (self._commit, self._release, self._do_again, self._roll_back, self._lose_backend)
        (fate,) = self._dice.choices(fates, (800, 80, 60, 50, 4))
        try:
            versions = await fate(changes)
        except LedgerRefusal as refusal:
            self._journal.write("refused")
            await self._conn.rollback()
            if isinstance(refusal, VersionConflict):
                self._versions[refusal.stream] = refusal.actual
        else:
            self._versions.update(versions)

    def _changes(self) -> list[Change]:
        own = f"{self._orders.name}-{self._dice.randrange(OWN_STREAMS)}"
        if self._dice.random() < 0.02:
            return [on(own, self._versions.get(own, 0), takes(DISPUTED))]
        streams = [own] if self._dice.random() < 0.85 else []
        if not streams or self._dice.random() < 0.1:
            streams.append(f"shared-{self._dice.randrange(SHARED_STREAMS)}")
        count = self._dice.choice([1, 1, 2, 3, 8])
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

    async def _do_again(self, changes: list[Change]) -> dict[str, int]:
        await self._conn.execute("savepoint command")
        positions, _ = await self._append(changes)
        await self._conn.execute("rollback to savepoint command")
        self._journal.write("undone", positions)
        return await self._commit(changes)

    async def _lose_backend(self, changes: list[Change]) -> dict[str, int]:
        await self._append(changes)
        await self._conn.execute("select pg_terminate_backend(pg_backend_pid())")
        raise AssertionError("a backend that ended itself answered")

    async def _append(self, changes: list[Change]) -> tuple[list[int], dict[str, int]]:
        self._journal.write("append", [sum(len(change.facts) for change in changes)])
        recorded = await append(self._conn, changes, because())
        positions = [int(event.position) for event in recorded]
        self._journal.write("drew", positions)
        await self._dawdle()
        return positions, {event.stream: event.version for event in recorded}

    async def _dawdle(self) -> None:
        if self._asked is not None:
            asked, self._asked = self._asked, None
            os.kill(os.getpid(), asked)
        if seconds := self._dice.choice(DAWDLING):
            await dawdle(seconds)

    async def _end(self) -> None:
        self._journal.write("committing")
        await self._conn.commit()
        self._journal.write("committed")


async def connected(orders: Orders) -> psycopg.AsyncConnection:
    """A connection; a server that is recovering is waited for."""
    while True:
        try:
            return await psycopg.AsyncConnection.connect(orders.dsn, application_name=orders.name)
        except psycopg.OperationalError:
            await asyncio.sleep(0.05)


async def main() -> None:
    orders = msgspec.json.decode(sys.stdin.buffer.read(), type=Orders)
    await Writer(orders, await connected(orders)).run()


if __name__ == "__main__":
    asyncio.run(main())
