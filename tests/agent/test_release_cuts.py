"""P16: a connection that came in through a public port is dead within a second of the release, both ways.

Outside the node an ssh(1) has its words echoed by a guest, through a port of the node's uplink. What passes to the
guest is heard on its tap, what passes to the world on the uplink, each with the kernel's time. The second begins
before the order is even sent.
"""

import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from redis.asyncio import Redis
from scapy.layers.inet import IP, TCP
from scapy.packet import Packet

from node_agent.lab.lab import Lab, LabNode
from node_agent.lab.login import OPTIONS
from tasks.orders import Order
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually, eventually_async
from tests.agent.orders import NODE, apply, network, remove, ssh_from_outside, stop
from tests.agent.overheard import Overheard, overhearing
from tests.agent.queue import enrolled, send
from tests.agent.real_node import (
    RealNode,
    control_of,
    guest_images,
    real_node,
)

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]
BOOT: Final = 90.0
NOTICED: Final = 20.0
DEAD_WITHIN: Final = 1.0
OVER: Final = {"slice.removed", "slice.stopped"}
PUBLIC_PORT: Final = 20022
DEAF: Final = "rm /etc/acpi/PWRF/*; "
"""A guest that does not heed its power button."""


@pytest.fixture
async def control(lab: Lab, plane: FakeControlPlane) -> AsyncIterator[Redis]:
    async with control_of(lab, plane) as client:
        yield client


@pytest.fixture
def node(lab: Lab, plane: FakeControlPlane) -> Iterator[RealNode]:
    with real_node(lab, plane, guest_images()) as node:
        yield node
        assert node.domains() == []


@dataclass(frozen=True)
class World:
    """Somebody who is not on the node, and has a key to the guest."""

    lab: Lab
    key_file: Path

    @property
    def public_key(self) -> str:
        return self.key_file.with_suffix(".pub").read_text().strip()


@pytest.fixture(scope="module")
def world(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> World:
    file = tmp_path_factory.mktemp("keys") / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)
    return World(lab, file)


@dataclass
class Session:
    """Somebody outside who goes on speaking, whatever happens, until there is nobody to speak to."""

    process: subprocess.Popen[bytes]
    echoed: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def speak(self) -> None:
        assert self.process.stdin is not None
        try:
            while not self._ended.wait(0.01):
                self.process.stdin.write(b"hello\n")
                self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def hear(self) -> None:
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            self.echoed += 1

    def end(self) -> None:
        self._ended.set()
        self.process.kill()
        self.process.wait()


@contextmanager
def session(world: World, command: str) -> Iterator[Session]:
    options = [f"-o{name}={value}" for name, value in OPTIONS.items()]
    ssh = ["ssh", "-F", "none", "-T", *options, "-p", str(PUBLIC_PORT), "-i", str(world.key_file)]
    where = f"root@{world.lab.node(NODE).uplink_address}"
    entered = ["nsenter", f"--target={world.lab.site.pid}", "--net", "--", *ssh, where, command]
    opened = Session(subprocess.Popen(entered, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    threads = [threading.Thread(target=each) for each in (opened.speak, opened.hear)]
    for thread in threads:
        thread.start()
    try:
        yield opened
    finally:
        opened.end()
        for thread in threads:
            thread.join()


@dataclass
class Line:
    """What passes between the world and the guest."""

    to_guest: Overheard
    to_world: Overheard
    knocks: Overheard
    """What the world sent to the public port, whether or not it passed."""

    def last(self) -> float:
        return max(self.to_guest.last, self.to_world.last)


@contextmanager
def overheard_line(node: LabNode) -> Iterator[Line]:
    guest = network().private_ip

    def is_answer(frame: Packet) -> bool:
        return TCP in frame and frame[TCP].sport == PUBLIC_PORT and bool(len(frame[TCP].payload))

    line = Line(
        Overheard(lambda frame: TCP in frame and frame[IP].dst == guest),
        # The node refuses by a frame of its own, without content.
        Overheard(is_answer),
        Overheard(lambda frame: TCP in frame and frame[TCP].dport == PUBLIC_PORT),
    )
    with (
        overhearing(node.pid, "slice0", line.to_guest),
        overhearing(node.pid, "uplink0", line.to_world, line.knocks),
    ):
        yield line


def tracked(node: RealNode) -> str:
    return node.do(f"conntrack -L -p tcp --orig-port-dst {PUBLIC_PORT} 2>/dev/null")


@contextmanager
def hanging(node: RealNode) -> Iterator[None]:
    """The hypervisor answers nobody."""
    node.lab.kill("libvirtd", signal.SIGSTOP)
    try:
        yield
    finally:
        node.lab.kill("libvirtd", signal.SIGCONT)


@dataclass(frozen=True)
class Case:
    """How the slice goes, what its guest is told before, and whether the hypervisor hangs meanwhile."""

    order: Order
    command: str = "cat"
    hangs: bool = False


CASES: Final = {
    "released": Case(remove(9)),
    "released-while-the-hypervisor-hangs": Case(remove(9), hangs=True),
    "stopped-with-a-guest-that-takes-its-time": Case(stop(9, grace=5), command=f"{DEAF} cat"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=[*CASES])
async def test_a_connection_from_outside_is_dead_within_a_second(
    world: World, node: RealNode, plane: FakeControlPlane, control: Redis, case: Case
) -> None:
    node.start()
    await enrolled(plane)
    ways = (ssh_from_outside(PUBLIC_PORT, node.lab.uplink_address),)
    await send(control, apply(7, deadline=120, ways=ways, key=world.public_key))
    await eventually_async(lambda: "slice.ready" in plane.kinds(), BOOT, node.log)

    with overheard_line(node.lab) as line, session(world, case.command) as talk:
        eventually(lambda: talk.echoed > 20, BOOT)
        assert tracked(node) != ""
        with hanging(node) if case.hangs else nullcontext():
            asked = time.time()
            await send(control, case.order)
            # The world goes on speaking until the node itself refuses it.
            await eventually_async(lambda: talk.process.poll() is not None, NOTICED, node.log)
            assert tracked(node) == ""
            assert not (case.hangs and "slice.removed" in plane.kinds())
        await eventually_async(lambda: bool(OVER & {*plane.kinds()}), BOOT, node.log)
    print(f"the last byte passed {line.last() - asked:.3f} s after the order was sent")
    assert line.last() - asked < DEAD_WITHIN
    assert line.knocks.last > line.last(), "nobody spoke any more"
    await send(control, remove(10))
    await eventually_async(lambda: "slice.removed" in plane.kinds(), BOOT, node.log)
