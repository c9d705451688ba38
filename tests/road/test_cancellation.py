"""Tests that the main loop of a program ends when it is cancelled, even if a library swallows the cancellation."""

import asyncio
import contextlib

import pytest

from control_plane.outage import rest


async def swallow_a_cancellation() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def test_cancelled_main_loop_of_a_program_ends_even_if_its_work_swallowed_the_cancellation() -> None:
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
