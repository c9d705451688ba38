"""The appending side of the rebuild benchmark: connections that execute commands without a pause.

Each command records a survey report with hardware different from the previous report. It writes the read model rows of
a node and of two of its slots, in the same way as any command of the control plane. For each command the process
reports when it began and when it was committed, on the clock that all processes of the machine share.
"""

import asyncio
import sys
import time
from datetime import UTC, datetime
from itertools import count
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import create_async_engine

from control_plane.commands.nodes import Survey, inspect_node, register_node
from control_plane.handle import Command, Decision, Handle, Transaction
from control_plane.origin import Origin
from control_plane.settings import SLICE_NETWORKS
from events.values import NodeId, new_uuid
from tasks.reports import FoundSlot, NodeSurveyed

Append = tuple[int, int]
"""Times at which a command began and was committed, in nanoseconds."""
SLOTS: Final = 2
_KINDS: Final = 7


class WriterSettings(msgspec.Struct):
    """Database URL and number of connections: the first line of the writing process's standard input."""

    url: str
    connections: int


class _Writer:
    """Executes commands that append events of one node, continuously."""

    def __init__(self, handle: Handle, number: int) -> None:
        self._handle, self._node = handle, NodeId(f"busy-{number}")
        self._turns = count()

    async def register_node(self) -> None:
        await self._handle(register_node(self._node, f"the token of {self._node}", _origin(), SLICE_NETWORKS))

    async def write(self, appends: list[Append], over: asyncio.Event) -> None:
        """Execute commands until `over` is set; a command that has begun is finished."""
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
    settings = msgspec.json.decode(sys.stdin.readline(), type=WriterSettings)
    engine = create_async_engine(settings.url, pool_size=settings.connections, max_overflow=0)
    writers = [_Writer(Handle(engine, _wake_no_follower), number) for number in range(settings.connections)]
    for writer in writers:
        await writer.register_node()
    _write_answer(None)
    while await asyncio.to_thread(sys.stdin.readline):
        appends: list[Append] = []
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.write(appends, over))
            _write_answer(None)
            await asyncio.to_thread(sys.stdin.readline)
            over.set()
        _write_answer(appends)
    await engine.dispose()


def _origin() -> Origin:
    return Origin("key:bench", "survey", new_uuid())


async def _wake_no_follower() -> None:
    """Do nothing after a commit: no program follows this ledger, so no program has to be woken."""


def _write_answer(answer: object) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_run())
