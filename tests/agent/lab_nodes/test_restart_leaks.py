"""P19 on a real node: restarts of the agent let no frame pass that a slice may not send.

A guest sends forbidden frames every ten milliseconds (every twenty outside of `./dev torture`). At the end the test
makes the node's switch and packet filter accept them: then all arrive, so the captures would have recorded a leak.
"""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from redis.asyncio import Redis
from scapy.packet import Padding

from node_agent.lab.lab import Lab, LabNode
from node_agent.lab.login import login
from tests import matrix
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually_async
from tests.agent.frame_capture import CapturedFrames, capture_frames
from tests.agent.orders import apply, network, remove
from tests.agent.queue import await_enrolment, send
from tests.agent.real_node import (
    RealNode,
    control_of,
    guest_images,
    real_node,
    restarts_during,
)
from tests.contract.network import slices
from tests.contract.network.probes import PROBES, Probe, leaked, listening, probes
from tests.contract.network.senders import SENDING_PROGRAM

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]
BOOT: Final = 90.0
PROBED_SECONDS: Final = 30 if matrix.is_full() else 5
PAUSE: Final = 0.01 if matrix.is_full() else 0.02
"""Seconds from one round to the next; in the usual run they are longer, because the guest's processor is emulated."""
ROUNDS: Final = PROBED_SECONDS * 25
"""Minimum number of sent rounds; it is low because the guest's processor is emulated and shared."""
SIZE: Final = 128
"""Bytes of every frame, so that each read of the sending program returns one frame."""
LINKS: Final = ("slice0", "slice1", "uplink0")
ProbePoint = tuple[str, Probe]
"""A link, and the probe that is captured on it."""
ARRIVALS: Final[set[ProbePoint]] = {
    ("slice1", "to the neighbour's MAC"),
    ("slice1", "by the gateway"),
    ("slice1", "by broadcast"),
    ("uplink0", "with the neighbour's address"),
}
OPEN: Final = "\n".join(
    (
        "ovs-ofctl -O OpenFlow14 add-flow br-slice priority=900,in_port=1000,actions=NORMAL",
        *(f"nft insert rule inet sliceplane {chain}_slices accept" for chain in ("from", "out_of", "into")),
    )
)


@pytest.fixture
async def control(lab: Lab, plane: FakeControlPlane) -> AsyncIterator[Redis]:
    async with control_of(lab, plane) as client:
        yield client


@pytest.fixture
def node(lab: Lab, plane: FakeControlPlane) -> Iterator[RealNode]:
    with real_node(lab, plane, guest_images(SENDING_PROGRAM)) as node:
        yield node


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)
    return file


def start_probes(node: LabNode, key: Path, seconds: int) -> "asyncio.Task[object]":
    """Make the guest of the first slot send one round of forbidden probe frames after each `PAUSE`."""
    frames = b"".join(
        bytes(frame / Padding(bytes(SIZE - len(frame))))
        for frame in probes(slices.network(0), slices.network(1))
    )
    octal = "".join(f"\\{byte:03o}" for byte in frames)
    # Shell built-ins only: starting a program takes the emulated guest longer than ten milliseconds.
    script = (
        "mkfifo -m 600 /tmp/never 2>/dev/null;"
        f" timeout {seconds} sh -c 'while :; do printf \"{octal}\"; read -t {PAUSE} it; done <>/tmp/never'"
        f" | {SENDING_PROGRAM} -u -b {SIZE} - INTERFACE:eth0"
    )
    return asyncio.create_task(
        asyncio.to_thread(login, node, network(0).private_ip, key, [script], seconds=seconds + 20)
    )


def is_probe(probe: Probe, frame: bytes) -> bool:
    return probe in leaked([frame])


@contextmanager
def probe_captures(node: LabNode) -> Iterator[Mapping[ProbePoint, CapturedFrames]]:
    """Yield the captured probe frames of every link of the node, by link and kind of probe."""
    captured = {(link, probe): CapturedFrames(partial(is_probe, probe)) for link in LINKS for probe in PROBES}
    with ExitStack() as stack:
        for link in LINKS:
            own = (capture for (where, _), capture in captured.items() if where == link)
            stack.enter_context(capture_frames(node.pid, link, *own))
        yield captured


def arrived_probes(captured: Mapping[ProbePoint, CapturedFrames]) -> set[ProbePoint]:
    return {
        (link, probe) for (link, probe), capture in captured.items() if link != "slice0" and capture.times
    }


async def test_agent_restarts_let_no_forbidden_frame_of_a_slice_pass(
    node: RealNode, plane: FakeControlPlane, control: Redis, key: Path
) -> None:
    from tests.contract.network.lab_host import socket_of

    node.start()
    await await_enrolment(plane)
    public_key = key.with_suffix(".pub").read_text().strip()
    for index in (0, 1):
        await send(control, apply(7 + index, index=index, deadline=120, key=public_key))
    await eventually_async(lambda: plane.kinds().count("slice.ready") == 2, BOOT, node.log)
    with (
        probe_captures(node.lab) as captured,
        socket_of(node.lab.pid) as service,
        listening(service) as at_host,
    ):
        restarts = await restarts_during(node, plane, sending := start_probes(node.lab, key, PROBED_SECONDS))
        await sending
        sent = [len(captured["slice0", probe].times) for probe in PROBES]
        assert (arrived_probes(captured), leaked(at_host())) == (set(), set())
        assert (min(sent) > ROUNDS, restarts > 1) == (True, True), (
            f"too little load: {sent} probes in {restarts} restarts"
        )

        node.lab.stop_daemon("agent")
        node.do(OPEN)
        await start_probes(node.lab, key, 1)
        assert arrived_probes(captured) >= ARRIVALS
        assert leaked(at_host()) == {"to the host"}
    node.start()
    for index in (0, 1):
        await send(control, remove(9 + index, index=index))
    await eventually_async(lambda: plane.kinds().count("slice.removed") == 2, BOOT, node.log)
