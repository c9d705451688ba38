"""Helper processes of a benchmark: each reads JSON lines from standard input and answers on standard output.

A process ends when its standard input is closed, so none outlives the benchmark.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

TIMEOUT_SECONDS: Final = 60.0
LONGEST_LINE: Final = 2**28
_REPOSITORY: Final = Path(__file__).resolve().parents[2]
T = TypeVar("T")


class BenchProcess:
    """A helper process that exchanges JSON lines with the benchmark.

    Raises `TimeoutError` if an answer is late, and `EOFError` if the process has exited.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out, self._process = process.stdin, process.stdout, process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def request(self, message: object, answer: type[T], limit_seconds: float = TIMEOUT_SECONDS) -> T:
        """Send a message and return the process's next line, decoded as `answer`."""
        self._in.write(msgspec.json.encode(message) + b"\n")
        async with asyncio.timeout(limit_seconds):
            await self._in.drain()
            return await self.receive(answer)

    async def send(self, message: object) -> None:
        """Send a message that the process does not answer."""
        self._in.write(msgspec.json.encode(message) + b"\n")
        await self._in.drain()

    async def receive(self, answer: type[T]) -> T:
        """Wait, without a time limit, for the next line of the process, and return it decoded as `answer`."""
        line = await self._out.readline()
        if not line:
            raise EOFError(
                f"the benchmark process {self.pid} exited without an answer; its error output is above"
            )
        return msgspec.json.decode(line, type=answer)

    async def kill(self) -> None:
        """Kill the helper process with SIGKILL and wait for its exit."""
        self._process.kill()
        await self._process.wait()

    async def end(self) -> None:
        """Close the process's standard input and wait until the process has exited; kill it after a timeout."""
        self._in.close()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._process.communicate()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def bench_process(module: str) -> AsyncIterator[BenchProcess]:
    """Run a Python module as a separate process during a `with` block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.harness.helper", module),
        cwd=_REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LONGEST_LINE,
        start_new_session=True,  # Ctrl-C reaches the parent only, which then stops its processes in order
    )
    made = BenchProcess(process)
    try:
        yield made
    finally:
        await made.end()
