"""A context manager that runs another context manager in a separate thread."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


@asynccontextmanager
async def in_own_thread(manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and exit `manager` in a separate thread that lives as long as the block.

    pyroute2 runs its own event loop, so it needs a thread without one. Servers end with the thread that started them,
    so this thread must live as long as they do.
    """
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(max_workers=1) as thread:
        entered = loop.run_in_executor(thread, manager.__enter__)
        try:
            yield await asyncio.shield(entered)
        finally:
            # If the benchmark is cancelled during the entry, complete the entry first, so that the exit can undo it.
            await entered
            await loop.run_in_executor(thread, manager.__exit__, None, None, None)
