"""A lab node with a supervised agent, and a queue that the node can reach."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from control_plane.queues import redis_nodes
from deploy.embedded import redis as embedded
from deploy.embedded.children import REPOSITORY, installed_program
from events.values import image_name
from node_agent.host.images import Image, publish
from node_agent.lab.guest import ensure_guest
from node_agent.lab.lab import Lab, LabNode
from node_agent.settings import Settings, SlotSettings
from tasks.agent_api import Queue
from tests.agent.control_plane import TOKEN, FakeControlPlane, serving
from tests.agent.eventually import eventually_async
from tests.agent.orders import NODE
from tests.agent.queue import create_session_users
from tests.servers.lab import kept_folder
from tests.servers.redis import server_folder

RUN_FOLDER: Final = "/run/sliceplane"
"""Run folder on the node; dnsmasq, which runs as another user, must be able to read it."""


@dataclass
class RealNode:
    """Lab node with an agent. A supervisor process restarts the agent after it was killed."""

    lab: LabNode
    config: Path

    def start(self, failpoints: str = "") -> None:
        environment = {"PYTHONPATH": str(REPOSITORY), "SLICEPLANE_FAILPOINTS": failpoints}
        self.lab.start_daemon("agent", installed_program("sliceplane-agent", str(self.config)), environment)

    def is_stopped_at_failpoint(self) -> bool:
        """Whether the agent is stopped (SIGSTOP) at its failpoint."""
        pid = self.lab.daemons()["agent"]
        return "\nState:\tT" in self.do(f"cat /proc/{pid}/status")

    def do(self, script: str, names: Mapping[str, str] | None = None) -> str:
        """Run a shell script on the node, with `names` as environment variables, and return its output."""
        return self.lab.run(["sh", "-ec", script], environment=dict(names or {})).stdout

    def ports(self) -> list[str]:
        return self.lab.run(["ovs-vsctl", "list-ports", "br-slice"]).stdout.split()

    def domains(self) -> list[str]:
        return self.lab.run(["virsh", "-c", "qemu:///system", "list", "--all", "--name"]).stdout.split()

    def taps(self) -> list[str]:
        links = self.lab.run(["ip", "-brief", "link", "show", "type", "tun"]).stdout.splitlines()
        return [line.split()[0] for line in links if line.startswith("slice")]

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted((self.lab.folder / "log").glob("agent*")))


def guest_images(*tools: str) -> Path:
    """Return a folder with the lab's guest image, to which the programs `tools` are added. Later test runs reuse it."""
    folder, name = kept_folder() / "-".join(("images", *tools)), image_name("lab-guest")
    made = ensure_guest(folder / name, print, tools)
    publish(folder, Image(name, made.kernel, made.initrd, made.cmdline))
    return folder


@contextmanager
def node_queue(lab: Lab, plane: FakeControlPlane) -> Iterator[str]:
    """Start a Redis on the management link of the node and yield its URL. Enrolment returns its address to the node."""
    with server_folder() as folder, ExitStack() as ends:
        server = embedded.start(folder, bind=("127.0.0.1", lab.gateway_address))
        ends.callback(server.stop)
        plane.queue = Queue(
            host=lab.gateway_address, port=server.port, username=f"node-{NODE}", namespace=f"ctl:{NODE}"
        )
        plane.on_session = create_session_users(server.url)
        yield server.url


@asynccontextmanager
async def control_of(lab: Lab, plane: FakeControlPlane) -> AsyncIterator[Redis]:
    """Start a Redis on the management link of the node and yield the control plane's connection to it."""
    with node_queue(lab, plane) as url:
        async with Redis.from_url(url) as client:
            await redis_nodes.ensure_scripts(client)
            yield client


@contextmanager
def real_node(
    lab: Lab,
    plane: FakeControlPlane,
    images: Path,
    change: Callable[[Settings], Settings] = lambda same: same,
) -> Iterator[RealNode]:
    """Yield a lab node with two slots and with agent settings changed by `change`. The test starts the agent."""
    host = lab.node(NODE)
    (host.folder / "token").write_text(TOKEN)
    with serving(plane, address=lab.gateway_address) as url:
        settings = Settings(
            node_id=NODE,
            api_url=url,
            enrolment_token_file=host.folder / "token",
            state_folder=Path(tempfile.mkdtemp(prefix="agent-", dir=host.folder)),
            run_folder=Path(RUN_FOLDER),
            images_folder=images,
            datapath_type="netdev",
            slots=tuple(SlotSettings(index=index, vcpus=1, memory_mib=96) for index in (0, 1)),
            survey_seconds=2,
            heartbeat_seconds=1,
        )
        config = host.folder / "agent.json"
        config.write_text(change(settings).model_dump_json())
        yield RealNode(host, config)
        host.stop_daemon("agent")


async def restarts_during(node: RealNode, plane: FakeControlPlane, meanwhile: asyncio.Task[object]) -> int:
    """Kill the agent again after each restart until the task `meanwhile` is done; return the number of kills."""
    restarts = 0
    while not meanwhile.done():
        renewed = len(plane.renewals)
        node.lab.kill("agent")
        restarts += 1
        await _await_restart(node, plane, renewed, meanwhile)
    return restarts


async def _await_restart(
    node: RealNode, plane: FakeControlPlane, renewed: int, meanwhile: asyncio.Task[object]
) -> None:
    """Wait for a session renewal, which proves a restart; a heartbeat may still come from the killed agent."""
    await eventually_async(lambda: len(plane.renewals) > renewed or meanwhile.done(), 90.0, node.log)
