"""Sixteen processes that write to the ledger, and the faults that a random generator injects into them.

A killed writer is replaced by a new one with the same name. A stopped writer is continued when the other writers have
drawn a hundred positions, or (`stop_until_timeout`) only after the server has terminated its idle session. This module
starts the processes and waits for their ends.
"""

import asyncio
import multiprocessing
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

import psycopg

from tests.ledger.skipped_events import writer
from tests.ledger.skipped_events.journal import Account
from tests.ledger.skipped_events.writer import Instructions
from tests.servers.postgres import Database

WRITERS: Final = 16
PAUSE: Final = 0.02
FAULTS: Final = ("terminate", "kill", "kill_during_append", "stop", "stop_during_append")
POSITIONS_WHILE_STOPPED: Final = 100
"""Number of positions that the other writers draw while one writer is stopped."""
_END_SECONDS: Final = 30


class Crew:
    """Set of writer processes: starts them, injects faults into them and sums up their journals."""

    def __init__(self, database: Database, folder: Path, seed: int) -> None:
        self.injected: Counter[str] = Counter()
        self.rng = random.Random(seed)
        self._database, self._folder = database, folder
        # A copy of a process that has imported the writer starts in milliseconds.
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload([writer.__name__])
        self._running: dict[str, ForkServerProcess] = {}
        self._journals: dict[str, list[Path]] = {}
        self._faults = {
            "terminate": self._terminate,
            "kill": self._kill,
            "kill_during_append": self._kill_during_append,
            "stop": self._stop,
            "stop_during_append": self._stop_during_append,
            "stop_until_timeout": self._stop_until_timeout,
        }

    def start(self) -> None:
        for number in range(WRITERS):
            self._start(f"writer{number}")

    async def inject(self, fault: str) -> None:
        """Inject one fault into a random writer process. A fault `..._during_append` takes effect between an append of
        the writer and its commit.
        """
        name = self.rng.choice(sorted(self._running))
        while not self._journals[name][-1].exists():
            await asyncio.sleep(0.01)  # The writer has not installed its signal handlers yet.
        await self._faults[fault](name)
        self.injected[fault] += 1

    async def finish(self) -> Account:
        """Let the writer processes finish, and return the totals of their journals. Raises `AssertionError` if a writer
        failed.
        """
        (self._folder / "enough").touch()
        for name, process in self._running.items():
            ended = await _ended(process)
            assert ended == 0, f"{name} ended with exit status {ended}"
        account = Account()
        for journals in self._journals.values():
            for journal in journals:
                account.add(journal)
        return account

    def abandon(self) -> None:
        for process in self._running.values():
            process.kill()
            process.join()

    def _start(self, name: str) -> None:
        journal = self._folder / f"{name}.{len(self._journals.setdefault(name, []))}"
        self._journals[name].append(journal)
        instructions = Instructions(
            name,
            self._database.app_dsn,
            self.rng.getrandbits(32),
            PAUSE,
            str(journal),
            str(self._folder / "enough"),
        )
        self._running[name] = self._processes.Process(target=writer.run, args=(instructions,))
        self._running[name].start()

    async def _terminate(self, name: str) -> None:
        end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s"
        await self._query(end, name)

    async def _kill(self, name: str) -> None:
        await self._signal_and_replace(name, signal.SIGKILL)

    async def _kill_during_append(self, name: str) -> None:
        await self._signal_and_replace(name, signal.SIGUSR1)

    async def _signal_and_replace(self, name: str, number: signal.Signals) -> None:
        self._send(name, number)
        assert await _ended(self._running[name]) == -signal.SIGKILL
        self._start(name)

    async def _stop(self, name: str) -> None:
        await self._stop_for_a_while(name, signal.SIGSTOP)

    async def _stop_during_append(self, name: str) -> None:
        await self._stop_for_a_while(name, signal.SIGUSR2)

    async def _stop_for_a_while(self, name: str, number: signal.Signals) -> None:
        await self._stopped(name, number)
        drawn = await self._drawn()
        while await self._drawn() < drawn + POSITIONS_WHILE_STOPPED:
            await asyncio.sleep(0.005)
        self._send(name, signal.SIGCONT)

    async def _stop_until_timeout(self, name: str) -> None:
        """Stop a writer process while it holds the ledger's fence (an advisory lock), and continue it after the server
        has ended its session.
        """
        await self._stopped(name, signal.SIGUSR2)
        own_sessions = "select count(*) from pg_stat_activity where application_name = %s"
        while await self._query(own_sessions, name):
            await asyncio.sleep(0.05)
        self._send(name, signal.SIGCONT)

    async def _stopped(self, name: str, number: signal.Signals) -> None:
        process = self._running[name]
        self._send(name, number)
        while process.exitcode is None and _state(_pid(process)) != "T":
            await asyncio.sleep(0.005)
        assert process.exitcode is None, f"{name} ended instead of stopping"

    def _send(self, name: str, number: signal.Signals) -> None:
        os.kill(_pid(self._running[name]), number)

    async def _drawn(self) -> int:
        return await self._query("select last_value from ledger.position_seq")

    async def _query(self, query: str, *parameters: object) -> int:
        admin = await psycopg.AsyncConnection.connect(self._database.admin_dsn, autocommit=True)
        async with admin:
            row = await (await admin.execute(query, parameters)).fetchone()
        return int(row[0]) if row else 0


@contextmanager
def crew(database: Database, folder: Path, seed: int) -> Iterator[Crew]:
    """Run the writer processes. All of them have ended when the context ends."""
    made = Crew(database, folder, seed)
    try:
        made.start()
        yield made
    finally:
        made.abandon()


async def _ended(process: ForkServerProcess) -> int | None:
    """Wait until the writer process has ended, and return its exit status; return None if it runs for too long."""
    await asyncio.to_thread(process.join, _END_SECONDS)
    return process.exitcode


def _pid(process: ForkServerProcess) -> int:
    assert process.pid is not None
    return process.pid


def _state(pid: int) -> str:
    """Return the state of a process as one letter (proc(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
