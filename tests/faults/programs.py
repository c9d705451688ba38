"""Every program of a whole Sliceplane on real lab nodes, as what a test may kill and stop."""

import io
import signal
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console

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
CONTROL_PLANE: Final = tuple(
    name for program in stack.PROGRAMS for name in stack.replicas_of(program, REPLICAS)
)
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
    """A stack and its two nodes, of which the first carries the slices."""

    nodes: LabNodes = field(kw_only=True)

    @property
    def node(self) -> LabNode:
        return self.nodes.lab.node(NODE)

    def signal(self, program: str, number: signal.Signals) -> None:
        """To the program, all of it: to every process of Postgres, and to every guest of the node."""
        if program in DAEMONS:
            self.node.kill(DAEMONS[program], number)
            return
        pid = self.stack.servers[program] if program in SERVERS else self.stack.programs[program].pid
        assert pid is not None
        signal_all(pid, number)

    def is_heard(self) -> bool:
        """Whether the node's agent says that it lives and has compared its slots."""
        self.tend()
        return bool(self.call("GET", f"/nodes/{NODE}")["state"] == "enrolled")

    def is_fit(self) -> bool:
        """Whether the node will be the one that is chosen: heard, lacking nothing, and all its slots free."""
        node = self.call("GET", f"/nodes/{NODE}")
        slots = [each for each in self.call("GET", "/slots")["items"] if each["node_id"] == NODE]
        return self.is_heard() and not node["missing"] and all(each["state"] == "free" for each in slots)

    def lives(self) -> Lives:
        """Of the machines in the first slot."""
        return lives(self.node)

    def emulators(self) -> int:
        """Processes of QEMU that run a guest."""
        running = self.node.processes().values()
        return sum(argv[0].endswith(DAEMONS["qemu"]) and "-name" in argv for argv in running)

    def ports(self) -> list[str]:
        """None while Open vSwitch is away."""
        return self.node.run(
            ["ovs-vsctl", "--timeout=5", "list-ports", "br-slice"], check=False
        ).stdout.split()

    def machines(self) -> list[str]:
        """None while libvirtd is away."""
        listed = self.node.run(["virsh", "-c", "qemu:///system", "list", "--all", "--name"], check=False)
        return listed.stdout.split()

    def leak_check(self) -> "Leaks":
        return Leaks(self)


class Leaks:
    """The leak check of both nodes from here on; what it says is only told where something is left for too long."""

    def __init__(self, lab: Lab) -> None:
        self._said, screen = io.StringIO(), Screen()
        screen.console = Console(file=self._said)
        self._check = LeakCheck(lab.layout, lab.nodes, lab.stack.redis_url, screen)
        self._check.snapshot()

    def await_none(self, seconds: float) -> None:
        """Until both nodes are as they were. Not all of that is done when an allocation is released: a node's own
        network is mended by its survey, and what a dead agent held is taken back when it counts as dead.
        """
        try:
            until(self._is_clean, "nothing is left", seconds)
        except AssertionError as late:
            raise AssertionError(f"{late}: {self._said.getvalue()}") from None

    def _is_clean(self) -> bool:
        self._said.seek(0)
        self._said.truncate()
        return self._check.compare()
