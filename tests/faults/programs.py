"""Programs of a complete Sliceplane on real lab nodes, as targets that a test can kill and stop."""

import io
import signal
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console

from control_plane.programs import Program
from deploy.embedded import stack
from deploy.embedded.leaks import LeakCheck
from deploy.embedded.nodes import LabNodes
from deploy.embedded.screen import Screen
from node_agent.lab.lab import LabNode
from tests.faults.caller import Caller
from tests.faults.processes import signal_all
from tests.lab.machine_log import Lives, lives
from tests.waiting import until

NODE: Final = "lab-a"
REPLICAS: Final = 2
CONTROL_PLANE: Final = tuple(name for program in Program for name in stack.replicas_of(program, REPLICAS))
SERVERS: Final = ("postgres", "redis")
DAEMONS: Final = {
    "agent": "agent",
    "ovsdb-server": "ovsdb-server",
    "ovs-vswitchd": "ovs-vswitchd",
    "dnsmasq": "dnsmasq",
    "libvirtd": "libvirtd",
    "qemu": "qemu-system-x86_64",
}
PROGRAMS: Final = (*CONTROL_PLANE, *SERVERS, *DAEMONS)


@dataclass
class Lab(Caller):
    """Control plane with its two lab nodes. The first node carries the slices."""

    nodes: LabNodes = field(kw_only=True)

    @property
    def node(self) -> LabNode:
        return self.nodes.lab.node(NODE)

    def signal(self, program: str, number: signal.Signals) -> None:
        """Send a signal to every process of a program. For Postgres these are all server processes, for `qemu` all
        guests of the node.
        """
        if program in DAEMONS:
            self.node.kill(DAEMONS[program], number)
            return
        pid = self.stack.servers[program] if program in SERVERS else self.stack.programs[program].pid
        assert pid is not None
        signal_all(pid, number)

    def is_alive(self) -> bool:
        """Return whether the API shows the node as enrolled: its agent sends heartbeats, has compared its slots with
        their orders, and has delivered all reports.
        """
        self.supervise()
        return bool(self.call("GET", f"/nodes/{NODE}")["state"] == "enrolled")

    def is_ready(self) -> bool:
        """Return whether the node is available for placement: reachable, without missing prerequisites, and with all
        its slots free.
        """
        node = self.call("GET", f"/nodes/{NODE}")
        slots = [each for each in self.call("GET", "/slots")["items"] if each["node_id"] == NODE]
        return self.is_alive() and not node["missing"] and all(each["state"] == "free" for each in slots)

    def lives(self) -> Lives:
        """Return the starts and ends of the virtual machines in the node's first slot."""
        return lives(self.node)

    def emulators(self) -> int:
        """Return the number of QEMU processes of the lab node that run a guest."""
        running = self.node.processes().values()
        return sum(argv[0].endswith(DAEMONS["qemu"]) and "-name" in argv for argv in running)

    def ports(self) -> list[str]:
        """Return the ports of the OVS bridge; an empty list while Open vSwitch is down."""
        return self.node.run(
            ["ovs-vsctl", "--timeout=5", "list-ports", "br-slice"], check=False
        ).stdout.split()

    def machines(self) -> list[str]:
        """Return the names of the node's libvirt domains; an empty list while libvirtd is down."""
        listed = self.node.run(["virsh", "-c", "qemu:///system", "list", "--all", "--name"], check=False)
        return listed.stdout.split()

    def leak_check(self) -> "Leaks":
        return Leaks(self)


class Leaks:
    """Leak check that compares both lab nodes with their state at the creation of this object. Its output is shown only
    if a resource remains too long.
    """

    def __init__(self, lab: Lab) -> None:
        self._output, screen = io.StringIO(), Screen()
        screen.console = Console(file=self._output)
        self._check = LeakCheck(lab.layout, lab.nodes, lab.stack.redis_url, screen)
        self._check.snapshot()

    def await_none(self, seconds: float) -> None:
        """Wait until both nodes are in their initial state. This can take longer than the release of the allocation:
        the agent's survey repairs the node's own network, and the tasks of a killed agent return to the queue only once
        this agent counts as dead.
        """
        try:
            until(self._is_clean, "both nodes are in their initial state", seconds)
        except AssertionError as late:
            raise AssertionError(f"{late}: {self._output.getvalue()}") from None

    def _is_clean(self) -> bool:
        self._output.seek(0)
        self._output.truncate()
        return self._check.compare()
