"""The agent on a lab node with Open vSwitch, dnsmasq, nftables, libvirt and a guest that boots."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from deploy.embedded.children import REPOSITORY, python_module
from events.values import PciAddress, SlotIndex, image_name
from node_agent.host.images import Image, ImagesFolder, publish
from node_agent.lab.lab import Lab
from node_agent.settings import Settings, SlotSettings
from tasks.devices import FoundDevice
from tasks.reports import NodeSurveyed, SliceReady, SliceStopped
from tests import matrix
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually_async
from tests.agent.orders import apply, network, remove, stop
from tests.agent.queue import await_enrolment, send
from tests.agent.real_node import (
    RealNode,
    control_of,
    guest_images,
    real_node,
    restarts_during,
)

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]
BOOT = 90.0
PINGED_SECONDS = 30 if matrix.is_full() else 5
LISTENING = "printf '::respawn:/bin/busybox httpd -f -p 8080\\n' >> /etc/inittab; exec /init"
"""First command of the guest: it opens an additional port that sends no banner."""


@pytest.fixture(scope="module")
def images() -> Path:
    return guest_images()


@pytest.fixture
async def control(lab: Lab, plane: FakeControlPlane) -> AsyncIterator[Redis]:
    async with control_of(lab, plane) as client:
        yield client


@pytest.fixture
def node(lab: Lab, plane: FakeControlPlane, images: Path) -> Iterator[RealNode]:
    with real_node(lab, plane, images) as node:
        yield node


async def test_guest_keeps_running_when_its_agent_is_killed_and_is_started_again_when_qemu_is_killed(
    node: RealNode, plane: FakeControlPlane, control: Redis
) -> None:
    node.start()
    await await_enrolment(plane)
    await send(control, apply(deadline=120))
    await eventually_async(lambda: node.domains() == ["slice0"], BOOT, node.log)
    node.lab.kill("agent")
    await eventually_async(lambda: "slice.ready" in plane.kinds(), BOOT, node.log)
    assert plane.kinds().count("slice.ready") == 1
    assert node.log().count('"step": "machine.start", "event": "reconcile_step_done"') <= 1
    assert node.ports() == ["slice0"]

    node.lab.kill("qemu-system-x86_64")
    await eventually_async(lambda: plane.kinds().count("slice.ready") == 2, BOOT, node.log)
    assert plane.kinds().count("slice.interrupted") == 1

    await send(control, remove())
    await eventually_async(lambda: "slice.removed" in plane.kinds(), BOOT, node.log)
    assert (node.ports(), node.domains(), node.taps()) == ([], [], [])
    assert "slice.failed" not in plane.kinds()
    assert "slice.removal_incomplete" not in plane.kinds()


@pytest.fixture
def web(images: Path) -> Iterator[Path]:
    """Folder with the image `web`: the guest image of the lab with a web server."""
    guest = ImagesFolder(images).find(image_name("lab-guest"))
    with tempfile.TemporaryDirectory() as name:
        folder, home = Path(name), Path(name) / "web"
        # QEMU, which runs as another user, reads images below this folder.
        folder.chmod(0o755)
        home.mkdir()
        kernel, initrd = (Path(shutil.copy(path, home)) for path in (guest.kernel, guest.initrd))
        cmdline = f'{guest.cmdline} rdinit=/bin/sh -- -c "{LISTENING}"'
        publish(folder, Image(image_name("web"), kernel, initrd, cmdline))
        yield folder


async def test_guest_with_a_custom_readiness_port_is_ready_once_the_port_is_open(
    lab: Lab, plane: FakeControlPlane, control: Redis, web: Path
) -> None:
    with real_node(lab, plane, web) as node:
        node.start()
        await await_enrolment(plane)
        await send(control, apply(image="web", port=8080, banner="", deadline=120))
        await eventually_async(
            lambda: bool({"slice.ready", "slice.failed"} & {*plane.kinds()}), 130.0, node.log
        )
        ready = [report.body for report in plane.reports if isinstance(report.body, SliceReady)]
        assert [(each.port, each.banner) for each in ready] == [(8080, "")], node.log()
        await send(control, remove())
        await eventually_async(lambda: "slice.removed" in plane.kinds(), BOOT, node.log)


async def test_agent_restarts_lose_no_ping_of_a_guest(
    node: RealNode, plane: FakeControlPlane, control: Redis
) -> None:
    node.start()
    await await_enrolment(plane)
    await send(control, apply(deadline=120))
    await eventually_async(lambda: "slice.ready" in plane.kinds(), BOOT, node.log)
    command = python_module("tests.agent.pinger", network().private_ip, str(PINGED_SECONDS))
    pinging = asyncio.create_task(
        asyncio.to_thread(node.lab.run, command, seconds=BOOT, environment={"PYTHONPATH": str(REPOSITORY)})
    )
    restarts = await restarts_during(node, plane, pinging)
    sent, lost = map(int, (await pinging).stdout.split())
    assert lost == 0, f"{lost} of {sent} pings were lost during {restarts} restarts"
    assert (sent > PINGED_SECONDS * 50, restarts > 1) == (True, True), (
        f"too little load: {sent} pings, {restarts} restarts"
    )
    await send(control, remove())
    await eventually_async(lambda: "slice.removed" in plane.kinds(), BOOT, node.log)


async def test_guest_stopped_by_an_order_stays_off_and_starts_again_with_its_disk(
    node: RealNode, plane: FakeControlPlane, control: Redis
) -> None:
    wiped = node.log().count("machine.wipe_disks")
    node.start()
    await await_enrolment(plane)
    await send(control, apply(7, deadline=120))
    await eventually_async(lambda: "slice.ready" in plane.kinds(), BOOT, node.log)

    await send(control, stop(8, grace=60))
    await eventually_async(lambda: "slice.stopped" in plane.kinds(), BOOT, node.log)
    stopped = next(report.body for report in plane.reports if isinstance(report.body, SliceStopped))
    assert not stopped.forced, node.log()
    assert (node.ports(), node.domains(), node.taps()) == ([], [], [])
    node.lab.kill("agent")
    beats = len(plane.heartbeats)
    await eventually_async(lambda: len(plane.heartbeats) >= beats + 4, BOOT, node.log)
    assert node.domains() == []

    await send(control, apply(9, deadline=120))
    await eventually_async(lambda: plane.kinds().count("slice.ready") == 2, BOOT, node.log)
    assert node.log().count("machine.wipe_disks") == wiped
    await send(control, remove(10))
    await eventually_async(lambda: "slice.removed" in plane.kinds(), BOOT, node.log)
    assert not {"slice.failed", "slice.removal_incomplete", "slice.interrupted"} & {*plane.kinds()}


def _pci_functions() -> list[Path]:
    """Return the folders of the PCI functions of this machine; empty if it has no PCI bus."""
    return list(Path("/sys/bus/pci/devices").glob("*"))


async def test_node_reports_the_facts_about_the_pci_functions_of_the_machine_that_runs_the_tests(
    lab: Lab, plane: FakeControlPlane, control: Redis, images: Path
) -> None:
    functions = {path.name: path for path in _pci_functions()}
    if not functions:
        pytest.skip("this machine has no PCI bus")
    address = PciAddress(max(functions))

    def with_device(settings: Settings) -> Settings:
        slot = SlotSettings(index=SlotIndex(0), vcpus=1, memory_mib=96, fabric=(address,))
        return settings.model_copy(update={"slots": (slot,)})

    def described() -> list[FoundDevice]:
        surveys = (report.body for report in plane.reports if isinstance(report.body, NodeSurveyed))
        found = (device for survey in surveys for device in survey.slots[0].devices)
        return [device for device in found if device.number is not None]

    with real_node(lab, plane, images, with_device) as node:
        node.start()
        await eventually_async(lambda: described() != [], BOOT, node.log)
    device, folder = described()[-1], functions[address]
    assert device.number == ":".join((folder / name).read_text().strip()[2:] for name in ("vendor", "device"))
    assert device.unreadable is None
    evidence = {each.path: each.value for each in device.evidence}
    assert evidence[str(folder)] == str(folder.resolve())
    assert evidence[f"{folder}/class"] == (folder / "class").read_text().strip()
