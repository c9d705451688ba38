"""Look-ups of API keys and sessions, in batches: authentication must cost little of a read's throughput.

While many requests arrive at once, those of a short moment share one query. Every query begins after the requests that
it serves have arrived, so a key is refused from the commit of its revocation on. Keys and sessions have separate
queries.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Generic, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.database import reading

MOMENT_SECONDS: Final = 0.01
F = TypeVar("F")
BySecrets = Callable[[AsyncConnection, Collection[str]], Awaitable[Mapping[str, F]]]
"""Query for the credentials with these SHA-256 hashes (hex); it returns the existing ones, each by its hash."""


class Lookups(Generic[F]):
    """The look-ups of one kind of credentials in one API process. `is_busy` returns whether many requests arrive at
    present.
    """

    def __init__(self, engine: AsyncEngine, query: BySecrets[F], is_busy: Callable[[], bool]) -> None:
        self._engine, self._query, self._is_busy = engine, query, is_busy
        self._gathered: set[str] = set()
        self._reading: asyncio.Task[Mapping[str, F]] | None = None
        self._turn = asyncio.Lock()

    async def find(self, secret_sha256: str) -> F | None:
        """Return the credential with this SHA-256 (hex); None if it does not exist."""
        if self._reading is None:
            self._gathered = set()
            self._reading = asyncio.create_task(self._read(self._gathered))
        self._gathered.add(secret_sha256)
        # A disconnected caller must not cancel the look-ups of the others.
        return (await asyncio.shield(self._reading)).get(secret_sha256)

    async def _read(self, gathered: set[str]) -> Mapping[str, F]:
        if self._is_busy():
            await asyncio.sleep(MOMENT_SECONDS)
        # One query at a time: while the database is slow, further look-ups join the next one.
        async with self._turn:
            self._reading = None
            async with reading(self._engine) as conn:
                return await self._query(conn, gathered)
