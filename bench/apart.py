"""What a bench cannot bring up on its event loop."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


@asynccontextmanager
async def apart(manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave it in a thread of its own, which lives as long.

    pyroute2 runs a loop of its own where none may run already, and servers die with the thread that started them.
    """
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(max_workers=1) as thread:
        entered = loop.run_in_executor(thread, manager.__enter__)
        try:
            yield await asyncio.shield(entered)
        finally:
            # Whoever stops the bench meanwhile leaves nothing half up.
            await entered
            await loop.run_in_executor(thread, manager.__exit__, None, None, None)
