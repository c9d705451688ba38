"""Pages of nodes: the list with the slots of each node, one node, and the actions cordon, uncordon and drain."""

from collections import defaultdict
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from control_plane.web.cookies import ROOT
from control_plane.web.rendering import in_path
from control_plane.web.visits import Visit, both, nothing, problem, see_other

_NODES: Final = 50
_SLOTS: Final = 500
_LAST_INDEX: Final = 63
ACTIONS: Final = {
    "cordon": "No new slice is placed on the node. Slices that run there stay.",
    "uncordon": "New slices can be placed on the node again. A running drain is cancelled.",
    "drain": "The node is cordoned and emptied: its allocations end by themselves, or are released after the given time.",
}
"""The actions on a node that the console offers, each with its effect."""


async def show_list(visit: Visit) -> Response:
    cursor, at = visit.query("cursor"), visit.at
    # The list of slots is ordered by node: it continues behind the slots of the last node of the previous page.
    behind = None if cursor is None else f"{cursor}/{_LAST_INDEX}"
    nodes, slots = await both(
        visit.get("nodes", cursor=cursor, limit=_NODES, at=at),
        visit.get("slots", cursor=behind, limit=_SLOTS, at=at),
    )
    by_node: defaultdict[str, list[Any]] = defaultdict(list)
    for slot in slots["items"]:
        by_node[slot["node_id"]].append(slot)
    last = slots["items"][-1]["node_id"] if slots["next_cursor"] else None
    return visit.render(
        "nodes.html", nodes=nodes["items"], next_cursor=nodes["next_cursor"], slots=by_node, cut_at=last
    )


async def show(visit: Visit) -> Response:
    name, at = visit.request.path_params["node"], visit.at
    node = await visit.get("nodes", name, at=at)
    slots, drift, tasks, events = await both(
        visit.get("slots", node=name, limit=_SLOTS, at=at),
        visit.get("nodes", name, "drift", at=at),
        visit.get("tasks", node=name, limit=10) if visit.allows("tasks:read") and not at else nothing(),
        visit.get("events", stream=f"node-{name}", order="desc", limit=20, to=at)
        if visit.allows("events:read")
        else nothing(),
    )
    return visit.render(
        "node.html",
        node=node,
        slots=slots["items"],
        drift=drift["items"],
        tasks=None if tasks is None else tasks["items"],
        events=None if events is None else events["items"],
        actions=ACTIONS,
    )


async def confirm(visit: Visit) -> Response:
    """Show the form of an action, which asks for its reason."""
    return await _form(visit, _action(visit))


async def act(visit: Visit) -> Response:
    action, name = _action(visit), visit.request.path_params["node"]
    form = await visit.form()
    body: dict[str, Any] = {"reason": form.text("reason")}
    if action == "drain" and form.text("minutes"):
        body["release_after_seconds"] = _seconds(form.text("minutes"))
    await visit.send("POST", "nodes", name, action, body=body, idempotency_key=form.text("idempotency_key"))
    return see_other(f"{ROOT}/nodes/{in_path(name)}?notice={action}")


async def _form(visit: Visit, action: str) -> Response:
    node = await visit.get("nodes", visit.request.path_params["node"])
    return visit.render("node_action.html", node=node, action=action, effect=ACTIONS[action])


def _action(visit: Visit) -> str:
    action: str = visit.request.path_params["action"]
    if action not in ACTIONS:
        message = f"there is no action {action!r} on a node; choose one of {', '.join(ACTIONS)}"
        raise problem(HTTPStatus.NOT_FOUND, "not_found", message, "Open the page of the node.")
    return action


def _seconds(minutes: str) -> int:
    if not minutes.isdigit():
        message = f"{minutes!r} is not a number of minutes"
        raise problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_value", message, "Enter a whole number.")
    return int(minutes) * 60
