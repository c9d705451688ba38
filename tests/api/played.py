"""A node that a test plays: it says what the test has it say, and never looks at its queue."""

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

from tests.api.node import admit, batch
from tests.servers.plane import RunningPlane
from tests.waiting import until

VERIFIED = {"kind": "node.verify", "checks": [{"name": "switch", "ok": True, "detail": "br-slice"}]}


@dataclass
class Played:
    """One node, and the admin who asks things of it."""

    plane: RunningPlane
    name: str
    node: httpx.Client
    _spool: str = field(default_factory=lambda: str(uuid4()))
    _sequence: int = 0

    def say(self, kind: str, **said: object) -> None:
        """Report, as by an agent with this one spool."""
        self._sequence += 1
        answer = self.node.post("/reports", json=batch(self._spool, (self._sequence, {"kind": kind, **said})))
        assert answer.is_success, answer.text

    def ask(self, path: str, **body: object) -> httpx.Response:
        return self.plane.client().post(path, json=body or None)

    def asked(self, kind: str, **place: str) -> str:
        """Ask for a task and wait for its order to be sent; its id."""
        answer = self.ask("/tasks", kind=kind, **place)
        assert answer.status_code == 202, answer.text
        task = str(answer.json()["id"])
        self.await_state(task, "sent")
        return task

    def show(self, task: str) -> dict[str, Any]:
        answer = self.plane.client().get(f"/tasks/{task}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def tasks(self, **picked: str | list[str]) -> list[dict[str, Any]]:
        answer = self.plane.client().get("/tasks", params=picked)
        assert answer.status_code == 200, answer.text
        items: list[dict[str, Any]] = answer.json()["items"]
        return items

    def await_state(self, task: str, state: str, seconds: float = 30.0) -> None:
        until(lambda: self.show(task)["state"] == state, f"{task} is {state}", seconds)

    def operation(self, task: str) -> str:
        """The id of the newest try, which its node would find in its queue."""
        query = "select order_id from work.task where task_id = %(task)s and kind <> 'operation.cancel' order by attempt"
        return str(self.plane.rows(query, task=task)[-1][0])

    def orders(self, allocation: str) -> list[dict[str, Any]]:
        return self.tasks(allocation=allocation)


def played(plane: RunningPlane, name: str = "n1", slots: int = 1) -> Played:
    return Played(plane, name, admit(plane, name, slots=slots))
