"""The same agent on a real little host: Open vSwitch, dnsmasq, nftables, libvirt and a guest that boots."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis.asyncio import Redis

from control_plane import redis_nodes
from deploy.embedded import redis as embedded
from deploy.embedded.children import python_module
from events.values import image_name
from node_agent.images import Image, publish
from node_agent.lab.guest import ensure_guest
from node_agent.lab.lab import Lab, LabNode
from node_agent.settings import Settings, SlotSettings
from tasks.agent_api import Queue
from tasks.reports import SliceStopped
from tests.agent.control_plane import TOKEN, FakeControlPlane, serving
from tests.agent.eventually import eventually_async
from tests.agent.orders import NODE, apply, remove, stop
from tests.agent.process import REPOSITORY
from tests.agent.queue import enrolled, let_in, send
from tests.servers.lab import kept_folder, run_id
from tests.servers.redis import server_folder

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]
BOOT = 90.0


@dataclass
class RealNode:
    """A lab node with its agent under the host's supervision: killed, it is started again."""

    lab: LabNode
    config: Path

    def start(self) -> None:
        self.lab.start_daemon(
            "agent", python_module("node_agent", str(self.config)), {"PYTHONPATH": str(REPOSITORY)}
        )

    def ports(self) -> list[str]:
        return self.lab.run(["ovs-vsctl", "list-ports", "br-slice"]).stdout.split()

    def domains(self) -> list[str]:
        return self.lab.run(["virsh", "-c", "qemu:///system", "list", "--all", "--name"]).stdout.split()

    def taps(self) -> list[str]:
        links = self.lab.run(["ip", "-brief", "link", "show", "type", "tun"]).stdout.splitlines()
        return [line.split()[0] for line in links if line.startswith("slice")]

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted((self.lab.folder / "log").glob("agent*")))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, name = kept_folder() / "images", image_name("lab-guest")
    made = ensure_guest(folder / name, print)
    publish(folder, Image(name, made.kernel, made.initrd, made.cmdline))
    return folder


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One of our own: the agent's node-wide preparations stay on it."""
    with Lab(run_id(), tmp_path_factory.mktemp("agent-lab"), [NODE], kept_folder() / "libvirt") as lab:
        yield lab


@pytest.fixture
async def control(lab: Lab, plane: FakeControlPlane) -> AsyncIterator[Redis]:
    """A queue that the node reaches over its management link."""
    with server_folder() as folder, ExitStack() as ends:
        server = embedded.start(folder, bind=("127.0.0.1", lab.gateway_address))
        ends.callback(server.stop)
        plane.queue = Queue(
            host=lab.gateway_address, port=server.port, username=f"node-{NODE}", namespace=f"ctl:{NODE}"
        )
        plane.let_in = let_in(server.url)
        client = Redis.from_url(server.url)
        await redis_nodes.ensure_scripts(client)
        yield client
        await client.aclose()


@pytest.fixture
def node(lab: Lab, plane: FakeControlPlane, images: Path) -> Iterator[RealNode]:
    host = lab.node(NODE)
    (host.folder / "token").write_text(TOKEN)
    with serving(plane, address=lab.gateway_address) as url:
        settings = Settings(
            node_id=NODE,
            api_url=url,
            enrolment_token_file=host.folder / "token",
            state_folder=Path(tempfile.mkdtemp(prefix="agent-", dir=host.folder)),
            run_folder=Path("/run/sliceplane"),  # of the node, in the open for dnsmasq,
            images_folder=images,
            datapath_type="netdev",
            slots=(
                SlotSettings(index=0, vcpus=1, memory_mib=96),
                SlotSettings(index=1, vcpus=1, memory_mib=96),
            ),
            survey_seconds=2,
            heartbeat_seconds=1,
        )
        config = host.folder / "agent.json"
        config.write_text(settings.model_dump_json())
        yield RealNode(host, config)
        host.stop_daemon("agent")


async def test_a_guest_is_brought_up_survives_its_agent_is_restored_and_is_taken_away(
    node: RealNode, plane: FakeControlPlane, control: Redis
) -> None:
    node.start()
    await enrolled(plane)
    await send(control, apply(deadline=120))
    await eventually_async(lambda: node.domains() == ["slice0"], BOOT, node.log)
    node.lab.kill("agent")
    await eventually_async(lambda: "slice.ready" in plane.kinds(), BOOT, node.log)
    assert plane.kinds().count("slice.ready") == 1
    assert node.log().count('"step": "machine.start", "event": "step_done"') <= 1
    assert node.ports() == ["slice0"]

    node.lab.kill("qemu-system-x86_64")
    await eventually_async(lambda: plane.kinds().count("slice.ready") == 2, BOOT, node.log)
    assert plane.kinds().count("slice.interrupted") == 1

    await send(control, remove())
    await eventually_async(lambda: "slice.removed" in plane.kinds(), BOOT, node.log)
    assert (node.ports(), node.domains(), node.taps()) == ([], [], [])
    assert "slice.failed" not in plane.kinds()
    assert "slice.remains" not in plane.kinds()


async def test_a_guest_shuts_down_when_it_is_told_stays_off_and_comes_back(
    node: RealNode, plane: FakeControlPlane, control: Redis
) -> None:
    wiped = node.log().count("machine.wipe_disks")
    node.start()
    await enrolled(plane)
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
    assert not {"slice.failed", "slice.remains", "slice.interrupted"} & {*plane.kinds()}
