"""Ledgers to measure on: what a fleet leaves behind in its life, in any length, the same from the same seed.

The fleet comes up first; then allocations live on it, many at once, one command of one of them after the other. Lanes
fill side by side, each with nodes and allocations of its own, so that no lane waits for another's streams. What a
lane records follows from the seed; how the lanes' events interleave, and what only the ledger gives (event ids, times
of recording), do not. Everything goes in through `append_many`, commands of several lives at once, which no reader
can tell.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import psycopg

from bench.lives import Life, World, allocation_lives, node_comes_up
from bench.measure import Progress
from events.append import Command
from events.append_many import append_many
from events.errors import LedgerRefusal

LANES: Final = 4
NODES: Final = 256
_CROWD: Final = 2
"""Allocations that live at once, for each node."""
_TOGETHER: Final = 25
"""Commands; one commit each would measure the disk."""


class History:
    """A fleet's history, growing in a ledger that nobody else writes to."""

    def __init__(self, dsn: str, *, seed: int = 1, nodes: int = NODES) -> None:
        self._dsn = dsn
        self._lanes = [
            _Lane(random.Random(f"{seed}/{number}"), range(number, nodes, LANES)) for number in range(LANES)
        ]

    @property
    def events(self) -> int:
        """How many were recorded."""
        return sum(lane.events for lane in self._lanes)

    async def grow(self, events: int, progress: Progress) -> int:
        """Record until there are so many events, or a few more; returns how many there are."""
        before = self.events

        def tell() -> None:
            progress(min(1.0, (self.events - before) / max(1, events - before)))

        async with AsyncExitStack() as opened, asyncio.TaskGroup() as group:
            for lane in self._lanes:
                conn = await opened.enter_async_context(await psycopg.AsyncConnection.connect(self._dsn))
                group.create_task(lane.grow(conn, -(-events // LANES), tell))
        return self.events


class _Lane:
    """Some of the nodes, and the allocations that live there."""

    def __init__(self, chance: random.Random, nodes: range) -> None:
        self.events = 0
        self._world = World(chance)
        self._crowd = _CROWD * len(nodes)
        self._due: list[tuple[Life, Command]] = []
        for number in nodes:
            self._begin(node_comes_up(self._world, number))

    async def grow(self, conn: psycopg.AsyncConnection, events: int, tell: Callable[[], None]) -> None:
        while self.events < events:
            async with conn.transaction():
                await self._step(conn)
            tell()

    def _begin(self, life: Life) -> None:
        self._due.append((life, next(life)))

    async def _step(self, conn: psycopg.AsyncConnection) -> None:
        """Carry out the next command of some of the lives, which have nothing in common."""
        while len(self._due) < self._crowd and (slots := self._world.take_slots()):
            self._begin(allocation_lives(self._world, slots))
        chosen = self._world.chance.sample(range(len(self._due)), min(_TOGETHER, len(self._due)))
        outcomes = await append_many(conn, [self._due[each][1] for each in chosen])
        ended = []
        for each, told in zip(chosen, outcomes, strict=True):
            if isinstance(told, LedgerRefusal):
                raise told
            self.events += len(told)
            life, _ = self._due[each]
            try:
                self._due[each] = life, life.send(told)
            except StopIteration:
                ended.append(each)
        for each in sorted(ended, reverse=True):
            self._due[each] = self._due[-1]
            self._due.pop()
