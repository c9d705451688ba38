"""Construction of a control plane process: its connections and its command handler."""

import gc
import logging
import resource
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
from control_plane.following.wake import RedisWake
from control_plane.handle import Clock, Handle, database_time
from control_plane.queues.redis_client import redis_client
from control_plane.settings import ROLE, ProgramSettings, Settings
from events.ledger.connection import ledger_connection
from events.ledger.fitness import refuse_unfit_server
from events.ledger.personal import MasterKey, NoPersonalKey
from events.ledger.project_keys import refuse_other_master_key, use_master_key
from tasks.failpoints import arm_from

_HAS_ROLE: Final = "select pg_has_role(oid, 'member') from pg_roles where rolname = %s"
_YOUNG: Final = 20_000
"""Number of new objects after which the garbage collector runs."""


@dataclass(frozen=True, slots=True)
class Plane:
    """Settings, connections and command handler of a control plane program."""

    settings: Settings
    engine: AsyncEngine
    redis: Redis
    handle: Handle


class CannotListen(Exception):
    """A program cannot listen on an address of the settings; the message has the program, the address and the
    reason.
    """

    def __init__(self, address: str, error: OSError, program: str = "API") -> None:
        super().__init__(f"The {program} cannot listen on {address}: {error.strerror or error}")


class NoHostKey(Exception):
    """The SSH gateway has no usable host key; the message is a sentence for the operator."""


def reduce_garbage_collection() -> None:
    """Enable Python's garbage collector, but let it run less often and ignore the objects that exist at program start.

    With Python's defaults, it used an eighth of a dispatcher's time. It would find little: the objects that exist at
    program start are needed until the end, and facts, orders and rows do not form reference cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, 10)
    gc.enable()


def allow_connections() -> None:
    """Raise the limit of open files to the hard limit: each connection is an open file, and the usual soft limit is
    1,024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@asynccontextmanager
async def plane(settings: Settings, *, pool: int = 8, clock: Clock = database_time) -> AsyncIterator[Plane]:
    """Connect to the servers, refuse a database server that cannot keep the ledger's guarantees, and close the
    connections at the end.

    Raises `DatabaseUnavailable`, `UnfitServer`, `UnusableCertificate`, `NoPersonalKey`.
    """
    redis = redis_client(settings)
    try:
        async with database(settings, pool, role=ROLE) as engine:
            use_master_key(_master_key(settings))
            async with engine.connect() as conn:
                await refuse_other_master_key(await ledger_connection(conn))
            yield Plane(settings, engine, redis, Handle(engine, RedisWake(redis), clock))
    finally:
        await redis.aclose()


@asynccontextmanager
async def database(settings: ProgramSettings, pool: int, *, role: str) -> AsyncIterator[AsyncEngine]:
    """Connect to the database, and refuse a server that cannot keep the ledger's guarantees, and a user that is not a
    member of the role `role`.

    Raises `DatabaseUnavailable`, `UnfitServer`.
    """
    arm_from(settings.failpoints)
    engine = engine_of(settings.database_url.get_secret_value(), pool)
    try:
        await _refuse_unusable_database(engine, role)
        yield engine
    finally:
        await engine.dispose()


def _master_key(settings: Settings) -> MasterKey:
    if settings.personal_key_file is None:
        raise NoPersonalKey(
            "SLICEPLANE_PERSONAL_KEY_FILE is not set: name a file with 32 random bytes in Base64"
        )
    return MasterKey.of_file(settings.personal_key_file)


async def _refuse_unusable_database(engine: AsyncEngine, role: str) -> None:
    try:
        async with engine.connect() as conn:
            await refuse_unfit_server(await ledger_connection(conn))
            is_member = (await conn.exec_driver_sql(_HAS_ROLE, (role,))).scalar_one_or_none()
    except DBAPIError as error:
        # The first line names the server and the error; hints and further addresses follow on the other lines.
        raise DatabaseUnavailable(engine.url, str(error.orig).partition("\n")[0].rstrip(". ")) from error
    if not is_member:
        raise DatabaseUnavailable(engine.url, f"the program needs a user with the role {role}")


def configure_logs(style: str) -> None:
    """Log structured lines to standard error; `console` is for people, `json` for machines."""
    # Use the original stream of the process: a test may replace sys.stderr for a shorter time than the program runs.
    stream = sys.__stderr__
    assert stream is not None, "the program must have a standard error stream"
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if style == "console" else structlog.processors.JSONRenderer()
    )
    # The pool replaces broken connections, and the code that used one gets an error of its own. The pool's own log
    # would add tracebacks between the lines whenever Postgres restarts.
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
