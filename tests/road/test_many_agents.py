"""Many nodes in one process: each costs one thread and two connections to its queue, and takes nothing from others."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import pytest
import redis
from dramatiq.worker import ConsumerThread

from node_agent.enrol import become_known
from node_agent.halt import Halt
from node_agent.settings import Settings
from node_agent.wiring import Agent, host_builder
from tasks.timetable import Timetable
from tests.api.node import allocate, expect
from tests.servers.plane import RunningPlane
from tests.waiting import until

NODES: Final = tuple(f"sim-{number}" for number in range(4))
SLOTS: Final = 2
Agents = dict[str, Agent]


@pytest.fixture
def agents(running_plane: RunningPlane, tmp_path: Path) -> Iterator[Agents]:
    """On one timetable, each with all of its slots approved."""
    halt, agents = Halt(), Agents()
    with Timetable() as timetable:
        try:
            for name in NODES:
                settings = settings_of(running_plane, tmp_path / name, name)
                known = become_known(settings, halt)
                agents[name] = Agent(settings, known, host_builder(settings), timetable)
                agents[name].start(halt)
                approve(running_plane, name)
            yield agents
        finally:
            with ThreadPoolExecutor(len(NODES)) as at_once:
                list(at_once.map(Agent.stop, agents.values()))


def settings_of(plane: RunningPlane, folder: Path, name: str) -> Settings:
    folder.mkdir()
    (folder / "token").write_text(expect(plane, name))
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
    until(lambda: client.get(f"/nodes/{name}").json()["state"] == "enrolled", f"{name} is settled")


def is_approved(client: httpx.Client, name: str, index: int) -> bool:
    return client.post(f"/nodes/{name}/slots/{index}/approve").is_success


def states(plane: RunningPlane) -> Counter[str]:
    return Counter(each["state"] for each in plane.client().get("/allocations").json()["items"])


def threads_of_nodes() -> Counter[str]:
    """Those that grow with the number of nodes, or with what they have to do."""
    named = (thread.name.partition("-")[0] for thread in threading.enumerate())
    kinds = Counter(name for name in named if name in ("orders", "slot"))
    kinds["consumer"] = sum(isinstance(thread, ConsumerThread) for thread in threading.enumerate())
    return +kinds


def connections(plane: RunningPlane) -> Counter[str]:
    with redis.Redis.from_url(plane.redis.url, decode_responses=True) as client:
        users = (each["user"] for each in client.client_list())
        return Counter(user for user in users if user.startswith("node-"))


def test_a_node_costs_one_thread_and_two_connections_before_and_after_its_work(
    running_plane: RunningPlane, agents: Agents
) -> None:
    one_each = Counter(consumer=len(NODES))
    until(lambda: threads_of_nodes() == one_each, "only the consumers are left")
    asked = [allocate(running_plane).json()["id"] for _ in range(len(NODES) * SLOTS)]
    until(lambda: states(running_plane) == Counter(active=len(asked)), "all are active", 60)
    for allocation in asked:
        assert running_plane.client().delete(f"/allocations/{allocation}").is_success
    until(lambda: states(running_plane) == Counter(released=len(asked)), "all are released", 60)
    until(lambda: threads_of_nodes() == one_each, "only the consumers are left")
    two_each = Counter({f"node-{name}": 2 for name in NODES})
    until(lambda: connections(running_plane) == two_each, "each has its two connections and no other")


def test_an_agent_that_ends_takes_nothing_from_the_others(
    running_plane: RunningPlane, agents: Agents
) -> None:
    *ending, last = NODES
    for name in ending:
        agents[name].stop()
    until(lambda: threads_of_nodes() == Counter(consumer=1), "the others' threads ended")
    client = running_plane.client()
    asked = client.post("/tasks", json={"kind": "node.verify", "node_id": last}).json()["id"]
    until(lambda: client.get(f"/tasks/{asked}").json()["state"] == "done", f"{last} carried out a task")
