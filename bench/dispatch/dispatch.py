"""`dispatch`: latency from the ledger to the nodes, orders per second, and the cost of idle nodes (TSK-6).

*Idle* is the time from an append's commit to the first line of the order's handler on an idle node, over the complete
path. A random pause between two samples spreads the samples over the intervals between polls. The clock starts directly
after the commit, when the writer wakes the processes that follow the ledger; all processes of the machine share this
clock. The samples alternate with those of Dramatiq's own consumer on the same Redis; its clock starts directly before
the enqueue.

*Relay* and *idle cost* use separate servers; see `bench.dispatch.relay` and `bench.dispatch.idle`.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dramatiq.brokers.redis import RedisBroker

from bench.dispatch import stock
from bench.dispatch.dispatch_path import DispatchPath, consumer_process, dispatch_path, handler_start
from bench.dispatch.idle import Cost, idle_nodes
from bench.dispatch.relay import Relay, running_relay
from bench.harness.bench_process import BenchProcess
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
)
from bench.harness.servers import bench_folder
from events.values import NodeId, new_uuid

ROUNDS: Final = 8
SAMPLES: Final = 30
WARM_UP: Final = 5
IDLE_SECONDS: Final = (0.3, 1.2)
"""Range, in seconds, of the random pause before each order. When nothing happens, followers and the dispatcher look for
work once per second: a random pause begins an order at any time between two of these moments.
"""
COST_SECONDS: Final = 20.0
NODE: Final = NodeId("bench-a")
_SAMPLES_SHARE: Final = 0.7
"""Fraction of a round that the samples take."""


@dataclass(frozen=True, slots=True)
class _Sampling:
    """Processes of the latency measurement: a dispatch path, its node, and Dramatiq's own broker and consumer."""

    path: DispatchPath
    node: BenchProcess
    broker: RedisBroker
    consumer: BenchProcess

    async def ledger_latency(self) -> float:
        """Place an allocation. Return milliseconds from its commit to the first line of the order's handler.

        Raises `TimeoutError`.
        """
        allocation, committed = await self.path.place(NODE)
        return (await handler_start(self.node, allocation) - committed) / 1e6

    async def stock_latency(self) -> float:
        name = str(new_uuid())
        enqueued = await asyncio.to_thread(stock.enqueue, self.broker, name)
        return (await handler_start(self.consumer, name) - enqueued) / 1e6

    async def round(self, progress: Progress, samples: int) -> Round:
        idle: list[float] = []
        stocks: list[float] = []
        for number in range(samples):
            progress(_SAMPLES_SHARE * number / samples)
            for found, sample in ((idle, self.ledger_latency), (stocks, self.stock_latency)):
                await asyncio.sleep(random.uniform(*IDLE_SECONDS))
                found.append(await sample())
        return {"idle": idle, "stock": stocks}


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        sampling = await opened.enter_async_context(_sampling(folder / "path"))
        cost = await opened.enter_async_context(idle_nodes(folder / "idle"))
        relay = await opened.enter_async_context(running_relay(folder / "relay"))

        async def take(_number: int, progress: Progress) -> Round:
            return await _round(sampling, cost, relay, progress)

        yield take


@asynccontextmanager
async def _sampling(folder: Path) -> AsyncIterator[_Sampling]:
    async with AsyncExitStack() as opened:
        path = await opened.enter_async_context(dispatch_path(folder, [NODE]))
        node = await opened.enter_async_context(path.serving(path.queues))
        consumer = await opened.enter_async_context(
            consumer_process("bench.dispatch.stock", stock.ConsumerSettings(path.redis.url))
        )
        await path.instruct("run")
        sampling = _Sampling(path, node, stock.broker_of(path.redis.url), consumer)
        await sampling.round(lambda _done: None, WARM_UP)
        yield sampling


async def _round(sampling: _Sampling, cost: Cost, relay: Relay, progress: Progress) -> Round:
    samples, commands = await asyncio.gather(sampling.round(progress, SAMPLES), cost(COST_SECONDS))
    rate = await relay.rate(lambda done: progress(_SAMPLES_SHARE + (1 - _SAMPLES_SHARE) * done))
    return {**samples, "idle_cost": [commands], "relay": [rate]}


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return (
        percentile("dispatch.idle_p50_ms", rounds, "idle", "ms", 50),
        percentile("dispatch.idle_p99_ms", rounds, "idle", "ms", 99),
        ratio("dispatch.ratio_stock", rounds, Pair("stock", "idle")),
        pooled_median("dispatch.relay_rate", rounds, "relay", "1/s"),
        pooled_median("dispatch.idle_cost", rounds, "idle_cost", "1/s"),
    )


BENCH: Final = Bench(
    name="dispatch",
    explanation="time from an order's commit to its handler on an idle node; orders per second; load of idle nodes",
    shape=f"dispatch {SAMPLES} orders after {IDLE_SECONDS} s without orders, idle load measured for {COST_SECONDS} s",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
