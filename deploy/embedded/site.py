"""A complete Sliceplane on two lab nodes, for programs that control one: benchmarks and fault tests."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.embedded.client import Api
from deploy.embedded.demonstration import Demonstration
from deploy.embedded.layout import Layout
from deploy.embedded.nodes import LabNodes
from deploy.embedded.screen import Screen
from deploy.embedded.stack import Stack


@dataclass(frozen=True)
class LabSite:
    """A running control plane with two nodes, and an admin's API key."""

    layout: Layout
    stack: Stack
    nodes: LabNodes
    key: str

    @property
    def api(self) -> Api:
        return Api(self.stack.api_url, self.key, self.stack.trusted)


@contextmanager
def running_site(state: Path, images: Path, *, replicas: int) -> Iterator[LabSite]:
    """Run `replicas` processes of each program, and two nodes with approved slots. `images` has the guest image.

    At the end, and if a part does not start, everything that was started is stopped.
    """
    layout, screen = Layout(state), Screen()
    layout.ensure()
    images.mkdir(parents=True, exist_ok=True)
    (state / "images").symlink_to(images)
    with ExitStack() as up:
        up.callback(layout.remove_run)
        nodes = LabNodes(layout, screen.show)
        up.callback(nodes.stop)
        nodes.start()
        stack = Stack(
            layout, nodes.management_addresses, screen.show, replicas=replicas, namespaces=nodes.namespaces
        )
        up.callback(stack.stop)
        stack.start()
        site = LabSite(layout, stack, nodes, stack.ensure_key())
        demonstration = Demonstration(layout, site.api, nodes, screen, stack.supervise)
        demonstration.admit_nodes()
        nodes.start_agents(stack.node_api_url)
        demonstration.await_nodes({})
        yield site
