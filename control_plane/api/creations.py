"""Creations of allocations that arrive at about the same time share transactions, so that their number per second is
not limited by the cost of one transaction.

A creation that arrives while no other is being recorded or is waiting is recorded immediately, so that sharing delays
no request at a low rate. Other creations wait `WAIT_SECONDS`, or until `ENOUGH` are waiting, and are then recorded
together. They wait even if the current group ends earlier, because the transaction itself is most of the cost of a
small group. They wait longer while the process is recording its share of `GROUPS`.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from control_plane.commands.creating_together import CREATE_TOGETHER, Creation, may_share
from control_plane.commands.placing import create_allocation
from control_plane.handle import Handle, Outcome
from events.ledger.append import CommandKey

ENOUGH: Final = 64
"""Number of creations that form a group before `WAIT_SECONDS` have passed, and maximum number of creations in one
transaction. More creations would delay each other more than they save.
"""
GROUPS: Final = 2
"""Number of groups that are recorded at the same time, divided among the workers of an API program, with at least one
for each: one group is decided while another waits for the database. With more, groups would be smaller, and compete
for the same slots.
"""
WAIT_SECONDS: Final = 0.05
"""Time that a creation waits for others to share its transaction, unless no other is being recorded or is waiting.
Callers do not notice it. Without it, groups at 150 creations per second would contain only one or two creations.
"""


class _Waiting(NamedTuple):
    creation: Creation
    key: CommandKey | None
    done: asyncio.Future[Outcome | None]
    due: float
    """Time at which the creation need not wait for others any more, by the clock of the event loop."""


class Creations:
    """Records the creations of allocations that one API process of `workers` receives. Not thread-safe: one event loop
    uses it.
    """

    def __init__(self, handle: Handle, workers: int) -> None:
        self._handle, self._at_once = handle, max(1, GROUPS // workers)
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
        """Begin to record the waiting creations if they have waited long enough or are enough; else set the timer."""
        if not self._waiting or self._at_work >= self._at_once:
            return  # the end of a group calls this again
        loop, due = asyncio.get_running_loop(), self._waiting[0].due
        if len(self._waiting) >= ENOUGH or loop.time() >= due:
            group, self._waiting = self._waiting[:ENOUGH], self._waiting[ENOUGH:]
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
                [(each.creation, each.key) for each in group], CREATE_TOGETHER
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
