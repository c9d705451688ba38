"""A program that is told to end does so, whatever its libraries make of that."""

import asyncio
import contextlib

import pytest

from control_plane.outage import rest


async def swallow_a_cancellation() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def test_a_loop_whose_work_swallowed_its_cancellation_ends_all_the_same() -> None:
    async def loop() -> None:
        while True:
            await swallow_a_cancellation()
            await rest(3600)

    running = asyncio.create_task(loop())
    await asyncio.sleep(0)
    running.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await running
