"""The two nodes of an embedded Sliceplane: lab nodes if the machine supports them, otherwise simulated ones.

Both kinds run the same agent with the same kind of configuration; only the host below the agent differs.
"""

import ipaddress
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from deploy.embedded.children import Child, installed_program
from deploy.embedded.layout import Layout
from deploy.embedded.node_files import NODES, host_file, write_configuration
from deploy.embedded.ssh_key import ensure_key_pair
from events.values import ImageName

if TYPE_CHECKING:
    from node_agent.lab.lab import LabNode
    from node_agent.lab.namespaces import LabHost

NEEDED: Final = (
    "ovs-vswitchd",
    "ovsdb-server",
    "dnsmasq",
    "nft",
    "libvirtd",
    "qemu-system-x86_64",
    "ssh",
    "conntrack",
)
DOCUMENTED: Final = ipaddress.IPv4Network("203.0.113.0/24")
"""Addresses reserved for documentation (RFC 5737), used by hosts that exist only in memory."""
ShowLine = Callable[[str], None]


class GuestUnusable(Exception):
    """A slice is active, but its guest does not match the request."""


class Nodes(Protocol):
    """The two nodes of an embedded Sliceplane. `start` starts them without agents; `start_agents` needs a running
    control plane."""

    simulated: bool

    def start(self) -> None: ...

    @property
    def management_addresses(self) -> tuple[str, ...]:
        """Addresses of this machine, besides loopback, at which nodes reach the control plane."""
        ...

    def start_agents(self, api_url: str) -> None: ...

    def public_address(self, name: str) -> str:
        """Return an address of the node's uplink at which it is reachable from outside."""
        ...

    def prove_login(self, endpoint: dict[str, Any], name: str) -> list[str]:
        """Log in to the guest at `endpoint` with the requested key and verify that it refuses another key.

        The guest's host name must be `name`. Return the lines to show. Raises `GuestUnusable`.
        """
        ...

    @property
    def namespaces(self) -> dict[str, dict[str, str]]:
        """Network namespaces for `sliceplane ssh`: by node, then by the field `via` of an endpoint.

        Each value is the pid file of a process in the namespace from which the endpoint is reachable on this machine.
        """
        ...

    def leak_target(self, name: str) -> list[str]:
        """Return the leak checker's options that locate a node and its files."""
        ...

    def supervise(self) -> None: ...

    def stop(self) -> None: ...


def reason_lab_nodes_cannot_run() -> str | None:
    """Return the reason why this machine cannot run lab nodes, or None if it can."""
    if os.geteuid() != 0:
        return "namespaces, Open vSwitch and libvirt need root"
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = [program for program in NEEDED if shutil.which(program, path=path) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def sweep_leftovers(layout: Layout) -> list[str]:
    """Remove the network links that a killed `up` left on this machine. Return their names."""
    if reason_lab_nodes_cannot_run() is not None:
        return []
    from node_agent.lab.networks import sweep

    return sweep(layout.run_id)


class LabNodes:
    """Real nodes: hosts in network namespaces, with guests in QEMU."""

    simulated = False

    def __init__(self, layout: Layout, show: ShowLine) -> None:
        from node_agent.lab.lab import Lab  # needs pyroute2, which is not installed on a machine without root

        self._layout, self._show = layout, show
        self.lab = Lab(layout.run_id, layout.state, NODES)
        self._images = layout.state / "images"
        self._api_url = ""

    def start(self) -> None:
        from node_agent.host.images import Image, publish
        from node_agent.lab.guest import ensure_guest

        name = ImageName("lab-guest")
        made = ensure_guest(self._images / name, self._show)
        publish(self._images, Image(name, made.kernel, made.initrd, made.cmdline))
        self._show("starting two nodes with Open vSwitch and libvirt in their own namespaces")
        self.lab.start()

    @property
    def management_addresses(self) -> tuple[str, ...]:
        return (self.lab.gateway_address,)

    def start_agents(self, api_url: str) -> None:
        self._api_url = api_url
        for name in NODES:
            self._start_agent(name)

    def _start_agent(self, name: str) -> None:
        node = self.lab.node(name)
        host = {"datapath_type": "netdev", "root_disks": {"folder": str(_root_disks(node))}}
        path = write_configuration(self._layout, name, self._api_url, node.folder, host)
        node.start_daemon("agent", installed_program("sliceplane-agent", str(path)), {})

    def public_address(self, name: str) -> str:
        return self.lab.node(name).uplink_address

    def prove_login(self, endpoint: dict[str, Any], name: str) -> list[str]:
        from node_agent.lab.login import LoginFailed

        command = ["hostname; uname -sr; ip -4 -o addr show scope global"]
        try:
            output = self._login(endpoint, self._layout.ssh_key, command)
        except LoginFailed as failure:
            raise GuestUnusable(str(failure)) from failure
        if name not in output:
            raise GuestUnusable(f"the guest's host name is not {name}; the guest printed:\n{output}")
        self._prove_refusal(endpoint)
        return [
            *(f"guest: {line.strip()}" for line in output.strip().splitlines()),
            "the guest refuses an SSH key that is not in the request",
        ]

    def _prove_refusal(self, endpoint: dict[str, Any]) -> None:
        from node_agent.lab.login import LoginFailed

        other = self._layout.ssh_key.with_name("another_key")
        ensure_key_pair(other)
        try:
            self._login(endpoint, other, ["true"])
        except LoginFailed as failure:
            if not failure.refused:
                raise GuestUnusable(str(failure)) from failure
        else:
            raise GuestUnusable(
                "the guest accepted an SSH key that the request of its allocation does not contain"
            )

    def _login(self, endpoint: dict[str, Any], key: Path, command: list[str]) -> str:
        from node_agent.lab.login import login

        return login(self._beside(endpoint), endpoint["address"], key, command, port=endpoint["port"]).stdout

    @property
    def namespaces(self) -> dict[str, dict[str, str]]:
        site = str(self.lab.site.pid_file)
        return {name: {"node": str(self.lab.node(name).pid_file), "public": site} for name in NODES}

    def _beside(self, endpoint: dict[str, Any]) -> "LabHost":
        """Return the lab host from which the endpoint of a slice is reachable: its node, or the external host."""
        return self.lab.site if endpoint["via"] == "public" else self.lab.node(endpoint["node_id"])

    def leak_target(self, name: str) -> list[str]:
        node = self.lab.node(name)
        run = node.folder / "run"
        return [
            *("--pid", str(node.pid)),
            *("--disks", str(run / "disks")),
            *("--root-disks", str(_root_disks(node) / "slots")),
            *("--dhcp-hosts", str(run / "dhcp" / "hosts")),
            *("--dhcp-leases", str(run / "dhcp" / "leases")),
            *("--redis-url-file", str(self._layout.redis_url_file)),
            *("--namespace", f"ctl:{name}"),
        ]

    def supervise(self) -> None:
        """Restart a node if its first process has died. That process supervises the node's own daemons."""
        for name in NODES:
            if not self.lab.node(name).alive:
                self._show(f"{name} exited and is restarted")
                self.lab.reboot(name)
                self._start_agent(name)

    def stop(self) -> None:
        self.lab.stop()


def _root_disks(node: "LabNode") -> Path:
    """Return the folder for disk images and root disks of a lab node."""
    return node.folder / "root-disks"


class SimulatedNodes:
    """Two agents on simulated hosts. An agent keeps its host in memory, and stores it in a file across restarts."""

    simulated = True
    management_addresses: tuple[str, ...] = ()

    def __init__(self, layout: Layout, show: ShowLine) -> None:
        self.namespaces: dict[str, dict[str, str]] = {}
        self._layout, self._show = layout, show
        self._agents: list[Child] = []

    def start(self) -> None:
        """Do nothing: a simulated host starts with its agent."""

    def start_agents(self, api_url: str) -> None:
        for name in NODES:
            folder = self._layout.node(name)
            folder.mkdir(parents=True, exist_ok=True)
            host = {
                "simulated": {
                    "boot_seconds": 1.0,
                    "host_file": str(host_file(self._layout, name)),
                }
            }
            path = write_configuration(self._layout, name, api_url, folder, host)
            agent = Child(
                name,
                installed_program("sliceplane-agent", str(path)),
                self._layout.logs / f"{name}.log",
            )
            agent.start()
            self._agents.append(agent)

    def public_address(self, name: str) -> str:
        return str(DOCUMENTED[1 + NODES.index(name)])

    def prove_login(self, endpoint: dict[str, Any], name: str) -> list[str]:
        return ["a simulated node has no guest to log in to"]

    def leak_target(self, name: str) -> list[str]:
        return ["--simulated", str(host_file(self._layout, name))]

    def supervise(self) -> None:
        for agent in self._agents:
            agent.supervise(self._show)

    def stop(self) -> None:
        for agent in self._agents:
            agent.stop()
