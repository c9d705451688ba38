"""`audit`: cost of the proof that the history was not changed (LED-7): verification of an export, delay of the heads,
and what the sealer costs appends.

Sealer, writer and verifier run in separate processes, as in a deployment. Each round measures, one after the other: the
verification of an export of the same ledger on one core; the time from the commit of each event to that of the head
which covers it, at a constant rate of events; and the rate of appends, alternately with the sealer running and without.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import psycopg

from bench.audit.verifier import Verified, VerifierSettings
from bench.harness.bench_process import BenchProcess, bench_process
from bench.harness.measure import (
    Bench,
    Measurement,
    Pair,
    Progress,
    Round,
    TakeRound,
    percentile,
    pooled_median,
    ratio,
    show,
)
from bench.harness.servers import bench_folder, migrated_postgres, sqlalchemy_url_of
from bench.ledger.histories import History
from bench.watch.writer import FACTS, Commit, Turn, WriterSettings
from control_plane.audit.export import compressed_export
from control_plane.audit.stored_tree import last_head
from control_plane.programs import SERVER, Program
from deploy.embedded.children import Child, installed_program
from deploy.embedded.postgres import PostgresServer
from deploy.embedded.redis import running_redis
from deploy.embedded.signing_key import ensure_sealing_key
from events.ledger.tail import Tail

ROUNDS: Final = 7
EVENTS: Final = 200_000
"""Number of events in the export that is verified."""
RATE: Final = 1_000
LAG_EVENTS: Final = 8_000
APPENDS: Final = 8_000
"""Number of events that one turn appends to measure the rate of appends."""
WARM_UP: Final = 200
"""Number of events that are appended before each turn and not measured."""
UNLIMITED: Final = 1_000_000
"""A rate that is never reached: each connection appends as soon as its last append has returned."""
CONNECTIONS: Final = 8
TIMEOUT_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.01


class RoundFailed(Exception):
    """The sealer exited or was too slow (the message has its log), or an export has a difference (which it names)."""


class _Site:
    """The servers of the benchmark, and the sealer, which can be started and stopped."""

    def __init__(
        self, server: PostgresServer, conn: psycopg.AsyncConnection, child: Child, tail: Tail
    ) -> None:
        self.server, self._conn, self._child, self._tail = server, conn, child, tail

    @contextmanager
    def sealing(self) -> Iterator[None]:
        """Run the sealer during a `with` block."""
        self._child.start()
        try:
            yield
        finally:
            self._child.stop()

    async def all_sealed(self) -> None:
        """Wait until every final position is sealed. Raises `RoundFailed` if the sealer has exited, or is too slow."""
        final = await self._tail.final()
        ends = time.monotonic() + TIMEOUT_SECONDS
        while await self._sealed() < final:
            if self._child.status is not None or time.monotonic() > ends:
                raise RoundFailed(
                    f"the sealer did not seal everything; its log:\n{self._child.log.read_text()}"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def _sealed(self) -> int:
        """Return the last sealed position, 0 if there is none."""
        newest = await last_head(self._conn)
        return 0 if newest is None else newest.head.size

    @staticmethod
    def lags(commits: Sequence[Commit], seen: Sequence[tuple[int, int]]) -> list[float]:
        """Return the milliseconds from the commit of each event to the time at which a head that covers its position
        was observed. `seen` has the size of each head and this time.
        """
        heads, found = iter(seen), list[float]()
        size, moment = next(heads)
        for position, committed in commits:
            while size < position:
                size, moment = next(heads)
            found.append((moment - committed) / 1e6)
        return found

    async def watch_heads(self, upto: asyncio.Future[int]) -> list[tuple[int, int]]:
        """Observe new heads until the position that is the result of the future `upto` is sealed. Return the size of
        each head, and the time in nanoseconds at which it was observed.
        """
        seen = list[tuple[int, int]]()
        while not upto.done() or not seen or seen[-1][0] < upto.result():
            size = await self._sealed()
            if not seen or size > seen[-1][0]:
                seen.append((size, time.monotonic_ns()))
            if self._child.status is not None:
                raise RoundFailed(f"the sealer exited; its log:\n{self._child.log.read_text()}")
            await asyncio.sleep(_POLL_SECONDS)
        return seen


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        server = opened.enter_context(migrated_postgres(folder))
        redis = opened.enter_context(running_redis(folder / "redis"))
        environment = {
            "SLICEPLANE_DATABASE_URL": sqlalchemy_url_of(server.sealer_dsn),
            "SLICEPLANE_SEALING_KEY_FILE": str(ensure_sealing_key(folder / "sealing.pem")),
            "SLICEPLANE_HEADS_FILE": str(folder / "heads.jws"),
        }
        child = Child("sealer", installed_program(SERVER, Program.SEALER), folder / "sealer.log", environment)
        conn = await opened.enter_async_context(
            await psycopg.AsyncConnection.connect(server.admin_dsn, autocommit=True)
        )
        tail = Tail(server.app_dsn, "bench")
        opened.push_async_callback(tail.close)
        site = _Site(server, conn, child, tail)
        show(f"recording and sealing {EVENTS} events\n")
        await History(server.app_dsn).grow(EVENTS, lambda _done: None)
        with site.sealing():
            await site.all_sealed()
        export = folder / "export.zst"
        await _export(server, export)
        # The file of the sealer gets further heads, which are not in the export.
        kept = Path(shutil.copy(folder / "heads.jws", folder / "kept.jws"))
        writer = await opened.enter_async_context(bench_process("bench.watch.writer"))
        await writer.request(WriterSettings(server.app_dsn, redis.url, CONNECTIONS), type(None))
        verifier = VerifierSettings(str(export), str(folder / "sealing.pem"), str(kept))

        async def take(number: int, progress: Progress) -> Round:
            verify_rate = await _verify_rate(verifier)
            progress(0.3)
            lags = await _lags(site, writer)
            progress(0.6)
            rates = await _append_rates(site, writer, sealer_first=number % 2 == 0)
            progress(1.0)
            return {"verify": [verify_rate], "lag": lags, **rates}

        yield take


async def _export(server: PostgresServer, path: Path) -> None:
    async with await psycopg.AsyncConnection.connect(server.admin_dsn) as conn:
        await conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        with path.open("wb") as file:
            async for piece in compressed_export(conn):
                file.write(piece)


async def _verify_rate(verifier: VerifierSettings) -> float:
    """Return the rows per second that one process verifies. Raises `RoundFailed` if the export has a difference."""
    async with bench_process("bench.audit.verifier") as process:
        found = await process.request(verifier, Verified, TIMEOUT_SECONDS)
    if found.differences or found.rows < EVENTS:
        raise RoundFailed(
            f"{found.rows} rows were verified, with these differences: {'; '.join(found.differences)}"
        )
    return found.rows / found.seconds


async def _lags(site: _Site, writer: BenchProcess) -> list[float]:
    await _append_rate(writer, WARM_UP)
    with site.sealing():
        # The sealer has started when it has sealed these events: the lag of a running sealer is measured.
        await site.all_sealed()
        upto: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        watching = asyncio.create_task(site.watch_heads(upto))
        try:
            commits = await writer.request(Turn(into_ledger=True, events=LAG_EVENTS, rate=RATE), list[Commit])
            upto.set_result(commits[-1][0])
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return site.lags(commits, await watching)
        finally:
            watching.cancel()


async def _append_rates(site: _Site, writer: BenchProcess, *, sealer_first: bool) -> Round:
    rates = {}
    for with_sealer in (sealer_first, not sealer_first):
        # Both sides begin with some appends. The sealer has started when it has sealed them: its start takes time of a
        # processor, which is not a cost of the appends of a deployment.
        await _append_rate(writer, WARM_UP)
        if with_sealer:
            with site.sealing():
                await site.all_sealed()
                rates["with_sealer"] = [await _append_rate(writer, APPENDS)]
        else:
            rates["without_sealer"] = [await _append_rate(writer, APPENDS)]
    return rates


async def _append_rate(writer: BenchProcess, events: int) -> float:
    commits = await writer.request(Turn(into_ledger=True, events=events, rate=UNLIMITED), list[Commit])
    moments = [moment for _, moment in commits]
    return (len(commits) - FACTS) / ((max(moments) - min(moments)) / 1e9)


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return (
        pooled_median("audit.verify_rate", rounds, "verify", "events/s"),
        percentile("audit.seal_lag_ms", rounds, "lag", "ms", 99),
        ratio("audit.append_cost", rounds, Pair("with_sealer", "without_sealer")),
    )


BENCH: Final = Bench(
    name="audit",
    explanation=(
        f"events verified per second on one core, p99 time from a commit to its head at {RATE} events/s, and the rate of"
        " appends with the sealer running against that without"
    ),
    shape=f"audit {EVENTS} events verified, {LAG_EVENTS} events at {RATE}/s, {APPENDS} events appended after {WARM_UP}",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
