"""`boot`: time from the request for a slice until it is active, minus the boot time of its guest.

The benchmark runs a complete Sliceplane with real nodes. Each round requests an allocation and waits until it is
active. Then, with the agent stopped, the same guest is destroyed and booted again by plain `virsh` on the same node and
network, until its SSH banner appears. The difference is the overhead of the product: placing, recording, sending the
order, creating the network, checking that the guest is ready, and recording that.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import median
from typing import Final

from bench.harness.measure import Bench, Measurement, Progress, Round, TakeRound, pooled_median, rounded
from bench.nodes.lab_site import create_slice, lab_site, release_slice
from deploy.embedded.children import python_module
from deploy.setup.repository import ROOT

ROUNDS: Final = 8
_SECONDS: Final = 150.0


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with lab_site() as site:

        async def take(_number: int, progress: Progress) -> Round:
            began = time.monotonic()
            slice_ = await create_slice(site)
            ours = time.monotonic() - began
            progress(0.5)
            command = python_module("bench.nodes.boot_inside", slice_.tap, slice_.address)
            slice_.node.kill("agent", signal.SIGSTOP)
            try:
                done = await asyncio.to_thread(
                    slice_.node.run, command, seconds=_SECONDS, environment={"PYTHONPATH": str(ROOT)}
                )
            finally:
                slice_.node.kill("agent", signal.SIGCONT)
            progress(0.9)
            await release_slice(site, slice_)
            return {"ours": [ours], "plain": [float(done.stdout)]}

        yield take


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    overheads = [
        ours - plain for each in rounds for ours, plain in zip(each["ours"], each["plain"], strict=True)
    ]
    return (
        Measurement("boot.overhead_ms", rounded(median(overheads) * 1e3), "ms"),
        pooled_median("boot.active_s", rounds, "ours", "s"),
        pooled_median("boot.plain_s", rounds, "plain", "s"),
    )


BENCH: Final = Bench(
    name="boot",
    explanation="time from a request to an active slice, minus the boot time of its guest",
    shape="boot, one slot",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
