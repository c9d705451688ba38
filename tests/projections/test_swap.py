"""Tests that rebuilt read model tables are swapped in under load: no append is lost, fails or waits
for long (LED-9).
"""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from statistics import median

import psycopg
import pytest
from structlog.testing import capture_logs

from events.values import NodeId
from read_models.projections import PROJECTIONS
from tasks import reports
from tests.checks.files import ROOT
from tests.projections.eventually import eventually
from tests.projections.fleet import Fleet, living
from tests.projections.projector_process import open_rebuilds, projector
from tests.servers.postgres import Database
from tests.torture import count

pytestmark = [pytest.mark.slow]
APPENDERS, SWAPS, SLOTS = 4, count(6, usual_share=3), 2
ATTEMPTS = 4
"""Number of postponed attempts of a blocked swap during which appends are timed."""
BOUND_SECONDS = 0.3
"""Longest time that a swap may block appends, including its waits for locks; a loaded machine adds to it."""
NOISE_SECONDS = 0.7


@pytest.fixture
async def fleet(database: Database) -> AsyncIterator[Fleet]:
    """Simulated fleet with one node for each concurrent appender."""
    async with living(database, pool=APPENDERS + 4) as fleet:
        for number in range(APPENDERS):
            assert await fleet.register(_node(number))
            assert await fleet.enrol(_node(number), "first", "1")
        yield fleet


def _node(number: int) -> NodeId:
    return NodeId(f"node-{number}")


async def survey(fleet: Fleet, number: int, turn: int) -> float:
    """Report changed hardware of a node, which changes the read model rows of the node and of its slots. Return the
    seconds that this took.
    """
    found = tuple(
        reports.FoundSlot(index=index, vcpus=1 + turn % 7, memory_mib=96, network_device=f"slice{index}")
        for index in range(SLOTS)
    )
    body = reports.NodeSurveyed(
        hostname=f"turn-{turn}",
        agent_version="1",
        simulated=True,
        images=("lab-guest",),
        missing=(),
        slots=found,
    )
    began = time.monotonic()
    assert await fleet.report(_node(number), body)
    return time.monotonic() - began


class Appenders:
    """Concurrent asyncio tasks that append to the ledger as fast as possible, until the given work has ended."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._ended = fleet, False
        self.turns = [0] * APPENDERS
        self.longest = 0.0

    async def run(self, number: int) -> None:
        while not self._ended:
            took = await survey(self._fleet, number, self.turns[number])
            self.turns[number] += 1
            self.longest = max(self.longest, took)

    async def during(self, work: Awaitable[None]) -> None:
        tasks = [asyncio.ensure_future(self.run(number)) for number in range(APPENDERS)]
        try:
            await work
        finally:
            self._ended = True
            await asyncio.gather(*tasks)


async def test_appends_during_repeated_swaps_of_all_read_model_tables_succeed_and_none_is_lost(
    fleet: Fleet, database: Database
) -> None:
    async def swaps() -> None:
        for _ in range(SWAPS):
            await fleet.rebuild([*PROJECTIONS])

    appenders = Appenders(fleet)
    await appenders.during(swaps())

    print(f"{sum(appenders.turns)} appends, the longest took {appenders.longest * 1000:.0f} ms")
    assert min(appenders.turns) > SWAPS
    with psycopg.connect(database.admin_dsn) as conn:
        query = "select count(*) from ledger.event where type = %s"
        appended = conn.execute(query, ["node.inspected"]).fetchone()
        swapped = conn.execute(query, ["projection.rebuilt"]).fetchone()
    assert appended == (sum(appenders.turns),)
    assert swapped == (SWAPS * len(PROJECTIONS),)
    await fleet.project([each.name for each in PROJECTIONS.values() if not each.inline], 500)
    assert await fleet.verify() == ()


async def test_table_swap_blocked_by_a_reader_is_postponed_without_blocking_appends_and_ends_after_the_reader(
    fleet: Fleet, database: Database
) -> None:
    await survey(fleet, 0, 0)
    async with await psycopg.AsyncConnection.connect(database.admin_dsn) as reader:
        await reader.execute("select count(*) from read.slot")
        with capture_logs() as log:
            rebuilding = asyncio.ensure_future(fleet.rebuild(["slots"]))
            took: list[float] = []
            while [each["event"] for each in log].count("swap_of_rebuilt_tables_postponed") < ATTEMPTS:
                took.append(await survey(fleet, 0, 1 + len(took)))
                assert not rebuilding.done()
        longest = sorted(took)[-ATTEMPTS:]
        print(f"the longest appends beside it took {', '.join(f'{each * 1000:.0f}' for each in longest)} ms")
        # Each attempt delays one append; a slow disk may delay others.
        assert median(longest) < BOUND_SECONDS + NOISE_SECONDS
        await reader.rollback()
        await rebuilding
    assert await fleet.verify() == ()


@pytest.fixture
def swapper(database: Database) -> Iterator[subprocess.Popen[str]]:
    """Process that stopped in the middle of a swap of read model tables and holds all locks of the swap. It is killed
    after the test.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "tests.projections.stopped_swap"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(database.app_dsn)
        process.stdin.close()
        yield process
        process.kill()


async def output_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return (await asyncio.to_thread(process.stdout.readline)).strip()


async def test_process_stopped_during_a_read_model_swap_loses_its_transaction_and_appends_continue(
    fleet: Fleet, swapper: subprocess.Popen[str]
) -> None:
    assert await output_line(swapper) == "holds"
    took = await survey(fleet, 0, 1)
    print(f"the append behind a stopped swap took {took * 1000:.0f} ms")
    assert took < BOUND_SECONDS + NOISE_SECONDS
    swapper.send_signal(signal.SIGCONT)
    assert await output_line(swapper) in {"IdleInTransactionSessionTimeout", "OperationalError"}
    await fleet.rebuild(["slots"])
    assert await fleet.verify() == ()


async def test_projector_killed_during_a_swap_leaves_live_tables_unchanged_and_the_next_projector_finishes(
    fleet: Fleet, database: Database, tmp_path: Path
) -> None:
    for turn in range(5):
        await survey(fleet, 0, turn)
    before = live_set(database)
    await fleet.order_rebuild("slots")
    with projector(database, tmp_path / "first.log", "rebuild.before_exchange") as first:
        await asyncio.to_thread(first.await_end)
    assert live_set(database) == before
    assert open_rebuilds(database)

    assert await survey(fleet, 0, 6) < BOUND_SECONDS + NOISE_SECONDS
    with projector(database, tmp_path / "second.log"):
        await eventually(lambda: not open_rebuilds(database), "the next projector finishes the rebuild")

    assert live_set(database)[0] != before[0]
    assert await fleet.verify() == ()


def live_set(database: Database) -> tuple[object, list[tuple[object, ...]]]:
    """Return the object id and all rows of the live slot table `read.slot`."""
    with psycopg.connect(database.admin_dsn) as conn:
        row = conn.execute("select 'read.slot'::regclass::oid").fetchone()
        return row, conn.execute("select t::text from read.slot t order by 1").fetchall()
