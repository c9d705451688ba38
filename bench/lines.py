"""Other processes of a bench: each is told something in a line and answers in a line, for as long as it is needed.

A process ends when its standard input does, so none outlives the bench.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

PATIENCE: Final = 60.0
LONGEST_LINE: Final = 2**28
_REPOSITORY: Final = Path(__file__).resolve().parents[1]
T = TypeVar("T")


class Told:
    """A process that answers line by line. Raises `TimeoutError` when it is silent, `EOFError` when it ended."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out, self._process = process.stdin, process.stdout, process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, question: object, answer: type[T], patience: float = PATIENCE) -> T:
        self._in.write(msgspec.json.encode(question) + b"\n")
        async with asyncio.timeout(patience):
            await self._in.drain()
            return await self.hear(answer)

    async def hear(self, answer: type[T]) -> T:
        """The next line that it says by itself, however long that takes."""
        line = await self._out.readline()
        if not line:
            raise EOFError("a process of the bench ended")
        return msgspec.json.decode(line, type=answer)

    async def kill(self) -> None:
        """As `kill -9` does."""
        self._process.kill()
        await self._process.wait()

    async def end(self) -> None:
        """Its standard input ends, and so does it; or by force when it does not."""
        self._in.close()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._process.communicate()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def told(module: str) -> AsyncIterator[Told]:
    """A module run as a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        cwd=_REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LONGEST_LINE,
        start_new_session=True,  # a Ctrl-C is ours to turn into an orderly end
    )
    made = Told(process)
    try:
        yield made
    finally:
        await made.end()
