"""What `./dev up` runs, held by a test: real servers and programs as processes, real lab nodes, real guests."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deploy.embedded.client import Api
from deploy.embedded.layout import Layout
from deploy.embedded.nodes import LabNodes
from deploy.embedded.screen import Screen
from deploy.embedded.stack import Stack
from deploy.embedded.story import Story
from tests.faults.programs import REPLICAS, Lab
from tests.servers.lab import kept_folder
from tests.servers.postgres import server_folder


@contextmanager
def running_lab() -> Iterator[Lab]:
    """Two replicas of every program, and two lab nodes with approved slots."""
    # Whatever came up is ended, also when the rest did not: the folder goes from under it.
    with server_folder() as state, ExitStack() as up:
        layout, screen = _layout(state), Screen()
        up.callback(layout.remove_run)
        nodes = LabNodes(layout, screen.say)
        up.callback(nodes.stop)
        nodes.start()
        stack = Stack(layout, nodes.management_addresses, screen.say, replicas=REPLICAS)
        up.callback(stack.stop)
        stack.start()
        key = stack.ensure_key()
        story = Story(layout, Api(stack.api_url, key, stack.trusted), nodes, screen, stack.tend)
        story.admit_nodes()
        nodes.start_agents(stack.node_api_url)
        story.await_nodes({})
        yield Lab(layout, stack, key, nodes=nodes)


def _layout(state: Path) -> Layout:
    """With the guest's image of earlier runs."""
    layout = Layout(state)
    layout.ensure()
    kept = kept_folder() / "images"
    kept.mkdir(parents=True, exist_ok=True)
    (state / "images").symlink_to(kept)
    return layout


def traces(layout: Layout) -> list[str]:
    """What a run on this state folder still has on this machine: processes, links, mounts, its run folder."""
    left = [f"process {pid}: {line}" for pid, line in _processes() if str(layout.state) in line]
    links = json.loads(
        subprocess.run(["ip", "-j", "link"], capture_output=True, check=True, text=True).stdout
    )
    left += [f"link {link['ifname']}" for link in links if link["ifname"].startswith(f"sl-{layout.run_id}")]
    left += [f"folder {layout.run}"] if layout.run.exists() else []
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
