"""Limit of the time that a request waits for data. A request that reaches the limit is refused, and the caller can
retry.

A hanging appender delays readers by at most `TIME_LIMIT_SECONDS` (promise P29), so a request that waits longer waits
for something else: an unavailable database, or other requests. A refused request holds no resources until it is sent
again.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from control_plane.decisions.refusals import NotYetKnown, Objection

TIME_LIMIT_SECONDS: Final = 5.0


@asynccontextmanager
async def time_limit(code: str, reason: str) -> AsyncIterator[None]:
    """Limit the time of a `with` block to `TIME_LIMIT_SECONDS`. Raises `NotYetKnown` when the time is up."""
    allowed = asyncio.timeout(TIME_LIMIT_SECONDS)
    try:
        async with allowed:
            yield
    except TimeoutError:
        # A library's own timeout (of a pool or a socket) means something else and is passed on.
        if not allowed.expired():
            raise
        raise NotYetKnown(Objection(code, reason)) from None
