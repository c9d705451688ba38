"""A lab: nodes that are little hosts of their own, and the site they hang off, on one machine (needs root).

Order of a start: sweep what a killed run of this id left, the management bridge, all first processes at once, cables,
addresses, daemons. A stop goes the other way. After `kill -9` of the process that holds the lab its hosts end by
themselves (namespaces.py), and the bridge with its ports waits for the next start's sweep.
"""

import contextlib
import ipaddress
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import structlog

from node_agent.lab.capture import Capture
from node_agent.lab.control import LinksAttached
from node_agent.lab.host import VOLATILE, HostConfig
from node_agent.lab.namespaces import LittleHost
from node_agent.lab.networks import FIRST_HOST, UPSTREAM, attach, hold, make_management, sweep
from node_agent.lab.site import PORT_PREFIX, SiteConfig

log = structlog.get_logger()

READY_SECONDS: Final = 60.0
"""A first start probes QEMU for several seconds a node, all of them at once."""


class LabNode(LittleHost):
    """A node with its addresses; what it keeps over a reboot lies in `folder`."""

    def __init__(self, name: str, index: int, folder: Path, management: ipaddress.IPv4Interface) -> None:
        self.index = index
        self.management_address = str(management.network[FIRST_HOST + index])
        self.uplink_address = str(UPSTREAM[FIRST_HOST + index])
        config = HostConfig(
            name=name,
            folder=str(folder),
            management=f"{self.management_address}/{management.network.prefixlen}",
            uplink=f"{self.uplink_address}/{UPSTREAM.prefixlen}",
            gateway=str(UPSTREAM[1]),
        )
        super().__init__(name, "node_agent.lab.host", folder, config)


class Lab:
    """`with Lab("r1", state, ["lab-a", "lab-b"]) as lab:` gives nodes whose OVS and libvirt answer.

    `run_id` (1 to 8 of a-z, 0-9) names what lies on this machine; two labs at once need two. `state` keeps the nodes'
    folders. `cache` keeps libvirt's findings about QEMU, and may be shared by labs.
    """

    def __init__(self, run_id: str, state: Path, nodes: Sequence[str], cache: Path | None = None) -> None:
        hidden = [path for path in VOLATILE if state.resolve().is_relative_to(path)]
        if hidden:
            raise ValueError(f"a lab's state cannot lie in {hidden[0]}, which its nodes hide")
        self.run_id, self._state = run_id, state.resolve()
        self._names = tuple(nodes)
        self._cache = cache or self._state / "libvirt-cache"
        self._hosts = contextlib.ExitStack()
        self.nodes: dict[str, LabNode] = {}

    @property
    def upstream_address(self) -> str:
        """The site's own address, the nodes' default gateway, where its listeners answer."""
        return str(UPSTREAM[1])

    def node(self, name: str) -> LabNode:
        return self.nodes[name]

    def start(self) -> Self:
        """Raises `HostFailed` if a host does not come up, `RunHeld` if a lab of this id runs; leaves nothing then."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        self._hosts.enter_context(hold(self.run_id))
        left = sweep(self.run_id)
        log.info("lab_starting", run=self.run_id, swept=left)
        self._hosts.callback(sweep, self.run_id)
        management = make_management(self.run_id)
        self.gateway_address = str(management.ip)
        folder = self._state / "site"
        self.site = LittleHost(
            "site", "node_agent.lab.site", folder, SiteConfig(folder=str(folder), gateway=f"{UPSTREAM[1]}/24")
        )
        for index, name in enumerate(self._names, start=1):
            self.nodes[name] = LabNode(name, index, self._state / "nodes" / name, management)
            _warm(self._cache, self.nodes[name].folder / "cache")
        self._start_hosts((self.site, *self.nodes.values()))
        _keep(self._cache, [node.folder / "cache" for node in self.nodes.values()])

    def _start_hosts(self, hosts: Sequence[LittleHost]) -> None:
        for host in hosts:
            self._hosts.callback(host.stop)
            host.launch()
        for host in hosts:
            host.await_birth()
        self._plug_in(list(self.nodes.values()))
        for host in hosts:
            host.await_event("ready", READY_SECONDS)

    def _plug_in(self, nodes: Sequence[LabNode]) -> None:
        for node in nodes:
            attach(self.run_id, node.index, node.pid, self.site.pid)
        for host in (self.site, *nodes):
            host.tell(LinksAttached())

    def capture(self, name: str, path: Path) -> Capture:
        """Record what leaves a node by its uplink, as a pcap file at `path`."""
        return Capture(self.site, f"{PORT_PREFIX}{self.nodes[name].index}", path)

    def reboot(self, name: str) -> LabNode:
        """End a node as a power cut does and start it anew, with the disks that it keeps.

        Daemons that it was told to run besides its own, the agent too, are for the caller to start again.
        """
        node = self.nodes[name]
        node.stop()
        node.launch()
        node.await_birth()
        self._plug_in([node])
        node.await_event("ready", READY_SECONDS)
        return node

    def stop(self) -> None:
        """End every host and remove the bridge. Idempotent."""
        self._hosts.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _warm(cache: Path, folder: Path) -> None:
    """Give a node that has none what another node's libvirt found out."""
    if cache.is_dir() and not folder.exists():
        shutil.copytree(cache, folder)


def _keep(cache: Path, folders: Sequence[Path]) -> None:
    if cache.is_dir() or not folders:
        return
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as made:
        copy = shutil.copytree(folders[0], Path(made) / "cache")
        # Another lab may have been faster: its copy is as good.
        with contextlib.suppress(OSError):
            copy.rename(cache)
