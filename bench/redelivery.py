"""`redelivery`: a worker is killed inside a task; how long until another begins with it (P7).

The broker's own heartbeat (15 s), two dispatchers, and nothing else enqueued, so that nothing wakes anybody. The worker
is killed a random while after it began, and a new one, as its supervisor starts it, waits at once.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from bench.measure import Bench, Measurement, Progress, Round, TakeRound, percentile
from bench.road import begin_of, road
from bench.servers import bench_folder
from events.values import NodeId

ROUNDS: Final = 6
NODE: Final = NodeId("bench-a")
INSIDE_SECONDS: Final = (0.5, 12.0)
"""How long the task ran, evenly spread: the last heartbeat and the sweeper's next look are at any phase."""


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    with bench_folder() as folder:
        async with road(folder / "road", [NODE]) as made:
            await made.tell("run")

            async def take(_number: int, progress: Progress) -> Round:
                async with made.serving(made.queues, for_ever=True) as doomed:
                    allocation, _ = await made.place(NODE)
                    await begin_of(doomed, allocation)
                    await asyncio.sleep(random.uniform(*INSIDE_SECONDS))
                    await doomed.kill()
                    killed = time.monotonic_ns()
                progress(0.3)
                async with made.serving(made.queues) as next_one:
                    again = await begin_of(next_one, allocation)
                return {"seconds": [(again - killed) / 1e9]}

            yield take


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return (percentile("redelivery.seconds", rounds, "seconds", "s", 100),)


BENCH: Final = Bench(
    name="redelivery",
    explanation="a worker killed inside a task, until another begins with it; the longest of all",
    shape=f"redelivery, killed after {INSIDE_SECONDS} s",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
