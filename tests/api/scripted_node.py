"""Node that a test controls with API requests: it sends only reports that the test specifies, and reads no queue."""

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

from tests.api.node import admit, batch
from tests.servers.plane import RunningPlane
from tests.waiting import until

VERIFIED = {"kind": "node.verify", "checks": [{"name": "switch", "ok": True, "detail": "br-slice"}]}


@dataclass
class ScriptedNode:
    """Node that a test controls with API requests, and the tasks that an admin requests for this node."""

    plane: RunningPlane
    name: str
    node: httpx.Client
    _spool: str = field(default_factory=lambda: str(uuid4()))
    _sequence: int = 0

    def report(self, kind: str, **fields: object) -> None:
        """Send a report with the next sequence number of the node's spool."""
        self._sequence += 1
        answer = self.node.post(
            "/reports", json=batch(self._spool, (self._sequence, {"kind": kind, **fields}))
        )
        assert answer.is_success, answer.text

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.plane.client().post(path, json=body or None)

    def request_task(self, kind: str, **place: str) -> str:
        """Request a task as an admin, wait until it is sent to the node's queue, and return the task's id."""
        answer = self.post("/tasks", kind=kind, **place)
        assert answer.status_code == 202, answer.text
        task = str(answer.json()["id"])
        self.await_state(task, "sent")
        return task

    def task(self, task: str) -> dict[str, Any]:
        answer = self.plane.client().get(f"/tasks/{task}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def tasks(self, **filters: str | list[str]) -> list[dict[str, Any]]:
        answer = self.plane.client().get("/tasks", params=filters)
        assert answer.status_code == 200, answer.text
        items: list[dict[str, Any]] = answer.json()["items"]
        return items

    def await_state(self, task: str, state: str, seconds: float = 30.0) -> None:
        until(lambda: self.task(task)["state"] == state, f"{task} is {state}", seconds)

    def newest_operation(self, task: str) -> str:
        """Return the operation id of the task's newest attempt, which an agent would read from its queue."""
        query = "select order_id from work.task where task_id = %(task)s and kind <> 'operation.cancel' order by attempt"
        return str(self.plane.rows(query, task=task)[-1][0])

    def orders(self, allocation: str) -> list[dict[str, Any]]:
        return self.tasks(allocation=allocation)


def scripted_node(plane: RunningPlane, name: str = "n1", slots: int = 1) -> ScriptedNode:
    return ScriptedNode(plane, name, admit(plane, name, slots=slots))
