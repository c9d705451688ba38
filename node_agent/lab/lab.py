"""A lab: several nodes and their site network, each in its own namespaces on one machine (requires root).

A start removes the leftovers of a killed run with the same id, creates the management bridge, starts the first
processes of all hosts concurrently, attaches the links, and then configures addresses and starts daemons. A stop runs
in reverse order. After `kill -9` of the process that owns the lab, the hosts end by themselves
(`node_agent.lab.namespaces`), and the next start removes the bridge and its ports.
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
from node_agent.lab.namespaces import LabHost
from node_agent.lab.networks import FIRST_HOST, UPSTREAM, attach, make_management, reserve_run, sweep
from node_agent.lab.site import PORT_PREFIX, SiteConfig

log = structlog.get_logger()

READY_SECONDS: Final = 60.0
"""Timeout in seconds until a host of a lab is ready. At the first start, all nodes concurrently probe QEMU for several
seconds."""


class LabNode(LabHost):
    """A lab node with its addresses. `folder` contains the node's files that survive a reboot."""

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
    """A lab with running nodes: `with Lab("r1", state, ["lab-a", "lab-b"]) as lab:`.

    Inside the context, Open vSwitch and libvirt of every node are ready. `run_id` (1 to 8 characters of a-z, 0-9) is
    part of the names of the lab's links on this machine; concurrent labs need different ids. `state` contains the
    folders of the nodes. `cache` stores libvirt's probe results for QEMU and may be shared by labs.
    """

    def __init__(self, run_id: str, state: Path, nodes: Sequence[str], cache: Path | None = None) -> None:
        hidden = [path for path in VOLATILE if state.resolve().is_relative_to(path)]
        if hidden:
            raise ValueError(
                f"the state folder {state} is below {hidden[0]}, where lab nodes mount a tmpfs; choose another folder"
            )
        self.run_id, self._state = run_id, state.resolve()
        self._names = tuple(nodes)
        self._cache = cache or self._state / "libvirt-cache"
        self._hosts = contextlib.ExitStack()
        self.nodes: dict[str, LabNode] = {}

    @property
    def upstream_address(self) -> str:
        """Address of the lab's upstream site: the nodes' default gateway, and the address of the site's servers."""
        return str(UPSTREAM[1])

    def node(self, name: str) -> LabNode:
        return self.nodes[name]

    def start(self) -> Self:
        """Start the site and all nodes of the lab. On failure, remove all started parts.

        Raises `HostFailed` if a host does not start, and `RunInUse` if a lab with this id is running.
        """
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        self._hosts.enter_context(reserve_run(self.run_id))
        left = sweep(self.run_id)
        log.info("lab_starting", run_id=self.run_id, removed_leftover_links=left)
        self._hosts.callback(sweep, self.run_id)
        management = make_management(self.run_id)
        self.gateway_address = str(management.ip)
        folder = self._state / "site"
        self.site = LabHost(
            "site", "node_agent.lab.site", folder, SiteConfig(folder=str(folder), gateway=f"{UPSTREAM[1]}/24")
        )
        for index, name in enumerate(self._names, start=1):
            self.nodes[name] = LabNode(name, index, self._state / "nodes" / name, management)
            _copy_cache_to_node(self._cache, self.nodes[name].folder / "cache")
        self._start_hosts((self.site, *self.nodes.values()))
        _store_cache(self._cache, [node.folder / "cache" for node in self.nodes.values()])

    def _start_hosts(self, hosts: Sequence[LabHost]) -> None:
        for host in hosts:
            self._hosts.callback(host.stop)
            host.launch()
        for host in hosts:
            host.await_namespaces()
        self._attach_links(list(self.nodes.values()))
        for host in hosts:
            host.await_event("ready", READY_SECONDS)

    def _attach_links(self, nodes: Sequence[LabNode]) -> None:
        for node in nodes:
            attach(self.run_id, node.index, node.pid, self.site.pid)
        for host in (self.site, *nodes):
            host.send(LinksAttached())

    def capture(self, name: str, path: Path) -> Capture:
        """Return a capture of the frames that leave a node through its uplink; it writes a pcap file to `path`."""
        return Capture(self.site, f"{PORT_PREFIX}{self.nodes[name].index}", path)

    def reboot(self, name: str) -> LabNode:
        """Kill a lab node as a power failure would, and start it again with its persistent files.

        The caller must then restart the daemons that it had started on the node, including the agent.
        """
        node = self.nodes[name]
        node.stop()
        # A network namespace that another process holds open keeps its links, also the node's port on the site.
        self.site.run(["ip", "link", "delete", f"{PORT_PREFIX}{node.index}"], check=False)
        node.launch()
        node.await_namespaces()
        self._attach_links([node])
        node.await_event("ready", READY_SECONDS)
        return node

    def stop(self) -> None:
        """Stop every host of the lab and remove the management bridge. Idempotent."""
        self._hosts.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _copy_cache_to_node(cache: Path, folder: Path) -> None:
    """Copy libvirt's probe results for QEMU from the labs' shared cache to a node that has no probe results."""
    if cache.is_dir() and not folder.exists():
        shutil.copytree(cache, folder)


def _store_cache(cache: Path, folders: Sequence[Path]) -> None:
    if cache.is_dir() or not folders:
        return
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as made:
        copy = shutil.copytree(folders[0], Path(made) / "cache")
        # A concurrent lab may have stored its copy first; both copies are equivalent.
        with contextlib.suppress(OSError):
            copy.rename(cache)
