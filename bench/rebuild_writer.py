"""The appending side of the rebuild bench: connections that carry out commands from `begin` to `end`, without a break.

Each command is a survey that finds other hardware than the one before: it writes the row of a node and those of two of
its slots, in the road that every command takes. What is told of each is when it began and when it was committed, on
the clock that the machine's processes share.
"""

import asyncio
import sys
import time
from datetime import UTC, datetime
from itertools import count
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import create_async_engine

from control_plane.commands.nodes import Survey, expect_node, inspect_node
from control_plane.handle import Command, Decision, Handle, Transaction
from control_plane.origin import Origin
from control_plane.settings import SLICE_NETWORKS
from events.values import NodeId, new_uuid
from tasks.reports import FoundSlot, NodeSurveyed

Append = tuple[int, int]
"""When it began and when it was committed, in nanoseconds."""
SLOTS: Final = 2
_KINDS: Final = 7


class Writing(msgspec.Struct):
    """Where to write; the first line that the process gets."""

    url: str
    connections: int


class _Hand:
    """Appends about a node of its own."""

    def __init__(self, handle: Handle, number: int) -> None:
        self._handle, self._node = handle, NodeId(f"busy-{number}")
        self._turns = count()

    async def come_up(self) -> None:
        await self._handle(expect_node(self._node, f"the token of {self._node}", _origin(), SLICE_NETWORKS))

    async def write(self, appends: list[Append], over: asyncio.Event) -> None:
        """Until it is over; what was begun is finished."""
        while not over.is_set():
            command = self._surveyed(next(self._turns))
            began = time.monotonic_ns()
            await self._handle(command)
            appends.append((began, time.monotonic_ns()))

    def _surveyed(self, turn: int) -> Command:
        slots = tuple(
            FoundSlot(index=index, vcpus=1 + turn % _KINDS, memory_mib=96, network_device=f"tap{index}")
            for index in range(SLOTS)
        )
        body = NodeSurveyed(
            hostname=f"turn-{turn}", agent_version="1", simulated=True, images=(), missing=(), slots=slots
        )
        survey = Survey(self._node, body, _origin().at(datetime.now(UTC)))

        async def command(transaction: Transaction) -> Decision:
            return await inspect_node(transaction, survey)

        return command


async def _run() -> None:
    writing = msgspec.json.decode(sys.stdin.readline(), type=Writing)
    engine = create_async_engine(writing.url, pool_size=writing.connections, max_overflow=0)
    hands = [_Hand(Handle(engine, _nobody_is_woken), number) for number in range(writing.connections)]
    for hand in hands:
        await hand.come_up()
    _say(None)
    while await asyncio.to_thread(sys.stdin.readline):
        appends: list[Append] = []
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for hand in hands:
                group.create_task(hand.write(appends, over))
            _say(None)
            await asyncio.to_thread(sys.stdin.readline)
            over.set()
        _say(appends)
    await engine.dispose()


def _origin() -> Origin:
    return Origin("key:bench", "survey", new_uuid())


async def _nobody_is_woken() -> None:
    """Nobody follows this ledger."""


def _say(answer: object) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_run())
