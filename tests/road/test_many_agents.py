"""Tests of many node agents in one process: each needs one thread and two Redis connections, and none affects
another.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import pytest
import redis
from dramatiq.worker import ConsumerThread

from events.values import Ipv4Subnet
from node_agent.host.host import Host
from node_agent.lab.simulated.node import simulated_host
from node_agent.runtime.halt import Halt
from node_agent.runtime.timetable import Timetable
from node_agent.settings import Settings
from node_agent.transport.enrol import enrol_or_resume
from node_agent.wiring import Agent, host_builder
from tests.api.node import allocate, register_node
from tests.servers.plane import RunningPlane
from tests.waiting import until

NODES: Final = tuple(f"sim-{number}" for number in range(4))
SLOTS: Final = 2
Agents = dict[str, Agent]


@pytest.fixture
def agents(emptied_plane: RunningPlane, tmp_path: Path) -> Iterator[Agents]:
    """Node agents that share one timetable of jobs, each with all its slots approved."""
    halt, agents = Halt(), Agents()
    with Timetable() as timetable:
        try:
            for name in NODES:
                settings = settings_of(emptied_plane, tmp_path / name, name)
                known = enrol_or_resume(settings, halt)
                agents[name] = Agent(settings, known, host_builder(settings), timetable)
                agents[name].start(halt)
                approve(emptied_plane, name)
            yield agents
        finally:
            with ThreadPoolExecutor(len(NODES)) as at_once:
                list(at_once.map(Agent.stop, agents.values()))


def settings_of(plane: RunningPlane, folder: Path, name: str) -> Settings:
    folder.mkdir()
    (folder / "token").write_text(register_node(plane, name))
    return Settings.model_validate(
        {
            "node_id": name,
            "api_url": plane.url,
            "enrolment_token_file": folder / "token",
            "state_folder": folder / "agent",
            "run_folder": folder / "run",
            "images_folder": folder / "images",
            "slots": [{"index": index, "vcpus": 1, "memory_mib": 96} for index in range(SLOTS)],
            "heartbeat_seconds": 1,
            "simulated": {"boot_seconds": 0.05},
        }
    )


def approve(plane: RunningPlane, name: str) -> None:
    client = plane.client()
    for index in range(SLOTS):
        until(partial(is_approved, client, name, index), f"{name}/{index} is approved")
    until(lambda: client.get(f"/nodes/{name}").json()["state"] == "enrolled", f"{name} is enrolled")


def is_approved(client: httpx.Client, name: str, index: int) -> bool:
    return client.post(f"/nodes/{name}/slots/{index}/approve").is_success


def states(plane: RunningPlane) -> Counter[str]:
    return Counter(each["state"] for each in plane.client().get("/allocations").json()["items"])


def threads_of_nodes() -> Counter[str]:
    """Return the number of running threads of each kind that agents start in this process."""
    named = (thread.name.partition("-")[0] for thread in threading.enumerate())
    kinds = Counter(name for name in named if name in ("orders", "slot"))
    kinds["consumer"] = sum(isinstance(thread, ConsumerThread) for thread in threading.enumerate())
    return +kinds


def connections(plane: RunningPlane) -> Counter[str]:
    with redis.Redis.from_url(plane.redis.url, decode_responses=True) as client:
        users = (each["user"] for each in client.client_list())
        return Counter(user for user in users if user.startswith("node-"))


def test_idle_agent_has_one_thread_and_two_redis_connections_before_and_after_its_work(
    emptied_plane: RunningPlane, agents: Agents
) -> None:
    one_each = Counter(consumer=len(NODES))
    until(lambda: threads_of_nodes() == one_each, "only the consumer threads are running")
    allocations = [allocate(emptied_plane).json()["id"] for _ in range(len(NODES) * SLOTS)]
    until(lambda: states(emptied_plane) == Counter(active=len(allocations)), "all allocations are active", 60)
    for allocation in allocations:
        assert emptied_plane.client().delete(f"/allocations/{allocation}").is_success
    until(
        lambda: states(emptied_plane) == Counter(released=len(allocations)),
        "all allocations are released",
        60,
    )
    until(lambda: threads_of_nodes() == one_each, "only the consumer threads are running")
    two_each = Counter({f"node-{name}": 2 for name in NODES})
    until(lambda: connections(emptied_plane) == two_each, "each node has exactly two connections")


def test_agent_continues_after_the_other_agents_of_its_process_end(
    emptied_plane: RunningPlane, agents: Agents
) -> None:
    *ending, last = NODES
    for name in ending:
        agents[name].stop()
    until(lambda: threads_of_nodes() == Counter(consumer=1), "the threads of the other agents have ended")
    client = emptied_plane.client()
    task = client.post("/tasks", json={"kind": "node.verify", "node_id": last}).json()["id"]
    until(lambda: client.get(f"/tasks/{task}").json()["state"] == "done", f"{last} has finished the task")


def test_agent_starts_although_its_host_reports_a_change_before_the_agent_is_complete(
    emptied_plane: RunningPlane, tmp_path: Path
) -> None:
    settings, halt = settings_of(emptied_plane, tmp_path / "sim-0", "sim-0"), Halt()

    def changing_host(settings: Settings, subnet: Ipv4Subnet, something_changed: Callable[[], None]) -> Host:
        something_changed()
        return simulated_host(settings, subnet, something_changed)

    with Timetable() as timetable:
        agent = Agent(settings, enrol_or_resume(settings, halt), changing_host, timetable)
        try:
            agent.start(halt)
            approve(emptied_plane, "sim-0")
        finally:
            agent.stop()
