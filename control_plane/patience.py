"""How long a request waits for what it needs to know, and what it is told when that is too long.

An appender that hangs delays readers for so long at most (P29), so who waits longer waits for something else: a
database that is away, or others who wait. They are told to come again, and keep nothing meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from control_plane.decisions.refusals import NotYetKnown, Objection

PATIENCE_SECONDS: Final = 5.0


@asynccontextmanager
async def patience(code: str, why: str) -> AsyncIterator[None]:
    """End what takes longer than `PATIENCE_SECONDS`. Raises `NotYetKnown` then."""
    allowed = asyncio.timeout(PATIENCE_SECONDS)
    try:
        async with allowed:
            yield
    except TimeoutError:
        # A library's own time limit (a pool's, a socket's) says something else.
        if not allowed.expired():
            raise
        raise NotYetKnown(Objection(code, why)) from None
