"""`boot`: from the request for a slice to an active one, beyond what its guest takes to boot by itself.

A whole Sliceplane with real nodes. In each round an allocation is asked for and is waited for until it is active. Then
the same guest is ended and booted again by plain `virsh` on the same node, with the network that stands there, while
the agent is stopped; that goes to the guest's banner. What the request took longer is ours: placing, recording, sending
the order, making the network, seeing that the guest is ready, and recording that.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import median
from typing import Final

from bench.lab_site import allocated, forgotten, lab_site
from bench.measure import Bench, Measurement, Progress, Round, TakeRound, middle, rounded
from deploy.embedded.children import python_module
from deploy.setup.repository import ROOT

ROUNDS: Final = 8
_SECONDS: Final = 150.0


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with lab_site() as site:

        async def take(_number: int, progress: Progress) -> Round:
            began = time.monotonic()
            slice_ = await allocated(site)
            ours = time.monotonic() - began
            progress(0.5)
            words = python_module("bench.boot_inside", slice_.tap, slice_.address)
            slice_.node.kill("agent", signal.SIGSTOP)
            try:
                done = await asyncio.to_thread(
                    slice_.node.run, words, seconds=_SECONDS, environment={"PYTHONPATH": str(ROOT)}
                )
            finally:
                slice_.node.kill("agent", signal.SIGCONT)
            progress(0.9)
            await forgotten(site, slice_)
            return {"ours": [ours], "plain": [float(done.stdout)]}

        yield take


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    beyond = [
        ours - plain for each in rounds for ours, plain in zip(each["ours"], each["plain"], strict=True)
    ]
    return (
        Measurement("boot.overhead_ms", rounded(median(beyond) * 1e3), "ms"),
        middle("boot.active_s", rounds, "ours", "s"),
        middle("boot.plain_s", rounds, "plain", "s"),
    )


BENCH: Final = Bench(
    name="boot",
    explanation="from a request to an active slice, beyond what its guest takes to boot",
    shape="boot, one slot",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
