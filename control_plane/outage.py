"""Errors that mean that Postgres or Redis is unavailable, restarts, or closed a connection: wait and retry.

This module also detects a cancellation that a library swallowed.
"""

import asyncio
from typing import Final

import psycopg
import redis.exceptions
import sqlalchemy as sa

# psycopg does not class the end of an idle transaction as an operational error (SQLSTATE 25P03), and SQLAlchemy wraps
# it. A pool without a free connection (`sa.exc.TimeoutError`) waits for the same reason.
DATABASE_UNAVAILABLE: Final = (
    psycopg.OperationalError,
    psycopg.errors.IdleInTransactionSessionTimeout,
    sa.exc.OperationalError,
    sa.exc.InternalError,
    sa.exc.TimeoutError,
    OSError,
)
# uvloop raises a bare RuntimeError for a connection that was closed while it was opened.
REDIS_UNAVAILABLE: Final = (redis.exceptions.RedisError, OSError, RuntimeError)


async def rest(seconds: float) -> None:
    """Sleep inside a loop that runs until it is cancelled.

    The Redis client swallows a cancellation that arrives when it has just sent a command: it sends with
    `asyncio.wait_for`, which in Python 3.11 then returns its result. Without this check the loop would run permanently
    and its program could not be stopped.
    """
    raise_if_cancelled()
    await asyncio.sleep(seconds)


def raise_if_cancelled() -> None:
    """Raise `CancelledError` if the current asyncio task was cancelled and a library swallowed the cancellation."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
