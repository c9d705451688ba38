"""Events of failed tasks in lists of events: each names the kind and the node or slot of its task."""

import asyncio
from typing import Any, cast

from control_plane.web.pages.tasks_of_events import with_tasks
from control_plane.web.rendering import gist
from control_plane.web.visits import Visit


class FakeVisit:
    """A visit of which the API has the request of one task."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    async def get(self, *path: str, **query: Any) -> dict[str, Any]:
        assert path == ("events",)
        self.calls.append(query)
        assert len(query["stream"]) <= 50, "the API filters by at most 50 streams"
        task = {
            "task_id": "t1",
            "kind": "node.verify",
            "node_id": "n1",
            "slot_id": None,
            "allocation_id": None,
        }
        found = [each for each in query["stream"] if each == "task-t1"]
        return {"items": [{"stream": each, "type": "task.requested", "data": task} for each in found]}


def failed(task: str) -> dict[str, Any]:
    reason = {"code": "no_answer", "message": "the node reported no result"}
    data = {"task_id": task, "attempt": 1, "reason": reason}
    return {"stream": f"task-{task}", "type": "task.failed", "actor": "process:task", "data": data}


def with_tasks_of(visit: FakeVisit, events: list[dict[str, Any]]) -> list[Any]:
    return asyncio.run(with_tasks(cast("Visit", visit), events))


def test_failure_of_a_task_names_the_kind_and_the_node_of_the_task() -> None:
    visit, other = FakeVisit(), {"stream": "node-n1", "type": "node.cordoned", "actor": "a", "data": {}}
    shown, repeated, unread, unchanged = with_tasks_of(
        visit, [failed("t1"), failed("t1"), failed("t2"), other]
    )
    line = gist(shown).partition("</a>, ")[2]
    assert line == "kind node.verify, n1, attempt 1, the node reported no result"
    assert shown == repeated
    assert (unread, unchanged) == (failed("t2"), other)
    assert [each["stream"] for each in visit.calls] == [["task-t1", "task-t2"]]


def test_tasks_of_many_failures_are_read_in_requests_of_at_most_50_and_none_without_failures() -> None:
    visit = FakeVisit()
    with_tasks_of(visit, [failed(f"t{number}") for number in range(1, 102)])
    assert [len(each["stream"]) for each in visit.calls] == [50, 50, 1]
    assert with_tasks_of(quiet := FakeVisit(), []) == []
    assert quiet.calls == []
