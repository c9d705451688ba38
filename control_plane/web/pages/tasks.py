"""Pages of the tasks of nodes: the list, and one task with its progress and result."""

from typing import Final

from starlette.responses import Response

from control_plane.web.pages.fleet_actions import TASK_ACTIONS
from control_plane.web.rendering import fields_of
from control_plane.web.visits import Visit

STATES: Final = (
    "due", "sent", "waiting", "done", "refused", "failed", "poisoned", "superseded", "cancelled", "expired",
)  # fmt: skip
UNFINISHED: Final = frozenset({"due", "sent", "waiting"})
"""States of a task that has not ended."""


async def show_list(visit: Visit) -> Response:
    chosen = {name: visit.query(name) for name in ("state", "kind", "node")}
    listed = await visit.get("tasks", cursor=visit.query("cursor"), limit=50, **chosen)
    return visit.render(
        "tasks.html", tasks=listed["items"], next_cursor=listed["next_cursor"], chosen=chosen, states=STATES
    )


async def show(visit: Visit) -> Response:
    task = await visit.get("tasks", visit.request.path_params["task"])
    return visit.render(
        "task.html",
        task=task,
        result=[*fields_of(task["result"])],
        actions=TASK_ACTIONS,
        in_progress=task["state"] in UNFINISHED,
    )
