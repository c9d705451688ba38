"""The two nodes of an embedded Sliceplane: lab nodes where the machine can carry them, simulated ones elsewhere.

Both run the same agent on the same kind of configuration; what differs is what stands below it.
"""

import ipaddress
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from deploy.embedded.children import REPOSITORY, Child, python_module
from deploy.embedded.layout import Layout
from deploy.embedded.node_files import NODES, host_file, write_configuration
from deploy.embedded.ssh_key import ensure_key_pair
from events.values import ImageName

if TYPE_CHECKING:
    from node_agent.lab.namespaces import LittleHost

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
"""Addresses of nobody's (RFC 5737), for hosts that exist in memory."""
Say = Callable[[str], None]


class GuestUnusable(Exception):
    """A slice is active and its guest is not what was asked for."""


class Nodes(Protocol):
    """Two nodes without agents at first; `start_agents` when there is a control plane to talk to."""

    simulated: bool

    def start(self) -> None: ...

    @property
    def management_addresses(self) -> tuple[str, ...]:
        """Addresses of this machine at which nodes reach the control plane, beside loopback."""
        ...

    def start_agents(self, api_url: str) -> None: ...

    def public_address(self, name: str) -> str:
        """An address of the node's uplink, at which it is reached from outside."""
        ...

    def prove_login(self, endpoint: dict[str, Any], name: str) -> list[str]:
        """Log in to the guest at `endpoint`, which should be called `name`, with the key of the request, and see
        another key refused; returns what there is to show. Raises `GuestUnusable`.
        """
        ...

    @property
    def namespaces(self) -> dict[str, dict[str, str]]:
        """For each node, by `via` of an endpoint: the file with a process in the network namespace from which it is
        reached on this machine, for `sliceplane ssh`.
        """
        ...

    def leak_target(self, name: str) -> list[str]:
        """Where the leak checker finds a node and what it keeps in files, as its options."""
        ...

    def tend(self) -> None: ...

    def stop(self) -> None: ...


def why_not_real() -> str | None:
    """Why this machine cannot carry lab nodes; None if it can."""
    if os.geteuid() != 0:
        return "namespaces, Open vSwitch and libvirt need root"
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = [program for program in NEEDED if shutil.which(program, path=path) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def sweep_leftovers(layout: Layout) -> list[str]:
    """Remove the links that a killed `up` left on this machine; returns their names."""
    if why_not_real() is not None:
        return []
    from node_agent.lab.networks import sweep

    return sweep(layout.run_id)


class LabNodes:
    """Real nodes: little hosts in namespaces, with guests under QEMU."""

    simulated = False

    def __init__(self, layout: Layout, say: Say) -> None:
        from node_agent.lab.lab import (
            Lab,
        )  # needs pyroute2, which a machine without root has not

        self._layout, self._say = layout, say
        self.lab = Lab(layout.run_id, layout.state, NODES)
        self._images = layout.state / "images"
        self._api_url = ""

    def start(self) -> None:
        from node_agent.images import Image, publish
        from node_agent.lab.guest import ensure_guest

        name = ImageName("lab-guest")
        made = ensure_guest(self._images / name, self._say)
        publish(self._images, Image(name, made.kernel, made.initrd, made.cmdline))
        self._say("starting two nodes: Open vSwitch, libvirt, their own namespaces")
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
        path = write_configuration(
            self._layout, name, self._api_url, node.folder, {"datapath_type": "netdev"}
        )
        node.start_daemon("agent", python_module("node_agent", str(path)), {"PYTHONPATH": str(REPOSITORY)})

    def public_address(self, name: str) -> str:
        return self.lab.node(name).uplink_address

    def prove_login(self, endpoint: dict[str, Any], name: str) -> list[str]:
        from node_agent.lab.login import LoginFailed

        command = ["hostname; uname -sr; ip -4 -o addr show scope global"]
        try:
            said = self._login(endpoint, self._layout.ssh_key, command)
        except LoginFailed as failure:
            raise GuestUnusable(str(failure)) from failure
        if name not in said:
            raise GuestUnusable(f"the guest does not carry the name of its allocation:\n{said}")
        self._prove_refusal(endpoint)
        return [
            *(f"guest: {line.strip()}" for line in said.strip().splitlines()),
            "another key is refused",
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
            raise GuestUnusable("the guest let a key in that nobody asked for")

    def _login(self, endpoint: dict[str, Any], key: Path, command: list[str]) -> str:
        from node_agent.lab.login import login

        return login(self._beside(endpoint), endpoint["address"], key, command, port=endpoint["port"]).stdout

    @property
    def namespaces(self) -> dict[str, dict[str, str]]:
        site = str(self.lab.site.pid_file)
        return {name: {"node": str(self.lab.node(name).pid_file), "public": site} for name in NODES}

    def _beside(self, endpoint: dict[str, Any]) -> "LittleHost":
        """From where it is reached."""
        return self.lab.site if endpoint["via"] == "public" else self.lab.node(endpoint["node_id"])

    def leak_target(self, name: str) -> list[str]:
        node = self.lab.node(name)
        run = node.folder / "run"
        return [
            *("--pid", str(node.pid)),
            *("--disks", str(run / "disks")),
            *("--dhcp-hosts", str(run / "dhcp" / "hosts")),
            *("--dhcp-leases", str(run / "dhcp" / "leases")),
            *("--redis-url-file", str(self._layout.redis_url_file)),
            *("--namespace", f"ctl:{name}"),
        ]

    def tend(self) -> None:
        """Start a node again whose first process died; that process looks after its own daemons."""
        for name in NODES:
            if not self.lab.node(name).alive:
                self._say(f"{name} ended and is started again")
                self.lab.reboot(name)
                self._start_agent(name)

    def stop(self) -> None:
        self.lab.stop()


class SimulatedNodes:
    """The same agents over hosts that exist in memory."""

    simulated = True
    management_addresses: tuple[str, ...] = ()

    def __init__(self, layout: Layout, say: Say) -> None:
        self.namespaces: dict[str, dict[str, str]] = {}
        self._layout, self._say = layout, say
        self._agents: list[Child] = []

    def start(self) -> None:
        """Nothing: a simulated host begins with its agent."""

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
                python_module("node_agent", str(path)),
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

    def tend(self) -> None:
        for agent in self._agents:
            agent.tend(self._say)

    def stop(self) -> None:
        for agent in self._agents:
            agent.stop()
