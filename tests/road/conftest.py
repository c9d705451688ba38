"""Fixtures of the end-to-end tests: a control plane, and simulated nodes with agents as separate processes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.embedded.children import Child, installed_program
from deploy.embedded.node_files import SLOTS
from node_agent.lab.leaks.snapshot import Snapshot, take
from node_agent.lab.leaks.target import SimulatedTarget
from tests.servers.plane import RunningPlane
from tests.waiting import until

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV test"


@dataclass
class SimulatedNode:
    """Agent process with a simulated host. The host is stored in `host_file` and survives the agent."""

    name: str
    agent: Child
    host_file: Path

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the resources on the simulated host, as the leak checker takes it."""
        return take(SimulatedTarget(state=str(self.host_file)))


@dataclass
class Site:
    """Control plane and one simulated node with two approved slots."""

    plane: RunningPlane
    node: SimulatedNode

    def create(self, **fields: object) -> str:
        """Request an allocation and return its id."""
        body = {"sku": "lab.small", "ssh_authorized_keys": [KEY], **fields}
        answer = self.plane.client().post("/allocations", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def show(self, allocation: str) -> dict[str, Any]:
        found: dict[str, Any] = self.plane.client().get(f"/allocations/{allocation}").json()
        return found

    def timeline(self, allocation: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = (
            self.plane.client().get(f"/allocations/{allocation}/events").json()["items"]
        )
        return events

    def await_state(self, allocation: str, state: str, seconds: float = 40.0) -> None:
        until(lambda: self.show(allocation)["state"] == state, f"{allocation} is {state}", seconds)

    def await_placeable(self, count: int, seconds: float = 40.0) -> None:
        """Wait until new slices can be placed in exactly `count` slots. A restarted agent first compares its slots with
        their orders, and no slice is placed in them meanwhile.
        """

        def placeable() -> int:
            shown = self.plane.client().get("/slots").json()["items"]
            return sum(slot["state"] == "free" and slot["blocked_by"] is None for slot in shown)

        until(lambda: placeable() == count, f"{count} slots are placeable", seconds)


def start_node(
    plane: RunningPlane,
    folder: Path,
    name: str,
    boot_seconds: float = 0.3,
    *,
    slots: Sequence[Mapping[str, int]] = SLOTS,
    images: Sequence[Mapping[str, object]] = (),
) -> SimulatedNode:
    """Register a simulated node and start its agent. `images` are guest images of its host in addition to the lab's
    image.
    """
    registered = plane.client().post("/nodes", json={"id": name}).json()
    folder.mkdir()
    (folder / "token").write_text(registered["enrolment_token"])
    configuration = {
        "node_id": name,
        "api_url": plane.url,
        "enrolment_token_file": str(folder / "token"),
        "state_folder": str(folder / "agent"),
        "run_folder": str(folder / "run"),
        "images_folder": str(folder / "images"),
        "slots": list(slots),
        "survey_seconds": 2,
        "heartbeat_seconds": 1,
        "simulated": {
            "boot_seconds": boot_seconds,
            "host_file": str(folder / "host.json"),
            "images": list(images),
        },
    }
    (folder / "agent.json").write_text(json.dumps(configuration))
    agent = Child(
        name, installed_program("sliceplane-agent", str(folder / "agent.json")), folder / "agent.log"
    )
    agent.start()
    return SimulatedNode(name, agent, folder / "host.json")


@contextmanager
def running_site(
    plane: RunningPlane,
    folder: Path,
    slots: Sequence[Mapping[str, int]] = SLOTS,
    images: Sequence[Mapping[str, object]] = (),
) -> Iterator[Site]:
    node = start_node(plane, folder / "sim-a", "sim-a", slots=slots, images=images)
    try:
        client = plane.client()
        until(lambda: len(client.get("/slots").json()["items"]) == 2, "the node's slots are discovered")
        for index in (0, 1):
            assert client.post(f"/nodes/sim-a/slots/{index}/approve").status_code == 200
        until(lambda: client.get("/nodes/sim-a").json()["state"] == "enrolled", "the node is enrolled")
        made = Site(plane, node)
        made.await_placeable(2)
        yield made
    finally:
        node.agent.stop()


@pytest.fixture
def site(emptied_plane: RunningPlane, tmp_path: Path) -> Iterator[Site]:
    with running_site(emptied_plane, tmp_path) as made:
        yield made
