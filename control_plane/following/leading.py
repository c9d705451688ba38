"""Leader election: of several processes of one program, one does the work that is useless to do twice.

The leader holds an advisory lock in a database session. The lock ends with the process, and the server ends the session
when the process sends nothing for `SILENT_SECONDS`. Leadership saves work and guarantees nothing: a leader that was
suspended and resumes still acts as leader. This is harmless because checkpoints are advanced by compare-and-set.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import psycopg
import structlog

from control_plane.outage import DATABASE_UNAVAILABLE, rest
from events.ledger.connection import fetch_value

log = structlog.get_logger()
LEAD_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 5
"""Idle time after which the server ends a leader's session: a suspended process must not lead permanently."""


async def lead(dsn: str, name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Call `run` whenever this process becomes the leader under this name, until cancelled."""
    while True:
        try:
            await _leading(dsn, name, run)
        except DATABASE_UNAVAILABLE as error:
            log.warning("leadership_lost", program=name, error=str(error))
        await rest(LEAD_SECONDS)


async def _leading(dsn: str, name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Wait for leadership, then run until the leader session ends. Raises a database error when the session ends."""
    conn = await psycopg.AsyncConnection.connect(dsn, autocommit=True, application_name=f"lead {name}")
    async with conn:
        await conn.execute(f"set idle_session_timeout = '{SILENT_SECONDS}s'")
        while not await _lead(conn, name):
            await rest(LEAD_SECONDS)
        log.info("leadership_acquired", program=name)
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
    return bool(await fetch_value(conn, "select ledger.lead(%s)", [name]))
