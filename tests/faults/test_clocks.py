"""Promise P8: although clocks are off by more than an hour, or jump, each order is started once, and no order expires
because of a wrong clock.

One of two nodes has a clock ahead, the other a clock behind. The start of a slice takes longer than the worker timeout,
so a program that used such a clock would treat a living worker as dead, or a valid order as expired. Afterwards
the control plane's programs run with wrong clocks too, one replica of each ahead and the other behind; the clock of
their database is correct.
"""

import itertools
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psycopg
import pytest

from deploy.embedded.children import Child
from node_agent.lab.leaks.snapshot import Snapshot, differences, take
from node_agent.lab.leaks.target import SimulatedTarget
from tasks.scripts import WORKER_TIMEOUT
from tests import matrix
from tests.faults.shifted_clock import ShiftedClock, build_library
from tests.faults.system import CONVERGED_SECONDS, Node, System, running_system
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
AHEAD: Final = 3660
BEHIND: Final = -3660
OTHER: Final = "lab-b"
BOOT_SECONDS: Final = WORKER_TIMEOUT + 3.0
LEASE_SECONDS: Final = 60
"""Duration in seconds of the allocation leases of these tests: the shortest that can be requested."""
SLICES: Final = 4
"""Number of slices in the test, which is as many as both nodes can carry."""
CASES: Final = ("nodes", "jumping nodes", "control plane")
_TRUE_TIME: Final = {"LD_PRELOAD": ""}


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    """System with two nodes, on which slices take long to start."""
    with running_system(boot_seconds=BOOT_SECONDS) as running:
        running.add_node(OTHER)
        until(lambda: running.is_settled(OTHER), "the other node is settled", 60)
        for slot in running.call("GET", "/slots")["items"]:
            if slot["node_id"] == OTHER:
                running.call("POST", f"/nodes/{OTHER}/slots/{slot['index']}/approve")
        yield running


@pytest.fixture
def clocks(system: System, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Clocks"]:
    folder = tmp_path_factory.mktemp("clocks")
    made = Clocks(system, build_library(folder), folder)
    yield made
    made.take_back()


def restart(child: Child, environment: dict[str, str]) -> None:
    child.stop()
    child.environment = environment
    child.start()


def started(node: Node) -> int:
    return node.agent.log.read_text().count('"agent_started"')


def off_by(child: Child) -> float:
    """Return by how many seconds the newest line in the program's log differs from the true time."""
    reported = [
        json.loads(line)["timestamp"] for line in child.log.read_text().splitlines() if line.startswith("{")
    ]
    return (datetime.fromisoformat(reported[-1]) - datetime.now(UTC)).total_seconds()


def starts(system: System) -> dict[str, int]:
    return {
        f"{node.name}/{tap}": count
        for node in system.nodes.values()
        for tap, count in node.state().starts.items()
    }


def snapshots(system: System) -> dict[str, Snapshot]:
    return {name: take(SimulatedTarget(str(node.host))) for name, node in system.nodes.items()}


def lease_left(system: System, allocation: str) -> float:
    """Return the seconds until the allocation's lease ends, by the database's clock."""
    with psycopg.connect(system.stack.admin_dsn) as conn:
        row = conn.execute("select clock_timestamp()").fetchone()
    assert row is not None
    ends = datetime.fromisoformat(system.show(allocation)["lease"]["expires_at"])
    return float((ends - row[0]).total_seconds())


def refusals(system: System) -> list[str]:
    return [str(each) for each in system.facts("order.refused", "order.message_refused")]


def _restart_agent(system: System, node: Node, environment: dict[str, str]) -> None:
    """Restart the agent with these environment variables. Return when the new agent has sent a report and its
    node is enrolled and misses no prerequisite.
    """
    began = started(node)
    restart(node.agent, {**node.agent.environment, **environment})
    until(lambda: started(node) > began, "the agent has restarted")
    reported = system.seen_at(node.name)
    until(
        lambda: system.seen_at(node.name) != reported and system.is_settled(node.name),
        "the node is settled",
        60,
    )


class Clocks:
    """Wrong clocks for the programs of a system, and a check that these clocks are really off."""

    def __init__(self, system: System, library: Path, folder: Path) -> None:
        self.system = system
        self.both = ShiftedClock(library, folder / "ahead"), ShiftedClock(library, folder / "behind")
        self._jumps = itertools.cycle((2 * AHEAD, 0, BEHIND, 2 * BEHIND, AHEAD))
        for clock, seconds in zip(self.both, (AHEAD, BEHIND), strict=True):
            clock.step(seconds)

    def give_nodes(self) -> None:
        for node, clock in zip(self.system.nodes.values(), self.both, strict=True):
            _restart_agent(self.system, node, clock.environment)
        self._are_off([node.agent for node in self.system.nodes.values()])

    def give_control_plane(self) -> None:
        """Restart the control plane's programs with wrong clocks: the first replica of each ahead, the
        second behind.
        """
        ahead, behind = self.both
        programs = self.system.stack.programs
        for name, child in programs.items():
            restart(child, {**child.environment, **(behind if name.endswith("-2") else ahead).environment})
        self.system.call("GET", "/nodes")
        self._are_off([child for name, child in programs.items() if name.startswith("dispatcher")])

    def jump(self) -> None:
        for clock in self.both:
            clock.step(next(self._jumps))

    def _are_off(self, children: list[Child]) -> None:
        until(
            lambda: min(abs(off_by(child)) for child in children) > AHEAD - 60, "their clocks are really off"
        )
        print(*(f"{child.name} is off by {off_by(child):.0f} s" for child in children), sep=", ")

    def take_back(self) -> None:
        """Restart every program that has a wrong clock, with the true time."""
        for child in self.system.stack.programs.values():
            if child.environment.get("LD_PRELOAD"):
                restart(child, {**child.environment, **_TRUE_TIME})
        for node in self.system.nodes.values():
            if node.agent.environment.get("LD_PRELOAD"):
                _restart_agent(self.system, node, _TRUE_TIME)


@matrix.cases("P8", CASES, few=1)
def test_each_order_is_started_once_although_clocks_of_nodes_and_control_plane_are_wrong(
    system: System, clocks: Clocks, case: str
) -> None:
    if case == "control plane":
        clocks.give_control_plane()
    else:
        clocks.give_nodes()
    until(lambda: all(map(system.is_settled, system.nodes)), "both nodes are settled", 60)
    before, empty, asked = starts(system), snapshots(system), list[str]()

    def active() -> bool:
        if case == "jumping nodes":
            clocks.jump()
        return all(system.is_active(each) for each in asked)

    try:
        for _ in range(SLICES):
            asked.append(system.create())
        began = time.monotonic()
        until(active, "all allocations are active", BOOT_SECONDS + CONVERGED_SECONDS)
        print(f"{case}: all are active after {time.monotonic() - began:.1f} s")
        assert time.monotonic() - began > WORKER_TIMEOUT, (
            "no load: no order took as long as a worker may be silent"
        )
        after = starts(system)
        assert {slot: after[slot] - before.get(slot, 0) for slot in after} == dict.fromkeys(after, 1)
        assert len(after) == SLICES
    finally:
        system.release_all(*asked)
    assert starts(system) == after
    for name, found in snapshots(system).items():
        assert not list(differences(empty[name], found)), name
    assert refusals(system) == []


@matrix.cases("P8", ["control plane"], few=0)
def test_allocation_lease_ends_when_it_expires_by_the_databases_clock(
    system: System, clocks: Clocks, case: str
) -> None:
    clocks.give_control_plane()
    asked = system.create(lease_seconds=LEASE_SECONDS)
    try:
        until(
            lambda: system.is_active(asked),
            f"the allocation is active: {case}",
            BOOT_SECONDS + CONVERGED_SECONDS,
        )
        active_at, left = time.monotonic(), lease_left(system, asked)
        assert LEASE_SECONDS - 10 < left <= LEASE_SECONDS
        until(lambda: system.state(asked) != "active", "the lease has ended", LEASE_SECONDS + 10)
        assert time.monotonic() - active_at > left - 5
    finally:
        system.release_all(asked)
    logs = [child.log.read_text() for name, child in system.stack.programs.items() if name.startswith("api")]
    assert "session_expired" not in "".join(logs)
