"""Leading: of several processes of a kind, one does what it makes no sense to do twice.

A lock says who, and it is held by a session: it ends with the process, and the server ends it when the process says
nothing for `SILENT_SECONDS`. Leading saves work and promises nothing. A leader that was stopped and goes on believes
that it leads; what makes that harmless is that its checkpoints are compared and set.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import psycopg
import structlog

from control_plane.outage import DATABASE_AWAY, rest

log = structlog.get_logger()
LEAD_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 5
"""After which the server ends a leader's session: a process that is stopped must not lead for ever."""


async def lead(dsn: str, name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run whenever nobody else does, until cancelled."""
    while True:
        try:
            await _leading(dsn, name, run)
        except DATABASE_AWAY as error:
            log.warning("leadership_lost", name=name, error=str(error))
        await rest(LEAD_SECONDS)


async def _leading(dsn: str, name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Wait to lead, and run for as long as the session that leads lives. Raises its end as a database error."""
    conn = await psycopg.AsyncConnection.connect(dsn, autocommit=True, application_name=f"lead {name}")
    async with conn:
        await conn.execute(f"set idle_session_timeout = '{SILENT_SECONDS}s'")
        while not await _lead(conn, name):
            await rest(LEAD_SECONDS)
        log.info("leading", name=name)
        running = asyncio.ensure_future(run())
        try:
            while not running.done():
                await conn.execute("select")
                await asyncio.wait([running], timeout=LEAD_SECONDS)
            await running
        finally:
            running.cancel()
            await asyncio.wait([running])


async def _lead(conn: psycopg.AsyncConnection, name: str) -> bool:
    row = await (await conn.execute("select ledger.lead(%s)", [name])).fetchone()
    return bool(row and row[0])
