"""`node`: what a real node's data plane costs: a slot's network from nothing, and a look at all that it carries.

A lab node, with its own Open vSwitch, dnsmasq, nftables and libvirt. The program that measures runs inside the node
(`bench.node_inside`), with the agent's own drivers. In each round a slot's network is made in turn by them and by
`ip`, `ovs-vsctl`, `ovs-ofctl` and `nft` one after the other, to the same result; then eight guests are looked at again
and again, and then the networks of eight and of sixty-four slots without guests.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from bench.apart import apart
from bench.measure import Bench, Measurement, Pair, Progress, Round, TakeRound, middle, ratio, rounded
from deploy.embedded.children import python_module
from deploy.setup.repository import ROOT
from events.values import image_name
from node_agent.images import Image, publish
from node_agent.lab.guest import ensure_guest
from node_agent.lab.lab import Lab

ROUNDS: Final = 3
FEW: Final = 8
MANY: Final = 64
NODE: Final = "bench-a"
_SECONDS: Final = 600.0
_IMPORTS: Final = {"PYTHONPATH": str(ROOT)}


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    with tempfile.TemporaryDirectory(prefix="sliceplane-bench-", dir="/var/tmp") as name:
        folder = Path(name)
        images = await asyncio.to_thread(_images, folder)
        async with apart(Lab("bench", folder / "lab", [NODE])) as lab:

            async def take(_number: int, _progress: Progress) -> Round:
                words = python_module("bench.node_inside", str(images), str(FEW), str(MANY))
                done = await asyncio.to_thread(
                    lab.node(NODE).run, words, seconds=_SECONDS, environment=_IMPORTS
                )
                return msgspec.json.decode(done.stdout, type=dict[str, list[float]])

            yield take


def _images(folder: Path) -> Path:
    # QEMU is a user of its own.
    folder.chmod(0o755)
    name = image_name("lab-guest")
    made = ensure_guest(folder / "images" / name, lambda _: None)
    publish(folder / "images", Image(name, made.kernel, made.initrd, made.cmdline))
    return folder / "images"


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    scaling = [median(each["look_many"]) / MANY / (median(each["look_few"]) / FEW) for each in rounds]
    return (
        middle("node.network_ms", rounds, "network", "ms"),
        ratio("node.ratio_commands", rounds, Pair("commands", "network")),
        middle("node.survey_ms", rounds, "survey", "ms"),
        Measurement("node.survey_scaling", rounded(median(scaling)), "ratio"),
    )


BENCH: Final = Bench(
    name="node",
    explanation="a real node's data plane: a slot's network from nothing, and looks at what it carries",
    shape=f"node, {FEW} and {MANY} slots",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
