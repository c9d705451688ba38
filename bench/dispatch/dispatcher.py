"""A dispatcher for a benchmark, in a separate process as in a deployment.

The first line of standard input holds its settings. Each later line is an instruction, `run` or `stop`. The process
answers each line when the instruction is done, and ends when its standard input is closed.
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

from bench.harness.bench_process import BenchProcess, bench_process
from control_plane.dispatcher.dispatcher_program import run_dispatcher
from control_plane.settings import Settings
from control_plane.wiring import Plane, plane, reduce_garbage_collection

Instruction = Literal["run", "stop"]


class DispatcherSettings(msgspec.Struct):
    """Settings of the deployment that a dispatcher needs."""

    database_url: str
    redis_url: str
    signing_key_file: str


class Done(msgspec.Struct):
    """The dispatcher process's answer to an instruction."""


@asynccontextmanager
async def dispatcher(settings: DispatcherSettings) -> AsyncIterator[BenchProcess]:
    """Start a dispatcher process that is ready for instructions."""
    async with bench_process("bench.dispatch.dispatcher") as process:
        await process.request(settings, Done)
        yield process


async def _run() -> None:
    given = msgspec.json.decode(sys.stdin.readline(), type=DispatcherSettings)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(
            30
        ),  # warnings only: a line for each batch would hide the progress display
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    settings = Settings(
        database_url=SecretStr(given.database_url),
        redis_url=SecretStr(given.redis_url),
        signing_key_file=given.signing_key_file,
        deadline_grace_seconds=0.0,
    )
    reduce_garbage_collection()
    async with plane(settings) as made:
        _answer()
        await _execute_instructions(made)


async def _execute_instructions(made: Plane) -> None:
    running: asyncio.Task[None] | None = None
    while line := await asyncio.to_thread(sys.stdin.readline):
        if running is not None:
            if running.done():
                running.result()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            running = None
        if msgspec.json.decode(line, type=Instruction) == "run":
            running = asyncio.create_task(run_dispatcher(made))
        _answer()
    if running is not None:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def _answer() -> None:
    sys.stdout.write(msgspec.json.encode(Done()).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(_run())
