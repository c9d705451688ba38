"""Creations of allocations that arrive at about the same time share transactions, so that their number per second is
not limited by the cost of one transaction.

A creation that arrives while fewer than `AT_ONCE` groups are being recorded is recorded at once, so that sharing delays
no request at a low rate. Those that arrive meanwhile wait until one of the groups ends, and are then recorded together.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from control_plane.commands.creating_together import Creation, create_together, may_share
from control_plane.commands.placing import create_allocation
from control_plane.handle import Handle, Outcome
from events.ledger.append import CommandKey

MOST_TOGETHER: Final = 64
"""Number of creations that share a transaction. More would delay each other more than they save."""
AT_ONCE: Final = 2
"""Number of groups that are recorded at the same time: one decides while the other waits for the disk."""


class _Waiting(NamedTuple):
    creation: Creation
    key: CommandKey | None
    done: asyncio.Future[Outcome | None]


class Creations:
    """Creations of allocations in one API process. Not thread-safe: used by one event loop."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._waiting: list[_Waiting] = []
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, creation: Creation, key: CommandKey | None) -> Outcome:
        """Create an allocation and return its outcome. Raises the refusal of `create_allocation`.

        If the calling task is cancelled, the creation may be recorded all the same, as with every command.
        """
        outcome = await self._together(creation, key) if may_share(creation.new) else None
        if outcome is None:
            outcome = await self._handle.run(create_allocation(*creation), key)
        return outcome

    async def _together(self, creation: Creation, key: CommandKey | None) -> Outcome | None:
        done: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(creation, key, done))
        if len(self._running) < AT_ONCE:
            task = asyncio.create_task(self._record())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return await done

    async def _record(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
            await self._record_group(group)

    async def _record_group(self, group: Sequence[_Waiting]) -> None:
        try:
            outcomes = await self._handle.run_together(
                [(each.creation, each.key) for each in group], create_together
            )
        except BaseException as error:
            for each in group:
                if not each.done.done():
                    each.done.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for each, outcome in zip(group, outcomes, strict=True):
            if not each.done.done():
                each.done.set_result(outcome)
