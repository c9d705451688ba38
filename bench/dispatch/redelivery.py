"""`redelivery`: time from killing a worker inside a task until another worker starts the task (P7).

The broker's heartbeat has its default interval (15 s), two dispatchers run, and nothing else is enqueued, so that no
other work wakes a process. The worker is killed a random time after it started the task; a new worker waits
immediately, as if a supervisor had restarted it.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from bench.dispatch.dispatch_path import dispatch_path, handler_start
from bench.harness.measure import Bench, Measurement, Progress, Round, TakeRound, percentile
from bench.harness.servers import bench_folder
from events.values import NodeId

ROUNDS: Final = 6
NODE: Final = NodeId("bench-a")
INSIDE_SECONDS: Final = (0.5, 12.0)
"""Range of the task's uniformly distributed run time: last heartbeat and next recovery run are at random phases."""


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    with bench_folder() as folder:
        async with dispatch_path(folder / "path", [NODE]) as path:
            await path.instruct("run")

            async def take(_number: int, progress: Progress) -> Round:
                async with path.serving(path.queues, never_finish=True) as doomed:
                    allocation, _ = await path.place(NODE)
                    await handler_start(doomed, allocation)
                    await asyncio.sleep(random.uniform(*INSIDE_SECONDS))
                    await doomed.kill()
                    killed = time.monotonic_ns()
                progress(0.3)
                async with path.serving(path.queues) as successor:
                    restarted = await handler_start(successor, allocation)
                return {"seconds": [(restarted - killed) / 1e9]}

            yield take


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return (percentile("redelivery.seconds", rounds, "seconds", "s", 100),)


BENCH: Final = Bench(
    name="redelivery",
    explanation="time from killing a worker inside a task until another worker starts the task; maximum of all rounds",
    shape=f"redelivery, killed after {INSIDE_SECONDS} s",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
