"""A dispatcher of a bench, a process of its own as in a deployment.

It is told its settings in the first line of standard input, and then `run` and `stop` as often as the bench likes; it
answers each when that is done. It ends when its standard input does.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import msgspec
import structlog
import uvloop
from pydantic import SecretStr

from bench.lines import Told, told
from control_plane.followers import run_dispatcher
from control_plane.settings import Settings
from control_plane.wiring import Plane, plane, spare_collections

Word = Literal["run", "stop"]


class Dispatching(msgspec.Struct):
    """What a dispatcher must know of its deployment."""

    database_url: str
    redis_url: str
    signing_key_file: str


class Done(msgspec.Struct):
    """The answer."""


@asynccontextmanager
async def dispatcher(settings: Dispatching) -> AsyncIterator[Told]:
    """A process that is ready to run."""
    async with told("bench.dispatcher") as process:
        await process.ask(settings, Done)
        yield process


async def _run() -> None:
    given = msgspec.json.decode(sys.stdin.readline(), type=Dispatching)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(
            30
        ),  # a line for each batch would hide the progress
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    settings = Settings(
        database_url=SecretStr(given.database_url),
        redis_url=SecretStr(given.redis_url),
        signing_key_file=given.signing_key_file,
        deadline_grace_seconds=0.0,
    )
    spare_collections()
    async with plane(settings) as made:
        _say()
        await _obey(made)


async def _obey(made: Plane) -> None:
    running: asyncio.Task[None] | None = None
    while line := await asyncio.to_thread(sys.stdin.readline):
        if running is not None:
            if running.done():
                running.result()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            running = None
        if msgspec.json.decode(line, type=Word) == "run":
            running = asyncio.create_task(run_dispatcher(made))
        _say()
    if running is not None:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def _say() -> None:
    sys.stdout.write(msgspec.json.encode(Done()).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(_run())
