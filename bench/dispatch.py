"""`dispatch`: how fast orders go from the log to their nodes, how many a second, and what nodes cost that do nothing
(TSK-6).

*Idle*: from an append's commit to the first line of the handler on an idle node, over the whole road. Between two
samples everything falls idle for a random while, so that samples meet the polls and the ticks at any phase. The clock
starts when `handle`, with its commit done and nothing else after it, wakes the followers; it is one for all processes
of the machine. In turn with each sample Dramatiq's own consumer, on the same Redis, gets a message; its clock starts
right before the message is put on the queue.

*Relay* and *idle cost* have servers of their own, and say what they do.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dramatiq.brokers.redis import RedisBroker

from bench import stock
from bench.idle import Cost, idling
from bench.lines import Told
from bench.measure import (
    Bench,
    Measurement,
    Pair,
    Progress,
    Round,
    TakeRound,
    middle,
    percentile,
    ratio,
)
from bench.relay import Relaying, relaying
from bench.road import Road, begin_of, consuming, road
from bench.servers import bench_folder
from events.values import NodeId, new_uuid

ROUNDS: Final = 8
SAMPLES: Final = 30
WARM_UP: Final = 5
IDLE_SECONDS: Final = (0.3, 1.2)
"""Between samples, evenly spread: followers poll once a second when idle, and so do the dispatcher's ticks."""
COST_SECONDS: Final = 20.0
NODE: Final = NodeId("bench-a")
_OF_ROUND: Final = 0.7
"""The part of a round that the samples take."""


@dataclass(frozen=True, slots=True)
class _Sampling:
    """One road, and the stock consumer beside it."""

    made: Road
    node: Told
    broker: RedisBroker
    consumer: Told

    async def ours(self) -> float:
        """Milliseconds from commit to the handler's first line. Raises `TimeoutError` when it does not come."""
        allocation, committed = await self.made.place(NODE)
        return (await begin_of(self.node, allocation) - committed) / 1e6

    async def stock(self) -> float:
        name = str(new_uuid())
        enqueued = await asyncio.to_thread(stock.enqueue, self.broker, name)
        return (await begin_of(self.consumer, name) - enqueued) / 1e6

    async def round(self, progress: Progress, samples: int) -> Round:
        idle: list[float] = []
        stocks: list[float] = []
        for number in range(samples):
            progress(_OF_ROUND * number / samples)
            for found, sample in ((idle, self.ours), (stocks, self.stock)):
                await asyncio.sleep(random.uniform(*IDLE_SECONDS))
                found.append(await sample())
        return {"idle": idle, "stock": stocks}


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        sampling = await opened.enter_async_context(_sampling(folder / "road"))
        cost = await opened.enter_async_context(idling(folder / "idle"))
        relay = await opened.enter_async_context(relaying(folder / "relay"))

        async def take(_number: int, progress: Progress) -> Round:
            return await _round(sampling, cost, relay, progress)

        yield take


@asynccontextmanager
async def _sampling(folder: Path) -> AsyncIterator[_Sampling]:
    async with AsyncExitStack() as opened:
        made = await opened.enter_async_context(road(folder, [NODE]))
        node = await opened.enter_async_context(made.serving(made.queues))
        consumer = await opened.enter_async_context(consuming("bench.stock", stock.Consuming(made.redis.url)))
        await made.tell("run")
        sampling = _Sampling(made, node, stock.broker_of(made.redis.url), consumer)
        await sampling.round(lambda _done: None, WARM_UP)
        yield sampling


async def _round(sampling: _Sampling, cost: Cost, relay: Relaying, progress: Progress) -> Round:
    samples, commands = await asyncio.gather(sampling.round(progress, SAMPLES), cost(COST_SECONDS))
    rate = await relay.rate(lambda done: progress(_OF_ROUND + (1 - _OF_ROUND) * done))
    return {**samples, "idle_cost": [commands], "relay": [rate]}


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return (
        percentile("dispatch.idle_p50_ms", rounds, "idle", "ms", 50),
        percentile("dispatch.idle_p99_ms", rounds, "idle", "ms", 99),
        ratio("dispatch.ratio_stock", rounds, Pair("stock", "idle")),
        middle("dispatch.relay_rate", rounds, "relay", "1/s"),
        middle("dispatch.idle_cost", rounds, "idle_cost", "1/s"),
    )


BENCH: Final = Bench(
    name="dispatch",
    explanation="from a commit to the first line of the handler on an idle node; orders a second; cost of idle nodes",
    shape=f"dispatch {SAMPLES} samples, idle for {IDLE_SECONDS} s, cost over {COST_SECONDS} s",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
