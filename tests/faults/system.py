"""Complete Sliceplane of real processes with a simulated node. A test arms, kills and stops each process.

Every control plane program has two replicas. An armed replica was started with a failpoint at which it dies; the other
replica is stopped meanwhile. After the death, `supervise` starts the other replica first, which takes over, and then
restarts the dead one without a failpoint. Every wait calls `supervise`, because it also restarts all other programs
that died.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from deploy.embedded.children import Child, installed_program
from deploy.embedded.lab_catalogue import SKUS
from deploy.embedded.layout import Layout
from deploy.embedded.node_files import host_file, write_configuration, write_token
from deploy.embedded.screen import Screen
from deploy.embedded.stack import Stack
from events.entries import SkuContent
from events.values import SkuName
from node_agent.lab.leaks.snapshot import Snapshot, differences, take
from node_agent.lab.leaks.target import SimulatedTarget
from node_agent.lab.simulated.host import State
from tasks.scripts import QueueKeys, namespace_of
from tasks.workflows import Process
from tests.faults.caller import Caller
from tests.servers.postgres import server_folder
from tests.waiting import until

NODE: Final = "lab-a"
CONVERGED_SECONDS: Final = 30.0
DEATH_SECONDS: Final = 60.0
REPLICAS: Final = 2
ON_CARDS: Final = SkuName("lab.small")
"""The SKU of the slots that have virtual functions as network cards."""
WITH_ROOT_DISK: Final = SkuName("disk.medium")
"""A SKU with a root disk, for the slots that have no virtual functions."""
DISK_IMAGE: Final = "disk"
"""Name of a disk image. Allocations with this image need a SKU with a root disk."""


@dataclass
class Node:
    """Simulated node: its agent process, and the file that stores the state of its host."""

    name: str
    folder: Path
    host: Path
    agent: Child

    def state(self) -> State:
        return msgspec.json.decode(self.host.read_bytes(), type=State)

    def disturb(self, change: Callable[[State], None]) -> None:
        """Change the file of the simulated host. No agent may run meanwhile, because an agent keeps the file's content
        in memory.
        """
        state = self.state()
        change(state)
        self.host.write_bytes(msgspec.json.encode(state, order="deterministic"))


@dataclass
class System(Caller):
    """Complete system under test. `armed` is the program that is to die at its failpoint, and `died_at` the time of its
    death by the monotonic clock.

    A node has `plain_slots` equal slots without functions of its host; if 0, slots of all kinds. `late` contains the
    allocations that were created during a fault.
    """

    boot_seconds: float = field(kw_only=True)
    plain_slots: int = 0
    nodes: dict[str, Node] = field(default_factory=dict)
    armed: Child | None = None
    died_at: float | None = None
    late: list[str] = field(default_factory=list)
    _twins: list[Child] = field(default_factory=list)

    @property
    def node(self) -> Node:
        return self.nodes[NODE]

    def children(self, process: Process) -> list[Child]:
        """Return all replicas of a program."""
        if process == "agent":
            return [self.node.agent]
        return [child for name, child in self.stack.programs.items() if name.partition("-")[0] == process]

    def place(self, allocation: str) -> str:
        """Return the name of the tap interface of the allocation's first slot."""
        return f"slice{self.show(allocation)['slots'][0]['slot_index']}"

    def in_queue(self) -> int:
        """Return the number of orders that wait in the node's queue."""
        return int(self.redis().llen(QueueKeys.of(namespace_of(NODE)).waiting))

    def held(self) -> list[bytes | str]:
        """Return the orders that workers of the node have fetched and not finished."""
        return self.redis().hkeys(QueueKeys.of(namespace_of(NODE)).held)

    def enrolments(self, node: str) -> int:
        """Return how often the ledger records an enrolment of the node."""
        return sum(each["node_id"] == node for each in self.facts("node.enrolled"))

    # Death and restart

    def take_down(self, child: Child) -> None:
        """Kill a program. `supervise` does not restart it until a test starts it again."""
        child.send(signal.SIGKILL)
        child.stop()

    def arm(self, process: Process, point: str, *, child: Child | None = None) -> None:
        """Start one replica of the program so that it dies at a failpoint, and stop the other replicas."""
        replicas = [child] if child is not None else self.children(process)
        for each in replicas:
            self.take_down(each)
        self.armed, self.died_at = replicas[0], None
        self.armed.environment = {**self.armed.environment, "SLICEPLANE_FAILPOINTS": point}
        self.armed.start()
        self._twins = replicas[1:]

    def supervise(self) -> None:
        """Restart every program that died. If the armed program died, start all its replicas without a failpoint."""
        if self.armed is not None and self.armed.status is not None:
            assert self.armed.status == -signal.SIGKILL, f"{self.armed.name} ended with {self.armed.status}"
            self.died_at = time.monotonic()
            self.disarm()
        self.stack.supervise()
        for node in self.nodes.values():
            node.agent.supervise(_ignore)

    def disarm(self) -> None:
        """Kill the program that was started with a failpoint, and start all its replicas without one."""
        if self.armed is None:
            return
        child, self.armed = self.armed, None
        child.send(signal.SIGKILL)
        child.environment = {**child.environment, "SLICEPLANE_FAILPOINTS": ""}
        for each in (*self._twins, child):
            each.start()

    def await_death_without_restart(self) -> None:
        """Wait until the program with a failpoint has died, and restart none of its replicas."""
        child = self.armed
        assert child is not None
        until(lambda: child.status == -signal.SIGKILL, "the program died at its failpoint", DEATH_SECONDS)
        self.armed, child.environment = None, {**child.environment, "SLICEPLANE_FAILPOINTS": ""}
        child.stop()

    def await_death(self, seconds: float = DEATH_SECONDS) -> None:
        def dead() -> bool:
            self.supervise()
            return self.died_at is not None

        until(dead, "the program died at its failpoint", seconds)

    def converge(self, condition: Callable[[], bool], what: str) -> float:
        """Wait until `condition` is true, at most `CONVERGED_SECONDS` after the program with a failpoint died.
        Return the seconds since this death.
        """
        assert self.died_at is not None
        began = self.died_at

        def done() -> bool:
            self.supervise()
            return condition()

        until(done, what, began + CONVERGED_SECONDS - time.monotonic())
        return time.monotonic() - began

    # Observation

    def snapshot(self) -> Snapshot:
        return take(SimulatedTarget(str(self.node.host)))

    def leaks(self, before: Snapshot) -> list[str]:
        after = self.snapshot()
        assert not after.unreadable
        return [f"{each.change}: {each.kind}: {each.object}" for each in differences(before, after)]

    def add_node(self, name: str, failpoints: str = "") -> Node:
        """Register a simulated node with the control plane and start its agent."""
        folder = self.layout.node(name)
        folder.mkdir(parents=True)
        token = self.call("POST", "/nodes", {"id": name})["enrolment_token"]
        write_token(self.layout, name, token)
        host = host_file(self.layout, name)
        slot = _room_for(SKUS[SkuName(self.sku)])
        simulated = {
            "simulated": {
                "boot_seconds": self.boot_seconds,
                "host_file": str(host),
                "gpu_partitions": [{"number": index, "gpus": [f"0000:1b:{index:02x}.0"]} for index in (0, 1)],
            },
            "survey_seconds": 2,
            "slots": [{"index": index, **slot} for index in range(self.plain_slots)]
            or _slots_of_all_kinds(slot),
        }
        path = write_configuration(self.layout, name, self.stack.node_api_url, folder, simulated)
        agent = Child(
            name, installed_program("sliceplane-agent", str(path)), self.layout.logs / f"{name}.log"
        )
        agent.environment = {"SLICEPLANE_FAILPOINTS": failpoints}
        self.nodes[name] = Node(name, folder, host, agent)
        agent.start()
        return self.nodes[name]

    def publish_root_disks(self) -> None:
        """Publish a disk image, and a SKU with a root disk that is otherwise the usual one."""
        usual = SKUS[SkuName(self.sku)]
        sku = {**_room_for(usual), "rate_mbit": usual.rate_mbit, "disk_gib": 1, "price_per_hour": "0.01"}
        self.call("POST", "/skus", {"name": WITH_ROOT_DISK, **sku})
        image = {"format": "raw", "digest": f"sha256:{'5a' * 32}", "size_bytes": 1, "firmware": "bios"}
        self.call("POST", "/images", {"name": DISK_IMAGE, **image})

    def seen_at(self, name: str) -> str:
        """Return the time of the node's last report, by the database's clock."""
        return str(self.call("GET", f"/nodes/{name}")["seen_at"])

    def is_settled(self, name: str = NODE) -> bool:
        self.supervise()
        node = self.call("GET", f"/nodes/{name}")
        return node["state"] == "enrolled" and bool(node["hostname"]) and not node["missing"]


def _room_for(sku: SkuContent) -> dict[str, int]:
    return {"vcpus": sku.vcpus, "memory_mib": sku.memory_mib}


def _slots_of_all_kinds(room: dict[str, int]) -> list[dict[str, Any]]:
    """Return the settings of four slots: two with a GPU and a CPU of their own, and two with a virtual function as
    network card. With them, slices are created and removed by every kind of step.
    """
    return [
        *({"index": index, **room, "gpus": [f"0000:1b:{index:02x}.0"], "cpus": [index]} for index in (0, 1)),
        *({"index": index, **_room_for(SKUS[ON_CARDS]), "vf": f"0000:3b:00.{index}"} for index in (2, 3)),
    ]


def _ignore(_line: str) -> None:
    """Ignore the notice of a restarted program, because restarts are visible in the program's log."""


@contextmanager
def running_system(boot_seconds: float = 0.2, plain_slots: int = 0) -> Iterator[System]:
    """Run a system with one node and approved slots. A slice on this node takes `boot_seconds` to start."""
    with server_folder() as state:
        layout = Layout(state)
        layout.ensure()
        stack = Stack(layout, (), Screen().show, replicas=REPLICAS, simulated_nodes=True)
        # With a rate, so that meters are made and removed too.
        system = System(layout, stack, sku="lab.medium", boot_seconds=boot_seconds, plain_slots=plain_slots)
        try:
            stack.start()
            for child in stack.programs.values():
                # Deadlines have no grace period: a case that waits for a deadline would wait for the grace period as
                # well.
                child.environment = {**child.environment, "SLICEPLANE_DEADLINE_GRACE_SECONDS": "0"}
            system.key = stack.ensure_key()
            system.add_node(NODE)
            until(system.is_settled, "the node is settled", 60)
            system.publish_root_disks()
            for slot in system.call("GET", "/slots")["items"]:
                path = f"/nodes/{NODE}/slots/{slot['index']}/approve"
                system.call("POST", path)
                if any(each["use"] == "gpu" for each in slot["devices"]):
                    system.call("POST", path, {"skus": [system.sku, WITH_ROOT_DISK]})
            public = {"address": "203.0.113.7", "use": "ports"}
            system.call("PUT", f"/nodes/{NODE}/public-addresses", {"addresses": [public]})
            yield system
        finally:
            for node in system.nodes.values():
                node.agent.stop()
            stack.stop()
            layout.remove_run()
