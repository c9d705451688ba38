"""P16: a connection through a public port is dead in both directions within a second of the release.

A guest echoes the input of an ssh client outside the node, through a port of the node's uplink. The test captures the
frames to the guest on its tap and the frames to the client on the uplink, with the kernel's receive times. The limit of
one second begins before the order is sent.
"""

import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from redis.asyncio import Redis
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from node_agent.lab.lab import Lab, LabNode
from node_agent.lab.login import OPTIONS
from tasks.orders import Order
from tests import matrix
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually, eventually_async
from tests.agent.frame_capture import CapturedFrames, capture_frames
from tests.agent.orders import NODE, apply, network, remove, ssh_ingress, stop
from tests.agent.queue import await_enrolment, send
from tests.agent.real_node import (
    RealNode,
    control_of,
    guest_images,
    real_node,
)

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]
BOOT: Final = 90.0
CLOSED_WITHIN: Final = 20.0
DEAD_WITHIN: Final = 1.0
ENDED: Final = {"slice.removed", "slice.stopped"}
PUBLIC_PORT: Final = 20022
IGNORE_POWER_BUTTON: Final = "rm /etc/acpi/PWRF/*; "
"""Command that makes a guest ignore its power button."""


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
class SshClient:
    """SSH client outside the node, with a key that the guest accepts."""

    lab: Lab
    key_file: Path

    @property
    def public_key(self) -> str:
        return self.key_file.with_suffix(".pub").read_text().strip()


@pytest.fixture(scope="module")
def ssh_client(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> SshClient:
    file = tmp_path_factory.mktemp("keys") / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)
    return SshClient(lab, file)


@dataclass
class Session:
    """An SSH session from outside that sends lines continuously until its connection ends."""

    process: subprocess.Popen[bytes]
    echoed: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def send_lines(self) -> None:
        assert self.process.stdin is not None
        try:
            while not self._ended.wait(0.01):
                self.process.stdin.write(b"hello\n")
                self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def count_echoes(self) -> None:
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            self.echoed += 1

    def end(self) -> None:
        self._ended.set()
        self.process.kill()
        self.process.wait()


@contextmanager
def session(ssh_client: SshClient, command: str) -> Iterator[Session]:
    options = [f"-o{name}={value}" for name, value in OPTIONS.items()]
    ssh = ["ssh", "-F", "none", "-T", *options, "-p", str(PUBLIC_PORT), "-i", str(ssh_client.key_file)]
    target = f"root@{ssh_client.lab.node(NODE).uplink_address}"
    command_line = ["nsenter", f"--target={ssh_client.lab.site.pid}", "--net", "--", *ssh, target, command]
    opened = Session(subprocess.Popen(command_line, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    threads = [threading.Thread(target=each) for each in (opened.send_lines, opened.count_echoes)]
    for thread in threads:
        thread.start()
    try:
        yield opened
    finally:
        opened.end()
        for thread in threads:
            thread.join()


@dataclass
class Traffic:
    """Captured frames between a guest and an SSH client outside its node."""

    to_guest: CapturedFrames
    to_client: CapturedFrames
    attempts: CapturedFrames
    """Frames from the client to the public port, whether the node forwards them or not."""

    def last(self) -> float:
        return max(self.to_guest.last, self.to_client.last)


def parsed(wanted: Callable[[Packet], bool]) -> Callable[[bytes], bool]:
    return lambda content: wanted(Ether(content))


@contextmanager
def capture_connection(node: LabNode) -> Iterator[Traffic]:
    guest = network().private_ip

    def is_answer(frame: Packet) -> bool:
        return TCP in frame and frame[TCP].sport == PUBLIC_PORT and bool(len(frame[TCP].payload))

    traffic = Traffic(
        CapturedFrames(parsed(lambda frame: TCP in frame and frame[IP].dst == guest)),
        # Only frames with content: the node itself refuses the connection with a frame without content.
        CapturedFrames(parsed(is_answer)),
        CapturedFrames(parsed(lambda frame: TCP in frame and frame[TCP].dport == PUBLIC_PORT)),
    )
    with (
        capture_frames(node.pid, "slice0", traffic.to_guest),
        capture_frames(node.pid, "uplink0", traffic.to_client, traffic.attempts),
    ):
        yield traffic


def tracked(node: RealNode) -> str:
    return node.do(f"conntrack -L -p tcp --orig-port-dst {PUBLIC_PORT} 2>/dev/null")


@contextmanager
def libvirtd_stopped(node: RealNode) -> Iterator[None]:
    """Stop libvirtd with SIGSTOP, so that it does not answer, and continue it at the end of the context."""
    node.lab.kill("libvirtd", signal.SIGSTOP)
    try:
        yield
    finally:
        node.lab.kill("libvirtd", signal.SIGCONT)


@dataclass(frozen=True)
class Case:
    """Test case: order that removes or stops the slice, command that runs in the guest, and whether libvirtd hangs."""

    name: str
    order: Order
    command: str = "cat"
    hangs: bool = False

    def __str__(self) -> str:
        return self.name


CASES: Final = [
    Case("released", remove(9)),
    Case("released-while-the-hypervisor-hangs", remove(9), hangs=True),
    Case("stopped-with-a-guest-that-takes-its-time", stop(9, grace=5), command=f"{IGNORE_POWER_BUTTON} cat"),
]


@matrix.cases("P16", CASES, few=1)
async def test_connection_from_outside_is_cut_within_a_second_of_the_removal_or_stop_order(
    ssh_client: SshClient, node: RealNode, plane: FakeControlPlane, control: Redis, case: Case
) -> None:
    node.start()
    await await_enrolment(plane)
    ingress = (ssh_ingress(PUBLIC_PORT, node.lab.uplink_address),)
    await send(control, apply(7, deadline=120, ingress=ingress, key=ssh_client.public_key))
    await eventually_async(lambda: "slice.ready" in plane.kinds(), BOOT, node.log)

    with capture_connection(node.lab) as traffic, session(ssh_client, case.command) as connection:
        eventually(lambda: connection.echoed > 20, BOOT)
        assert tracked(node) != ""
        with libvirtd_stopped(node) if case.hangs else nullcontext():
            sent_at = time.time()
            await send(control, case.order)
            # The client sends until the node itself refuses the connection.
            await eventually_async(lambda: connection.process.poll() is not None, CLOSED_WITHIN, node.log)
            assert tracked(node) == ""
            assert not (case.hangs and "slice.removed" in plane.kinds())
        await eventually_async(lambda: bool(ENDED & {*plane.kinds()}), BOOT, node.log)
    print(f"the last byte passed {traffic.last() - sent_at:.3f} s after the order was sent")
    assert traffic.last() - sent_at < DEAD_WITHIN
    assert traffic.attempts.last > traffic.last(), "the client must still send after the last forwarded frame"
    await send(control, remove(10))
    await eventually_async(lambda: "slice.removed" in plane.kinds(), BOOT, node.log)
