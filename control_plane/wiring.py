"""How a control plane process is put together: connections, the one road, and who follows the log."""

import gc
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog
from redis.asyncio import Redis
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.database import DatabaseUnavailable, engine_of
from control_plane.handle import Clock, Handle, database_time
from control_plane.redis_client import redis_client
from control_plane.settings import Settings
from control_plane.wake import RedisWake
from events.connection import ledger_connection
from events.fitness import refuse_unfit_server
from tasks.failpoints import arm_from

_YOUNG: Final = 20_000
"""New objects after which they are looked through for cycles."""


@dataclass(frozen=True, slots=True)
class Plane:
    """What every program of the control plane has."""

    settings: Settings
    engine: AsyncEngine
    redis: Redis
    handle: Handle


def spare_collections() -> None:
    """Have the collector of cycles look at less, and less often: an eighth of a dispatcher's time went there.

    What a program has when it starts it keeps, and facts, orders and rows point to nothing that points back.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, 10)


@asynccontextmanager
async def plane(settings: Settings, *, pool: int = 8, clock: Clock = database_time) -> AsyncIterator[Plane]:
    """Connect, refuse a server that the ledger's promises do not hold on, and close at the end.

    Raises `DatabaseUnavailable`, `UnfitServer`, `UnusableCertificate`.
    """
    arm_from(settings.failpoints)
    engine = engine_of(settings.database_url.get_secret_value(), pool)
    redis = redis_client(settings)
    try:
        await _refuse_unusable_database(engine)
        yield Plane(settings, engine, redis, Handle(engine, RedisWake(redis), clock))
    finally:
        await redis.aclose()
        await engine.dispose()


async def _refuse_unusable_database(engine: AsyncEngine) -> None:
    try:
        async with engine.connect() as conn:
            await refuse_unfit_server(await ledger_connection(conn))
    except DBAPIError as error:
        raise DatabaseUnavailable(engine.url, error) from error


def configure_logs(style: str) -> None:
    """Structured lines on standard error; `console` for people, `json` for machines."""
    # The process's own, not what a test puts in its place for a while: programs outlive that.
    stream = sys.__stderr__
    assert stream is not None, "the program has a standard error"
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if style == "console" else structlog.processors.JSONRenderer()
    )
    # The pool replaces connections that it finds broken, and whoever had one is told by an error of his own; its own
    # lines would be tracebacks between ours whenever Postgres restarts.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(file=stream),
    )
