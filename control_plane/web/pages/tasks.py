"""Pages of the tasks of nodes: the list, and one task with its progress, result and actions."""

from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from control_plane.web.cookies import ROOT
from control_plane.web.rendering import fields_of, in_path
from control_plane.web.visits import Visit, problem, see_other

STATES: Final = (
    "due", "sent", "waiting", "done", "refused", "failed", "poisoned", "superseded", "cancelled", "expired",
)  # fmt: skip
ACTIONS: Final = {
    "retry": "The task runs again.",
    "cancel": "The task is cancelled. If it brings up a slice, its allocation fails.",
}


async def show_list(visit: Visit) -> Response:
    chosen = {name: visit.query(name) for name in ("state", "kind", "node")}
    listed = await visit.get("tasks", cursor=visit.query("cursor"), limit=50, **chosen)
    return visit.render(
        "tasks.html", tasks=listed["items"], next_cursor=listed["next_cursor"], chosen=chosen, states=STATES
    )


async def show(visit: Visit) -> Response:
    task = await visit.get("tasks", visit.request.path_params["task"])
    return visit.render("task.html", task=task, result=[*fields_of(task["result"])], actions=ACTIONS)


async def confirm(visit: Visit) -> Response:
    """Show the form of an action with its effect."""
    name, action = _requested(visit)
    task = await visit.get("tasks", name)
    return visit.render("task_action.html", task=task, action=action, effect=ACTIONS[action])


async def act(visit: Visit) -> Response:
    form = await visit.form()
    name, action = _requested(visit)
    await visit.send("POST", "tasks", name, action, idempotency_key=form.text("idempotency_key"))
    return see_other(f"{ROOT}/tasks/{in_path(name)}?notice={action}")


def _requested(visit: Visit) -> tuple[str, str]:
    """Return the task and the action of a request. Raises `Refusal`."""
    name, action = visit.request.path_params["task"], visit.request.path_params["action"]
    if action not in ACTIONS:
        message = f"there is no action {action!r} on a task; choose one of {', '.join(ACTIONS)}"
        raise problem(HTTPStatus.NOT_FOUND, "not_found", message, "Open the page of the task.")
    return name, action
