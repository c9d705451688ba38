"""Process that appends to the ledger and never commits.

It appends an event and sends the event's position. Then, with its transaction open, it idles permanently (`hang`) or
stops itself as by SIGSTOP (`stop`).
"""

import asyncio
import os
import signal
from multiprocessing.connection import Connection
from typing import Literal

import psycopg

from events.ledger.append import append
from tests.ledger.given import because, on

Behaviour = Literal["hang", "stop"]


def run(how: Behaviour, dsn: str, positions: "Connection[int]") -> None:
    """Append an event to the ledger of the database `dsn`, send its position to `positions`, and never commit it."""
    asyncio.run(_run(how, dsn, positions))


async def _run(how: Behaviour, dsn: str, positions: "Connection[int]") -> None:
    conn = await psycopg.AsyncConnection.connect(dsn)
    (recorded,) = await append(conn, [on(f"appender-{os.getpid()}", 0)], because())
    positions.send(int(recorded.position))
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    await asyncio.Event().wait()
