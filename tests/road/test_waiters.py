"""Waits of the followers of the ledger: one that has read events pauses before it reads again, and an append wakes one
that waits for events.
"""

import asyncio

import pytest

from control_plane.following.wake import Waiter

NEVER = 3600.0


async def test_waiter_pauses_after_its_caller_found_events_even_if_it_was_woken() -> None:
    waiter = Waiter(NEVER, longest_rest=NEVER)
    await asyncio.to_thread(bool)  # the caller works for a moment
    waiter.wake()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await waiter.wait(busy=True)


async def test_waiter_returns_at_once_when_woken_after_its_caller_found_no_events() -> None:
    waiter = Waiter(NEVER, longest_rest=NEVER)
    waiter.wake()
    async with asyncio.timeout(5):
        await waiter.wait(busy=False)
