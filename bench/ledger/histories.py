"""Generator of ledgers for benchmarks: the event history of a fleet, of any length, reproducible from a seed.

The history begins with the registration of the nodes. Then many allocations exist on them at the same time, each with
one command after the other. Several writers ("lanes") append concurrently; each has its own nodes and allocations, so
that none waits for another writer's streams. The seed determines what each writer records. It does not determine how
the writers' events interleave, nor values that the ledger assigns (event ids, recording times). One commit contains the
commands of several nodes and allocations, which makes no difference to readers.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import psycopg

from bench.harness.measure import Progress
from bench.ledger.lifecycles import PROJECTS, Lifecycle, World, allocation_lifecycle, node_lifecycle
from events.ledger.append import LedgerCommand, append
from events.ledger.project_keys import keys_for

LANES: Final = 4
NODES: Final = 256
_ALLOCATIONS_PER_NODE: Final = 2
"""Number of allocations per node that exist at the same time."""
_COMMANDS_PER_COMMIT: Final = 25
"""Commands per commit: one commit for each command would measure the disk."""


class History:
    """Generated event history of a fleet, appended to a ledger that has no other writers."""

    def __init__(self, dsn: str, *, seed: int = 1, nodes: int = NODES) -> None:
        self._dsn = dsn
        self._lanes = [
            _Lane(random.Random(f"{seed}/{number}"), range(number, nodes, LANES)) for number in range(LANES)
        ]

    @property
    def events(self) -> int:
        """Return the number of recorded events."""
        return sum(lane.events for lane in self._lanes)

    async def grow(self, events: int, progress: Progress) -> int:
        """Append events until the ledger has at least `events`. Return their number, which may be slightly larger."""
        before = self.events

        def report() -> None:
            progress(min(1.0, (self.events - before) / max(1, events - before)))

        # A commit has appends of several projects. Lanes that create their keys in different orders would deadlock.
        async with await psycopg.AsyncConnection.connect(self._dsn) as conn:
            await keys_for(conn, PROJECTS)
        async with AsyncExitStack() as opened, asyncio.TaskGroup() as group:
            for lane in self._lanes:
                conn = await opened.enter_async_context(await psycopg.AsyncConnection.connect(self._dsn))
                group.create_task(lane.grow(conn, -(-events // LANES), report))
        return self.events


class _Lane:
    """One of several concurrent writers of the history, with its own nodes and the allocations on them."""

    def __init__(self, rng: random.Random, nodes: range) -> None:
        self.events = 0
        self._world = World(rng)
        self._crowd = _ALLOCATIONS_PER_NODE * len(nodes)
        self._due: list[tuple[Lifecycle, LedgerCommand]] = []
        for number in nodes:
            self._begin(node_lifecycle(self._world, number))

    async def grow(self, conn: psycopg.AsyncConnection, events: int, report: Callable[[], None]) -> None:
        while self.events < events:
            async with conn.transaction():
                await self._step(conn)
            report()

    def _begin(self, life: Lifecycle) -> None:
        self._due.append((life, next(life)))

    async def _step(self, conn: psycopg.AsyncConnection) -> None:
        """Append the next commands of several nodes and allocations in one commit. These commands share no streams."""
        while len(self._due) < self._crowd and (slots := self._world.take_slots()):
            self._begin(allocation_lifecycle(self._world, slots))
        chosen = self._world.rng.sample(range(len(self._due)), min(_COMMANDS_PER_COMMIT, len(self._due)))
        ended = []
        for each in chosen:
            life, command = self._due[each]
            recorded = await append(
                conn, command.changes, command.cause, key=command.key, answer=command.answer
            )
            self.events += len(recorded)
            try:
                self._due[each] = life, life.send(recorded)
            except StopIteration:
                ended.append(each)
        for each in sorted(ended, reverse=True):
            self._due[each] = self._due[-1]
            self._due.pop()
