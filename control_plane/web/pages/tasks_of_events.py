"""Events of failed tasks, with what their task was: its kind, and its node or slot.

The event of a failure names only the id of its task. The event that requested the task has the rest.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from control_plane.web.visits import Visit, both

_FAILED: Final = "task.failed"
_REQUESTED: Final = "task.requested"
_SHOWN: Final = ("kind", "node_id", "slot_id")
_STREAMS: Final = 50
"""Maximum number of streams in one filter of the API."""

Event = Mapping[str, Any]


async def with_tasks(visit: Visit, events: Sequence[Event]) -> list[Event]:
    """Return the events, and with each failure of a task also the kind and the node or slot of the task. They are read
    in one request for each 50 tasks. An event stays as it is if the caller may not read the request of its task.
    """
    streams = list(dict.fromkeys(each["stream"] for each in events if each["type"] == _FAILED))
    chunks = [streams[start : start + _STREAMS] for start in range(0, len(streams), _STREAMS)]
    listed = await both(
        *(visit.get("events", stream=each, type=_REQUESTED, limit=_STREAMS) for each in chunks)
    )
    tasks = {each["stream"]: each["data"] for page in listed for each in page["items"]}
    return [_named(each, tasks.get(each["stream"])) for each in events]


def _named(event: Event, task: Mapping[str, Any] | None) -> Event:
    if task is None or event["type"] != _FAILED:
        return event
    found = {name: task[name] for name in _SHOWN if task.get(name)}
    return {**event, "data": {"task_id": event["data"]["task_id"], **found, **event["data"]}}
