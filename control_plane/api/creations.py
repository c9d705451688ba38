"""Creations of allocations that arrive at about the same time share transactions, so that their number per second is
not limited by the cost of one transaction.

A creation that arrives while none is being recorded or waits is recorded at once, so that sharing delays no request at
a low rate. Those that arrive meanwhile wait a moment, also if the group at work ends before, and are then recorded
together: most of the processor time of a small group is that of its transaction. Waiting creations also form a group
as soon as they are many.
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
MANY: Final = 24
"""Number of creations that do not wait for more of them."""
WAIT_SECONDS: Final = 0.025
"""Time for which a creation that arrives during the recording of others waits for more of them. It is a fraction of the
time that callers notice; without it, a group at 150 creations per second would have one or two of them.
"""


class _Waiting(NamedTuple):
    creation: Creation
    key: CommandKey | None
    done: asyncio.Future[Outcome | None]
    due: float
    """Time at which the creation need not wait for others any more, by the clock of the event loop."""


class Creations:
    """Creations of allocations in one API process. Not thread-safe: used by one event loop."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._waiting: list[_Waiting] = []
        self._running: set[asyncio.Task[None]] = set()
        self._at_work = 0
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, creation: Creation, key: CommandKey | None) -> Outcome:
        """Create an allocation and return its outcome. Raises the refusal of `create_allocation`.

        If the calling task is cancelled, the creation may be recorded all the same, as with every command.
        """
        outcome = await self._together(creation, key) if may_share(creation.new) else None
        if outcome is None:
            outcome = await self._handle.run(create_allocation(*creation), key)
        return outcome

    async def _together(self, creation: Creation, key: CommandKey | None) -> Outcome | None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Outcome | None] = loop.create_future()
        is_alone = not self._waiting and not self._at_work
        self._waiting.append(_Waiting(creation, key, done, loop.time() + (0 if is_alone else WAIT_SECONDS)))
        self._begin_if_due()
        return await done

    def _begin_if_due(self) -> None:
        """Begin to record the waiting creations if they have waited long enough or are many; else set the timer."""
        if not self._waiting or self._at_work >= AT_ONCE:
            return  # the end of a group calls this again
        loop, due = asyncio.get_running_loop(), self._waiting[0].due
        if len(self._waiting) >= MANY or loop.time() >= due:
            group, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
            self._at_work += 1
            task = asyncio.create_task(self._record(group))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        elif self._timer is None:
            self._timer = loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._begin_if_due()

    async def _record(self, group: Sequence[_Waiting]) -> None:
        try:
            await self._record_group(group)
        finally:
            self._at_work -= 1
            self._begin_if_due()

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
