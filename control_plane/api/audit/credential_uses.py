"""The last use of each credential of callers: collected in memory, and written in the background once per interval.

A request only sets an entry of a dictionary. One statement writes the credentials that were used in the interval, so
the stored time is late by at most the interval. A process that is killed loses the uses of its last interval.
"""

import asyncio
import time
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.outage import DATABASE_UNAVAILABLE, rest
from control_plane.work.credential_uses import Use, store

log = structlog.get_logger()
LAST_SECONDS: Final = 2.0
"""Maximum duration of one write, also of the last one when the process ends."""


class CredentialUses:
    """The uses of credentials in one API process. `run` must run beside the application. Not thread-safe: used by one
    event loop.

    `seconds` is the interval between two writes. While the database is unavailable, the uses stay in memory: at most
    one use for each existing credential.
    """

    def __init__(self, engine: AsyncEngine, seconds: float) -> None:
        self._engine, self._seconds = engine, seconds
        self._uses: dict[str, Use] = {}

    def note(self, credential: str, source: str | None) -> None:
        """Note a request with this verified credential, sent from the client address `source`."""
        self._uses[credential] = Use(time.monotonic(), source)

    async def run(self) -> None:
        """Write the collected uses once per interval until cancelled, and then write the uses that are left."""
        try:
            while True:
                await rest(self._seconds)
                await self._write()
        finally:
            await self._write()

    async def _write(self) -> None:
        """Write the collected uses. After an error, keep each use for the next write, unless its credential was used
        again since.
        """
        uses, self._uses = self._uses, {}
        if not uses:
            return
        try:
            async with asyncio.timeout(LAST_SECONDS), self._engine.begin() as conn:
                await store(conn, uses)
        except DATABASE_UNAVAILABLE as error:
            self._uses = uses | self._uses
            log.warning("times_of_credential_use_not_stored", error=str(error), unstored=len(self._uses))
        except BaseException:
            self._uses = uses | self._uses
            raise
