"""Promise P29: a process that stops or idles between its append to the ledger and its commit delays readers by five
seconds at most.

The process holds the fence, the lock that makes readers wait for uncommitted positions. Settings of the application's
role limit how long it can hold the fence. The test measures the delay of the event that is committed next, with a real
process that is really stopped.
"""

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from multiprocessing.context import ForkServerProcess

import psycopg
import pytest

from events.ledger.append import append
from events.ledger.tail import Tail
from events.values import Position
from tests import matrix
from tests.faults import appender
from tests.ledger.given import because, committed, on
from tests.servers.postgres import Connect, Database
from tests.waiting import dawdle

pytestmark = [pytest.mark.slow]
BOUND_SECONDS = 5.0

Start = Callable[..., int]
"""Function that starts a process which appends to the ledger and then stops or idles. It returns the position that this
process keeps uncommitted.
"""


@pytest.fixture
def start(database: Database) -> Iterator[Start]:
    """Yield a function that starts a process which appends to the ledger and never commits. The processes are killed
    after the test.
    """
    # A copy of a process that has imported the appender starts in milliseconds.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([appender.__name__])
    started: list[ForkServerProcess] = []

    def start(how: appender.Behaviour, dsn: str = database.app_dsn) -> int:
        receiving, sending = processes.Pipe(duplex=False)
        with receiving:
            with sending:
                started.append(processes.Process(target=appender.run, args=(how, dsn, sending)))
                started[-1].start()
            return int(receiving.recv())

    yield start
    for process in started:
        process.kill()
        process.join()


@pytest.fixture
async def tail(database: Database) -> AsyncIterator[Tail]:
    tail = Tail(database.app_dsn)
    yield tail
    await tail.close()


async def followed(tail: Tail, event: Position) -> None:
    """Wait until a reader that follows the ledger has received the event."""
    position = Position(0)
    while position < event:
        position = (await tail.batch(position, 100)).final


async def final(tail: Tail, event: Position) -> None:
    """Wait until the event is final: no event with a lower position can still be committed."""
    while await tail.final() < event:
        await asyncio.sleep(0.05)


async def delay(
    tail: Tail, conn: psycopg.AsyncConnection, stream: str, until: Callable[[Tail, Position], Awaitable[None]]
) -> float:
    """Append an event. Return the seconds from its commit until `until` reports that the reader has the event."""
    (event,) = await committed(conn, on(stream, 0))
    began = time.monotonic()
    await until(tail, event.position)
    return time.monotonic() - began


@pytest.mark.parametrize("how", ["hang", "stop"])
async def test_one_stopped_or_idle_appender_delays_a_reader_of_the_ledger_by_less_than_five_seconds(
    how: appender.Behaviour, start: Start, tail: Tail, conn: psycopg.AsyncConnection
) -> None:
    held = start(how)
    assert (await tail.batch(Position(0), 10)).final < held
    seconds = await delay(tail, conn, "slot-a", followed)
    print(f"{how}: {seconds:.2f} s")
    assert 0.5 < seconds < BOUND_SECONDS


async def test_many_appenders_stopped_simultaneously_delay_a_reader_of_the_ledger_by_less_than_five_seconds(
    start: Start, tail: Tail, conn: psycopg.AsyncConnection
) -> None:
    await asyncio.gather(*(asyncio.to_thread(start, "stop") for _ in range(6)))
    seconds = await delay(tail, conn, "slot-a", followed)
    print(f"many at once: {seconds:.2f} s")
    assert 0.5 < seconds < BOUND_SECONDS


@pytest.mark.parametrize("until", [followed, final])
async def test_many_appenders_idling_in_turn_delay_a_reader_of_the_ledger_by_less_than_five_seconds(
    database: Database,
    tail: Tail,
    connect: Connect,
    until: Callable[[Tail, Position], Awaitable[None]],
) -> None:
    """At every moment of the test, one of the appenders holds the ledger's fence (an advisory lock)."""
    conn = await connect()
    async with holding_in_turn(database):
        delays = [
            await delay(tail, conn, f"slot-{number}", until) for number in range(2 if matrix.is_full() else 1)
        ]
    print(f"one after the other, until {until.__name__}: {[round(seconds, 2) for seconds in delays]}")
    assert min(delays) > 0.5, "there was a moment at which no appender held the fence"
    assert max(delays) < BOUND_SECONDS


@asynccontextmanager
async def holding_in_turn(database: Database, every: float = 0.7) -> AsyncIterator[None]:
    """Let appenders hold the ledger's fence (an advisory lock) in turn. A new appender starts every `every` seconds,
    and each one idles until the server ends its session.
    """
    async with AsyncExitStack() as opened:

        async def hold(number: int) -> None:
            conn = await psycopg.AsyncConnection.connect(database.app_dsn)
            opened.push_async_callback(conn.close)
            await append(conn, [on(f"idle-{number}", 0)], because())

        async def go_on() -> None:
            for number in count(1):
                await dawdle(every)
                await hold(number)

        await hold(0)
        going_on = asyncio.create_task(go_on())
        try:
            yield
        finally:
            going_on.cancel()
