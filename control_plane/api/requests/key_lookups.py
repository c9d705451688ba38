"""Look-ups of API keys, in batches: authentication must cost little of a read's throughput.

While many requests arrive at once, those of a short moment share one query. Every query begins after the requests that
it serves have arrived, so a key is refused from the commit of its revocation on.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.database import reading
from read_models import keys
from read_models.keys import KeyRow

MOMENT_SECONDS: Final = 0.01
_Found = dict[str, tuple[KeyRow, bool]]


class KeyLookups:
    """The look-ups of one API process. `is_busy` returns whether many requests arrive at present."""

    def __init__(self, engine: AsyncEngine, is_busy: Callable[[], bool]) -> None:
        self._engine, self._is_busy = engine, is_busy
        self._gathered: set[str] = set()
        self._reading: asyncio.Task[_Found] | None = None
        self._turn = asyncio.Lock()

    async def find(self, key_sha256: str) -> tuple[KeyRow, bool] | None:
        """Return the API key with this SHA-256 (hex), and whether it has expired; None for an unknown key."""
        if self._reading is None:
            self._gathered = set()
            self._reading = asyncio.create_task(self._read(self._gathered))
        self._gathered.add(key_sha256)
        # A disconnected caller must not cancel the look-ups of the others.
        return (await asyncio.shield(self._reading)).get(key_sha256)

    async def _read(self, gathered: set[str]) -> _Found:
        if self._is_busy():
            await asyncio.sleep(MOMENT_SECONDS)
        # One query at a time: while the database is slow, further look-ups join the next one.
        async with self._turn:
            self._reading = None
            async with reading(self._engine) as conn:
                return await keys.by_secrets(conn, gathered)
