"""Pages of nodes: the list with the slots of each node, one node, and one slot."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from control_plane.web.actions import by_scope
from control_plane.web.bulk import offered
from control_plane.web.commands import Command, command_of
from control_plane.web.pages.bulk_actions import NODES
from control_plane.web.pages.fleet_actions import (
    NODE_ACTIONS,
    REGISTERING,
    SLOT_ACTIONS,
    time_of_newest,
    with_effective_actions,
)
from control_plane.web.pages.tasks import UNFINISHED
from control_plane.web.timeline import read_seal, timeline_of
from control_plane.web.visits import Visit, both, nothing

_NODES: Final = 25
_SLOTS: Final = 250
"""Enough for nodes with ten slots. The slots take most of the time of the page, about 0.3 ms each."""
_SLOTS_OF_NODE: Final = 500
_NO_SLOTS: Final[Mapping[str, Any]] = {"items": [], "next_cursor": None}
STATES_THEN: Final = ("registered", "enrolled", "revoked")
"""States that a node can have in a view of the past. The other states depend on heartbeats, which are not recorded."""
STATES: Final = (*STATES_THEN, "resyncing", "unreachable")
_FLAGS: Final = {
    "cordoned": ("--not-cordoned", "--cordoned"),
    "excluded": ("--not-excluded", "--excluded"),
    "drift": ("--no-drift", "--drift"),
}
"""Filters that are true or false, each with the options of the command line for both."""
FILTERS: Final = ("state", "name", *_FLAGS)


async def show_list(visit: Visit) -> Response:
    chosen, at = {name: visit.query(name) for name in FILTERS}, visit.at
    listed = await visit.get("nodes", cursor=visit.query("cursor"), limit=_NODES, at=at, **chosen)
    names = [each["id"] for each in listed["items"]]
    slots = await visit.get("slots", node=names, limit=_SLOTS, at=at) if names else _NO_SLOTS
    by_node: defaultdict[str, list[Any]] = defaultdict(list)
    for slot in slots["items"]:
        by_node[slot["node_id"]].append(slot)
    total = await _total(visit, chosen) if listed["next_cursor"] or visit.query("cursor") else None
    last = slots["items"][-1]["node_id"] if slots["next_cursor"] else None
    return visit.render(
        "nodes.html",
        nodes=listed["items"],
        next_cursor=listed["next_cursor"],
        total=total,
        slots=by_node,
        cut_at=last,
        chosen=chosen,
        filtered=any(chosen.values()),
        states=STATES if at is None else STATES_THEN,
        command=_command(visit, chosen),
        bulk=offered(NODES),
        selecting=by_scope(visit, "select", scope="fleet:write")["select"],
        creating=REGISTERING,
        allowed=by_scope(visit, *REGISTERING, scope="fleet:write"),
    )


async def _total(visit: Visit, chosen: Mapping[str, str | None]) -> int | None:
    """Return the number of nodes that match the filters; None if the API has no count of them. It counts the present
    nodes by state.
    """
    if visit.at is not None or any(chosen[name] for name in FILTERS if name != "state"):
        return None
    numbers: dict[str, int] = (await visit.get("status"))["nodes"]
    state = chosen["state"]
    return sum(numbers.values()) if state is None else numbers.get(state, 0)


def _command(visit: Visit, chosen: Mapping[str, str | None]) -> Command:
    """Return the command that lists all nodes with the filters and at the time of the page."""
    options = [f"--{name}={chosen[name]}" for name in ("state", "name") if chosen[name]]
    options += [_FLAGS[name][chosen[name] == "true"] for name in _FLAGS if chosen[name]]
    options += [] if visit.at is None else [f"--at={visit.at}"]
    return command_of(
        visit.request,
        "As a command",
        cli=("nodes", "list", *options),
        path=("nodes",),
        query={**chosen, "at": visit.at},
    )


async def show(visit: Visit) -> Response:
    name, at = visit.request.path_params["node"], visit.at
    node = with_effective_actions(await visit.get("nodes", name, at=at))
    stream = f"node-{name}"
    slots, drift, tasks, events, seal, excluded_at, cordoned_at = await both(
        visit.get("slots", node=name, limit=_SLOTS_OF_NODE, at=at),
        visit.get("nodes", name, "drift", at=at),
        visit.get("tasks", node=name, limit=10) if visit.allows("tasks:read") and not at else nothing(),
        visit.get("events", stream=stream, order="desc", limit=100, to=at)
        if visit.allows("events:read")
        else nothing(),
        read_seal(visit),
        time_of_newest(visit, stream, "node.excluded") if node["excluded"] else nothing(),
        time_of_newest(visit, stream, "node.cordoned") if node["cordoned"] else nothing(),
    )
    return visit.render(
        "node.html",
        node=node,
        slots=slots["items"],
        drift=drift["items"],
        tasks=None if tasks is None else tasks["items"],
        events=None if events is None else timeline_of(visit, events["items"], seal),
        actions=NODE_ACTIONS,
        excluded_at=excluded_at,
        cordoned_at=cordoned_at,
        in_progress=node["state"] == "enrolled" and _has_unfinished(tasks),
    )


def _has_unfinished(tasks: Mapping[str, Any] | None) -> bool:
    return tasks is not None and any(each["state"] in UNFINISHED for each in tasks["items"])


async def show_slot(visit: Visit) -> Response:
    names, at = visit.request.path_params, visit.at
    node, index = names["node"], names["index"]
    slot, events, seal = await both(
        visit.get("nodes", node, "slots", index, at=at),
        visit.get("events", stream=f"slot-{node}/{index}", order="desc", limit=100, to=at)
        if visit.allows("events:read")
        else nothing(),
        read_seal(visit),
    )
    return visit.render(
        "slot.html",
        slot=slot,
        events=None if events is None else timeline_of(visit, events["items"], seal),
        actions=SLOT_ACTIONS,
    )
