"""`node`: cost of a real node's data plane: creating a slot's network, and a survey of everything on the node.

The benchmark uses a lab node with its own Open vSwitch, dnsmasq, nftables and libvirt. The measuring program
(`bench.nodes.node_inside`) runs inside the node with the agent's own drivers. Each round creates a slot's network
alternately with the drivers and with the commands `ip`, `ovs-vsctl`, `ovs-ofctl` and `nft`, to the same result. Then it
surveys eight guests repeatedly, and then the networks of eight and of sixty-four slots without guests.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from bench.harness.measure import (
    Bench,
    Measurement,
    Pair,
    Progress,
    Round,
    TakeRound,
    pooled_median,
    ratio,
    rounded,
)
from bench.harness.own_thread import in_own_thread
from deploy.embedded.children import python_module
from deploy.setup.repository import ROOT
from events.values import image_name
from node_agent.host.images import Image, publish
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
        async with in_own_thread(Lab("bench", folder / "lab", [NODE])) as lab:

            async def take(_number: int, _progress: Progress) -> Round:
                command = python_module("bench.nodes.node_inside", str(images), str(FEW), str(MANY))
                done = await asyncio.to_thread(
                    lab.node(NODE).run, command, seconds=_SECONDS, environment=_IMPORTS
                )
                return msgspec.json.decode(done.stdout, type=dict[str, list[float]])

            yield take


def _images(folder: Path) -> Path:
    # QEMU runs as a separate user and must be able to enter the folder.
    folder.chmod(0o755)
    name = image_name("lab-guest")
    made = ensure_guest(folder / "images" / name, lambda _: None)
    publish(folder / "images", Image(name, made.kernel, made.initrd, made.cmdline))
    return folder / "images"


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    scaling = [
        median(each["network_survey_many"]) / MANY / (median(each["network_survey_few"]) / FEW)
        for each in rounds
    ]
    return (
        pooled_median("node.network_ms", rounds, "network", "ms"),
        ratio("node.ratio_commands", rounds, Pair("commands", "network")),
        pooled_median("node.survey_ms", rounds, "survey", "ms"),
        Measurement("node.survey_scaling", rounded(median(scaling)), "ratio"),
    )


BENCH: Final = Bench(
    name="node",
    explanation="a real node's data plane: creating a slot's network, and surveying a node with slices",
    shape=f"node, {FEW} and {MANY} slots",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
