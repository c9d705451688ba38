"""What it looks like when Postgres or Redis is away, restarts, or ended a connection of ours: wait, and begin again.

And what it looks like when a library loses our own wish to end.
"""

import asyncio
from typing import Final

import psycopg
import redis.exceptions
import sqlalchemy as sa

# Ending an idle transaction is no operational error to psycopg (SQLSTATE 25P03), and SQLAlchemy wraps what it saw.
# A pool with no connection to give (`sa.exc.TimeoutError`) waits for the same thing.
DATABASE_AWAY: Final = (
    psycopg.OperationalError,
    psycopg.errors.IdleInTransactionSessionTimeout,
    sa.exc.OperationalError,
    sa.exc.InternalError,
    sa.exc.TimeoutError,
    OSError,
)
# Of a connection that was closed while it was made, uvloop says so with a bare RuntimeError.
REDIS_AWAY: Final = (redis.exceptions.RedisError, OSError, RuntimeError)


async def rest(seconds: float) -> None:
    """Sleep, in a loop that runs until it is cancelled.

    Redis's client swallows a cancellation that meets it while it connects (`Connection.connect`): without a look
    at what was asked meanwhile, the loop would run for ever and its program could not be ended.
    """
    give_way()
    await asyncio.sleep(seconds)


def give_way() -> None:
    """End the task now if it was cancelled and somebody swallowed that. Raises `CancelledError`."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
