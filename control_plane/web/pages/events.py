"""Events of the ledger: the list with its filters, and one event with its causes, its effects and its proof."""

from collections import defaultdict
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from control_plane.web.calls import Refusal
from control_plane.web.commands import command_of
from control_plane.web.pages.tasks_of_events import with_tasks
from control_plane.web.rendering import fields_of
from control_plane.web.timeline import IMPORTANT, TIMELINE_PAGE, chosen_level, read_seal, timeline_of
from control_plane.web.visits import Visit, both, nothing

_FILTERS: Final = ("type", "actor", "project", "stream", "node", "correlation", "from", "to")
_STREAMS: Final = 50
"""Number of streams by which the API filters at most."""


class Branch(NamedTuple):
    """An event with the events that it caused."""

    event: Mapping[str, Any]
    effects: "list[Branch]"


async def show_list(visit: Visit) -> Response:
    """List events, newest first, filtered by type, actor, project, stream, node, correlation id and time. At the level
    `important`, the API filters by the important types, because a page of the ledger may have no important event.
    """
    chosen = {name: visit.query(name) for name in _FILTERS}
    api: dict[str, Any] = {name: value for name, value in chosen.items() if name not in ("node", "stream")}
    only_important = chosen["type"] is None and chosen_level(visit) == "important"
    if only_important:
        api["type"] = sorted(IMPORTANT)
    times = {name: visit.moment(name) for name in ("from", "to")}
    streams = await _streams(visit, chosen["stream"], chosen["node"])
    listed, seal = await both(
        visit.get(
            "events",
            order="desc",
            limit=TIMELINE_PAGE,
            cursor=visit.query("cursor"),
            stream=streams,
            **{**api, **times},
        ),
        read_seal(visit),
    )
    events, next_cursor = await with_tasks(visit, listed["items"]), listed["next_cursor"]
    is_searching = next_cursor is not None and len(events) < TIMELINE_PAGE
    return visit.render(
        "events.html",
        events=timeline_of(visit, events, seal, filtered=only_important or any(chosen.values())),
        only_important=only_important,
        page_size=TIMELINE_PAGE,
        is_searching=is_searching,
        searched_back_to=await _time_before(visit, next_cursor) if is_searching else None,
        next_cursor=next_cursor,
        chosen=chosen,
    )


async def _time_before(visit: Visit, cursor: str) -> str | None:
    """Return the time of the newest event before a cursor of the list; None if there is none."""
    events = (await visit.get("events", order="desc", limit=1, cursor=cursor))["items"]
    return events[0]["recorded_at"] if events else None


async def _streams(visit: Visit, stream: str | None, node: str | None) -> list[str]:
    """Return the streams by which events are filtered: the named one, and those of a node and its slots."""
    named = [] if stream is None else [stream]
    if node is None:
        return named
    slots = await visit.get("slots", node=node, limit=_STREAMS - 2)
    return [*named, f"node-{node}", *(f"slot-{each['id']}" for each in slots["items"])]


async def show(visit: Visit) -> Response:
    position = str(visit.request.path_params["position"])
    found, proof = await both(
        visit.get("events", position, "causes"),
        _proof(visit, position) if visit.allows("audit:read") else nothing(),
    )
    path = ("events", position, "causes")
    return visit.render(
        "event.html",
        event=found["event"],
        rows=[*fields_of(found["event"]["data"])],
        root=_tree(found),
        found=found,
        proof=proof,
        command=command_of(visit.request, "As a command", cli=("events", "causes", position), path=path),
    )


async def _proof(visit: Visit, position: str) -> Any:
    """Return the proof that the sealed ledger includes a position; without `leaf` if it is not sealed yet."""
    try:
        return await visit.get("audit", "proofs", position)
    except Refusal as refusal:
        if refusal.status != HTTPStatus.CONFLICT:
            raise
        return {"leaf": None, "reason": refusal.problem["reasons"][0]["message"]}


def _tree(found: Mapping[str, Any]) -> Branch:
    """Return the causes, the event and its effects as a tree that begins with the first cause."""
    effects = defaultdict[str, list[Branch]](list)
    for each in reversed(found["effects"]):
        effects[each["causation_id"]].insert(0, Branch(each, effects[each["id"]]))
    branch = Branch(found["event"], effects[found["event"]["id"]])
    for cause in found["causes"]:
        branch = Branch(cause, [branch])
    return branch
