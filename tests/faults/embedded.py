"""What `./dev up` runs, held by a test: real servers and programs as processes, real lab nodes, real guests."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import httpx
import redis

from deploy.embedded.client import Api
from deploy.embedded.layout import Layout
from deploy.embedded.nodes import LabNodes
from deploy.embedded.screen import Screen
from deploy.embedded.stack import Stack
from deploy.embedded.story import Story
from node_agent.lab.lab import LabNode
from tests.lab.machine_log import lives
from tests.servers.lab import kept_folder
from tests.waiting import until

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV test"
QUEUE = "ctl:lab-a:slices"


@dataclass(frozen=True)
class Embedded:
    """A running Sliceplane whose parts a test may kill; `tend` starts again what died."""

    layout: Layout
    stack: Stack
    nodes: LabNodes
    api: Api

    def tend(self) -> None:
        self.stack.tend()

    def node(self, name: str = "lab-a") -> LabNode:
        return self.nodes.lab.node(name)

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.stack.redis_url)

    def create(self) -> str:
        return str(self.api.post("/allocations", {"sku": "lab.small", "ssh_authorized_keys": [KEY]})["id"])

    def state(self, allocation: str) -> str:
        """The allocation's state; `unknown` while the API is away."""
        self.tend()
        try:
            return str(self.api.get(f"/allocations/{allocation}")["state"])
        except httpx.TransportError:
            return "unknown"

    def await_state(self, allocation: str, *states: str, seconds: float = 60.0) -> None:
        until(lambda: self.state(allocation) in states, f"{allocation} is {' or '.join(states)}", seconds)

    def story(self, allocation: str) -> list[str]:
        return [event["type"] for event in self.api.items(f"/allocations/{allocation}/events")]

    def release(self, allocation: str) -> None:
        self.api.delete(f"/allocations/{allocation}")
        self.await_state(allocation, "released")

    def starts(self, tap: str, name: str = "lab-a") -> int:
        """How often libvirt started a machine in this place, as libvirt's own log of it says."""
        return lives(self.node(name), tap).starts

    def ports(self, name: str = "lab-a") -> list[str]:
        return self.node(name).run(["ovs-vsctl", "list-ports", "br-slice"]).stdout.split()

    def machines(self, name: str = "lab-a") -> list[str]:
        listed = self.node(name).run(["virsh", "-c", "qemu:///system", "list", "--all", "--name"])
        return listed.stdout.split()


def start(state: Path, *, replicas: int = 1) -> Embedded:
    """Bring everything up with two lab nodes and approved slots."""
    layout = Layout(state)
    layout.ensure()
    kept = kept_folder() / "images"
    kept.mkdir(parents=True, exist_ok=True)
    (state / "images").symlink_to(kept)
    screen = Screen()
    nodes = LabNodes(layout, screen.say)
    nodes.start()
    stack = Stack(layout, nodes.management_addresses, screen.say, replicas=replicas)
    stack.start()
    api = Api(stack.api_url, stack.ensure_key(), stack.trusted)
    story = Story(layout, api, nodes, screen, stack.tend)
    story.admit_nodes()
    nodes.start_agents(stack.node_api_url)
    story.await_nodes({})
    return Embedded(layout, stack, nodes, api)


def stop(embedded: Embedded) -> None:
    embedded.stack.stop()
    embedded.nodes.stop()


def traces(layout: Layout) -> list[str]:
    """What a run on this state folder still has on this machine: processes, links, mounts."""
    left = [f"process {pid}: {line}" for pid, line in _processes() if str(layout.state) in line]
    links = json.loads(
        subprocess.run(["ip", "-j", "link"], capture_output=True, check=True, text=True).stdout
    )
    left += [f"link {link['ifname']}" for link in links if link["ifname"].startswith(f"sl-{layout.run_id}")]
    mounts = Path("/proc/mounts").read_text().splitlines()
    return left + [f"mount {line}" for line in mounts if str(layout.state) in line]


def _processes() -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.append((int(entry.name), line))
    return found
