"""A whole Sliceplane on two lab nodes, for whoever drives one from a program: a bench, a test of faults."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.embedded.client import Api
from deploy.embedded.layout import Layout
from deploy.embedded.nodes import LabNodes
from deploy.embedded.screen import Screen
from deploy.embedded.stack import Stack
from deploy.embedded.story import Story


@dataclass(frozen=True)
class Site:
    """What runs, and an admin's key to it."""

    layout: Layout
    stack: Stack
    nodes: LabNodes
    key: str

    @property
    def api(self) -> Api:
        return Api(self.stack.api_url, self.key, self.stack.trusted)


@contextmanager
def running_site(state: Path, images: Path, *, replicas: int) -> Iterator[Site]:
    """So many replicas of every program, and two nodes whose slots are approved. `images` keeps the guest's image.

    Whatever came up is ended, also when the rest did not.
    """
    layout, screen = Layout(state), Screen()
    layout.ensure()
    images.mkdir(parents=True, exist_ok=True)
    (state / "images").symlink_to(images)
    with ExitStack() as up:
        up.callback(layout.remove_run)
        nodes = LabNodes(layout, screen.say)
        up.callback(nodes.stop)
        nodes.start()
        stack = Stack(
            layout, nodes.management_addresses, screen.say, replicas=replicas, namespaces=nodes.namespaces
        )
        up.callback(stack.stop)
        stack.start()
        site = Site(layout, stack, nodes, stack.ensure_key())
        story = Story(layout, site.api, nodes, screen, stack.tend)
        story.admit_nodes()
        nodes.start_agents(stack.node_api_url)
        story.await_nodes({})
        yield site
