"""End-to-end tests of tasks that an admin requests, with a control plane, a queue and an agent with
a simulated host.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.node import assemble_simulated_host
from node_agent.runtime.halt import Halt, Halted
from node_agent.settings import Settings
from node_agent.wiring import run
from tests.api.node import allocate
from tests.api.streams import Event, open_stream
from tests.servers.plane import RunningPlane
from tests.waiting import until

NEVER_BOOTS = 3600.0


@dataclass
class TaskSite:
    """Control plane and one node, with a simulated host that the test can change."""

    plane: RunningPlane
    host: SimulatedHost

    def run_task(self, kind: str, **place: str) -> dict[str, Any]:
        """Request a task from the API, wait until it has ended, and return it."""
        answer = self.plane.client().post("/tasks", json={"kind": kind, **place})
        assert answer.status_code == 202, answer.text
        return self.ended(str(answer.json()["id"]))

    def ended(self, task: str) -> dict[str, Any]:
        until(lambda: self.show(task)["ended_at"] is not None, f"task {task} ends")
        return self.show(task)

    def show(self, task: str) -> dict[str, Any]:
        found: dict[str, Any] = self.plane.client().get(f"/tasks/{task}").json()
        return found

    def tasks(self, **picked: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.plane.client().get("/tasks", params=picked).json()["items"]
        return items

    def state(self, allocation: str) -> str:
        return str(self.plane.client().get(f"/allocations/{allocation}").json()["state"])


@contextmanager
def running_task_site(plane: RunningPlane, folder: Path, boot_seconds: float = 0.05) -> Iterator[TaskSite]:
    """Run the agent of a simulated node in a thread of this process. The agent surveys its host only once, at its
    start.
    """
    (folder / "token").write_text(
        plane.client().post("/nodes", json={"id": "sim-a"}).json()["enrolment_token"]
    )
    settings = Settings.model_validate(
        {
            "node_id": "sim-a",
            "api_url": plane.url,
            "enrolment_token_file": folder / "token",
            "state_folder": folder / "agent",
            "run_folder": folder / "run",
            "images_folder": folder / "images",
            "slots": [{"index": 0, "vcpus": 1, "memory_mib": 96}],
            "survey_seconds": 3600,
            "heartbeat_seconds": 0.5,
            "simulated": {"boot_seconds": boot_seconds},
        }
    )
    host, halt, pool = SimulatedHost(), Halt(), ThreadPoolExecutor(1)
    agent = pool.submit(run, settings, halt, lambda *arguments: assemble_simulated_host(host, *arguments))
    client = plane.client()
    try:
        until(lambda: len(client.get("/slots").json()["items"]) == 1, "the slot of the node is discovered")
        assert client.post("/nodes/sim-a/slots/0/approve").is_success
        until(lambda: client.get("/nodes/sim-a").json()["state"] == "enrolled", "the node is enrolled")
        yield TaskSite(plane, host)
    finally:
        halt.request()
        wait([agent], 20)
        pool.shutdown(wait=False)
        if not isinstance(agent.exception(0), Halted):
            agent.result()


@pytest.fixture
def site(running_plane: RunningPlane, tmp_path: Path) -> Iterator[TaskSite]:
    with running_task_site(running_plane, tmp_path) as made:
        yield made


def active(site: TaskSite) -> str:
    allocation = str(allocate(site.plane).json()["id"])
    until(lambda: site.state(allocation) == "active", "the allocation is active")
    return allocation


def test_drift_report_task_names_a_deleted_ovs_port_and_port_reconcile_task_repairs_it(
    site: TaskSite,
) -> None:
    active(site)
    assert site.run_task("drift.report", slot_id="sim-a/0")["result"]["drift"] == []
    with site.host.change() as state:
        state.ports.clear()
    [drift] = site.run_task("drift.report", slot_id="sim-a/0")["result"]["drift"]
    assert drift["aspect"] == "port"
    repaired = site.run_task("port.reconcile", slot_id="sim-a/0")
    assert (repaired["state"], bool(repaired["result"]["steps"])) == ("done", True)
    assert site.run_task("drift.report", slot_id="sim-a/0")["result"]["drift"] == []
    assert site.run_task("port.reconcile", slot_id="sim-a/0")["result"]["steps"] == []


def test_node_verify_task_on_a_host_without_faults_reports_only_successful_checks(site: TaskSite) -> None:
    checks = site.run_task("node.verify", node_id="sim-a")["result"]["checks"]
    assert checks
    assert all(check["ok"] for check in checks)


def test_task_of_every_kind_for_an_active_slot_ends_with_state_done(site: TaskSite) -> None:
    allocation = active(site)
    kinds = ("vnic.attach", "port.reconcile", "lease.apply", "ingress.apply", "address.report")
    inspections = ("readiness.poll", "drift.report", "machine.inspect")
    for kind in (*kinds, *inspections):
        ended = site.run_task(kind, slot_id="sim-a/0")
        assert ended["state"] == "done", ended
    client = site.plane.client()
    refused = client.post("/tasks", json={"kind": "ingress.remove", "slot_id": "sim-a/0"})
    assert refused.status_code == 409
    assert site.state(allocation) == "active"
    verification = f"/verifications/{client.post('/verifications').json()['id']}"
    until(lambda: client.get(verification).json()["ended_at"] is not None, "the verification has ended")
    assert client.get(verification).json()["state"] == "equal", "a task stream changed a read model"


def test_readiness_poll_task_of_a_slice_that_never_becomes_ready_can_be_cancelled(
    running_plane: RunningPlane, tmp_path: Path
) -> None:
    with running_task_site(running_plane, tmp_path, boot_seconds=NEVER_BOOTS) as site:
        allocation = str(allocate(site.plane).json()["id"])
        until(lambda: site.state(allocation) == "provisioning", "the allocation is provisioning")
        client = site.plane.client()
        task = str(client.post("/tasks", json={"kind": "readiness.poll", "slot_id": "sim-a/0"}).json()["id"])
        until(lambda: (site.show(task)["deliveries"] or 0) > 0, "the node has fetched the task")
        assert client.post(f"/tasks/{task}/cancel").is_success
        ended = site.ended(task)
        assert (ended["state"], ended["reason"]["code"]) == ("cancelled", "cancelled")
        assert site.state(allocation) == "provisioning"


def test_allocation_watch_sends_progress_of_a_slice_order_between_the_events_of_the_allocation(
    running_plane: RunningPlane, tmp_path: Path
) -> None:
    with running_task_site(running_plane, tmp_path, boot_seconds=2.0) as site:
        allocation = str(allocate(site.plane).json()["id"])
        seen: list[Event] = []
        with open_stream(site.plane, f"/allocations/{allocation}/watch") as stream:
            while not seen or seen[-1].type != "allocation.activated":
                seen.append(stream.next())
        steps = [each for each in seen if each.type == "progress"]
        assert steps
        assert {each.data["slot_id"] for each in steps} == {"sim-a/0"}
        # The id of progress is that of the previous event, so that a client always resumes from an event.
        assert all(each.id.partition(".")[0] == "1" for each in seen[1:])
        assert site.tasks(kind="slice.apply")[0]["progress"] is None, "a finished task shows progress"
