"""Sixteen writer processes and what befalls them, by dice.

The crew owns its processes and reaps them. A killed writer is followed by another under the same name; one that was
stopped goes on when the others have drawn some hundred positions, or only after its server has lost patience.
"""

import asyncio
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import psycopg

from tests.checks.files import ROOT
from tests.ledger.skipping.journal import Account
from tests.ledger.skipping.writer import Orders
from tests.servers.postgres import Database

WRITERS: Final = 16
PAUSE: Final = 0.02
FAULTS: Final = ("terminate", "kill", "die_holding", "stop", "stop_holding")
MEANWHILE: Final = 100
"""Positions that others draw while one is stopped."""


class Crew:
    def __init__(self, database: Database, folder: Path, seed: int) -> None:
        self.befallen: Counter[str] = Counter()
        self.dice = random.Random(seed)
        self._database, self._folder = database, folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._journals: dict[str, list[Path]] = {}
        self._faults = {
            "terminate": self._terminate,
            "kill": self._kill,
            "die_holding": self._die_holding,
            "stop": self._stop,
            "stop_holding": self._stop_holding,
            "outstay": self._outstay,
        }

    def start(self) -> None:
        for number in range(WRITERS):
            self._start(f"writer{number}")

    async def suffer(self, fault: str) -> None:
        """One fault for one writer, at an arbitrary moment or (`..._holding`) between its append and its commit."""
        name = self.dice.choice(sorted(self._running))
        while not self._journals[name][-1].exists():
            await asyncio.sleep(0.01)  # not yet listening to signals
        await self._faults[fault](name)
        self.befallen[fault] += 1

    async def finish(self) -> Account:
        """Let them end their commands, and tell what they did. Raises `AssertionError` for one that failed."""
        (self._folder / "enough").touch()
        for name, process in self._running.items():
            ended = await asyncio.to_thread(process.wait, 30)
            assert ended == 0, f"{name} ended with {ended}"
        account = Account()
        for journals in self._journals.values():
            for journal in journals:
                account.add(journal)
        return account

    def abandon(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def _start(self, name: str) -> None:
        journal = self._folder / f"{name}.{len(self._journals.setdefault(name, []))}"
        self._journals[name].append(journal)
        orders = Orders(
            name,
            self._database.app_dsn,
            self.dice.getrandbits(32),
            PAUSE,
            str(journal),
            str(self._folder / "enough"),
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.ledger.skipping.writer"], cwd=ROOT, stdin=subprocess.PIPE
        )
        self._running[name] = process
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(orders))
        process.stdin.close()

    async def _terminate(self, name: str) -> None:
        end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s"
        await self._ask(end, name)

    async def _kill(self, name: str) -> None:
        await self._signal_and_replace(name, signal.SIGKILL)

    async def _die_holding(self, name: str) -> None:
        await self._signal_and_replace(name, signal.SIGUSR1)

    async def _signal_and_replace(self, name: str, number: signal.Signals) -> None:
        self._running[name].send_signal(number)
        assert await asyncio.to_thread(self._running[name].wait, 30) == -signal.SIGKILL
        self._start(name)

    async def _stop(self, name: str) -> None:
        await self._stop_for_a_while(name, signal.SIGSTOP)

    async def _stop_holding(self, name: str) -> None:
        await self._stop_for_a_while(name, signal.SIGUSR2)

    async def _stop_for_a_while(self, name: str, number: signal.Signals) -> None:
        await self._stopped(name, number)
        drawn = await self._drawn()
        while await self._drawn() < drawn + MEANWHILE:
            await asyncio.sleep(0.005)
        self._running[name].send_signal(signal.SIGCONT)

    async def _outstay(self, name: str) -> None:
        """Stopped while it holds the fence, until the server has ended its session."""
        await self._stopped(name, signal.SIGUSR2)
        mine = "select count(*) from pg_stat_activity where application_name = %s"
        while await self._ask(mine, name):
            await asyncio.sleep(0.05)
        self._running[name].send_signal(signal.SIGCONT)

    async def _stopped(self, name: str, number: signal.Signals) -> None:
        process = self._running[name]
        process.send_signal(number)
        while process.poll() is None and _state(process.pid) != "T":
            await asyncio.sleep(0.005)
        assert process.returncode is None, f"{name} ended instead of stopping"

    async def _drawn(self) -> int:
        return await self._ask("select last_value from ledger.position_seq")

    async def _ask(self, query: str, *parameters: object) -> int:
        admin = await psycopg.AsyncConnection.connect(self._database.admin_dsn, autocommit=True)
        async with admin:
            row = await (await admin.execute(query, parameters)).fetchone()
        return int(row[0]) if row else 0


@contextmanager
def crew(database: Database, folder: Path, seed: int) -> Iterator[Crew]:
    """Writers at work; none is left at the end."""
    made = Crew(database, folder, seed)
    try:
        made.start()
        yield made
    finally:
        made.abandon()


def _state(pid: int) -> str:
    """One letter, as in proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
