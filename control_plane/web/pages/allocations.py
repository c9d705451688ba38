"""Pages of allocations: the list, one allocation with its timeline, and the explanation of its placement."""

import re
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from control_plane.web.actions import by_scope, commands_of
from control_plane.web.bulk import offered
from control_plane.web.commands import Command, command_of
from control_plane.web.pages import consoles
from control_plane.web.pages.allocation_actions import ACTIONS, ALLOCATION, with_effective_actions
from control_plane.web.pages.bulk_actions import ALLOCATIONS
from control_plane.web.pages.tasks_of_events import with_tasks
from control_plane.web.rendering import holds_slots
from control_plane.web.timeline import TIMELINE_PAGE, read_seal, timeline_of
from control_plane.web.visits import Form, Visit, both, nothing

_TIMELINE: Final = 100
_REQUESTED: Final = "allocation.requested"
_LEASE_ENDED: Final = ("allocation.lease_ended",)
_SLOTS_RELEASED: Final = ("allocation.released", "slot.released", "slot.force_released")
_LOG_LINES: Final = 2000
"""Number of lines of a serial log that its page shows by default."""
LOG_KEPT: Final = timedelta(days=7)
"""Maximum time for which a node keeps the serial log of a removed slice."""
_SLOTS_OF_NODE: Final = 500
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SSH_PORT: Final = 22
STATES: Final = (
    "requested", "waiting", "placed", "provisioning", "active", "starting", "stopping", "stopped", "releasing", "failed",
    "released",
)  # fmt: skip


async def show_list(visit: Visit) -> Response:
    chosen = {name: visit.query(name) for name in ("state", "project", "label")}
    listed = await visit.get("allocations", cursor=visit.query("cursor"), limit=50, at=visit.at, **chosen)
    next_cursor = listed["next_cursor"]
    is_searching = next_cursor is not None and bool(chosen["state"] or chosen["label"])
    return visit.render(
        "allocations.html",
        allocations=listed["items"],
        next_cursor=next_cursor,
        searched_back_to=await _time_before(visit, next_cursor) if is_searching else None,
        chosen=chosen,
        filtered=any(chosen.values()),
        states=STATES,
        bulk=offered(ALLOCATIONS),
        selecting=by_scope(visit, "select", scope="allocations:write")["select"],
        creating=_creating(visit),
    )


async def _time_before(visit: Visit, cursor: str) -> str | None:
    """Return the time of the request of the newest allocation before a cursor of the list; None if there is none."""
    found = (await visit.get("allocations", cursor=cursor, limit=1, at=visit.at))["items"]
    return found[0]["requested_at"] if found else None


def _creating(visit: Visit) -> Mapping[str, Any]:
    """Return whether the caller may create an allocation, and the reason if not. A list of the past permits nothing."""
    found: Mapping[str, Any] = by_scope(visit, "create", scope="allocations:write")["create"]
    if visit.at is None or not found["allowed"]:
        return found
    return {"allowed": False, "code": None, "reason": "this list shows the past, which cannot be changed"}


async def show(visit: Visit) -> Response:
    name, at = visit.request.path_params["allocation"], visit.at
    # The events are read first: the live page asks for later ones, so that it misses none that changes the allocation.
    timeline, seal = await both(
        visit.get("allocations", name, "events", order="desc", limit=_TIMELINE), read_seal(visit)
    )
    found, tasks = await both(
        visit.get("allocations", name, at=at),
        visit.get("tasks", allocation=name, limit=20) if visit.allows("tasks:read") and not at else nothing(),
    )
    found = with_effective_actions(found)
    # Of an allocation with more events than the page shows, the first one is read separately.
    oldest = timeline["items"][-1:]
    if timeline["next_cursor"] is not None:
        oldest = (await visit.get("allocations", name, "events", limit=1))["items"]
    events = [
        each for each in await with_tasks(visit, timeline["items"]) if at is None or _is_until(each, at)
    ]
    logins = [*_logins(found)]
    on_nodes = at is None and holds_slots(found) and bool(found["slots"])
    slots_released_at = None if holds_slots(found) else _newest(events, _SLOTS_RELEASED)
    has_log = at is None and bool(found["slots"]) and not is_log_deleted(slots_released_at)
    return visit.render(
        "allocation.html",
        allocation=found,
        timeline=timeline_of(visit, events, seal),
        requested_by=oldest[0]["actor"] if oldest else None,
        requested=_requested(oldest),
        has_older=timeline["next_cursor"] is not None,
        lease_ended_at=lease_end(found, events),
        slots_released_at=slots_released_at,
        after=f"{events[0]['epoch']}.{events[0]['position']}" if events else "",
        tasks=None if tasks is None else tasks["items"],
        logins=logins,
        endpoint_slots=slots_of_endpoints(found),
        actions={name: each.adapted(found) for name, each in ACTIONS.items()},
        commands=[each async for each in _commands(visit, found, has_log=has_log, has_login=bool(logins))],
        on_nodes=on_nodes,
        has_log=has_log,
        console=consoles.allowed(visit, found),
        terminal=consoles.allowed_terminal(found),
        log=by_scope(visit, "log", scope="allocations:write")["log"],
    )


def _requested(oldest: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the number of slots and the length of the lease that an allocation was requested with, by its first
    event. The view of an allocation has them only once slots are placed and the lease is granted.
    """
    data = oldest[0]["data"] if oldest and oldest[0]["type"] == _REQUESTED else {}
    return {name: data.get(name) for name in ("slot_count", "lease_seconds")}


def is_log_deleted(slots_released_at: str | None) -> bool:
    """Return whether the nodes of an allocation have certainly deleted its serial logs."""
    if slots_released_at is None:
        return False
    return datetime.now(UTC) - datetime.fromisoformat(slots_released_at) > LOG_KEPT


def _newest(events: Sequence[Mapping[str, Any]], types: Sequence[str]) -> str | None:
    """Return the time at which the newest event of these types was recorded; None if there is none. `events` are newest
    first.
    """
    return next((each["recorded_at"] for each in events if each["type"] in types), None)


def lease_end(allocation: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the time at which the lease of an allocation ended; None if it has not ended.

    This is the time at which the end was recorded, but at most the planned end of the lease, as in the usage: the end
    of a lease that expires is recorded a moment later.
    """
    recorded = _newest(events, _LEASE_ENDED)
    if recorded is None or allocation["lease"] is None:
        return recorded
    return min(recorded, str(allocation["lease"]["expires_at"]), key=datetime.fromisoformat)


async def _commands(
    visit: Visit, allocation: Mapping[str, Any], *, has_log: bool, has_login: bool
) -> AsyncIterator[Command]:
    """Yield the command lines that read an allocation and carry out the allowed actions on it."""
    request, name = visit.request, allocation["id"]
    own = ("allocations", name)
    yield command_of(request, "Show", cli=("allocations", "show", name), path=own)
    yield command_of(request, "Watch", cli=("allocations", "watch", name), path=(*own, "watch"))
    if has_log:
        cli = ("allocations", "serial-log", name)
        yield command_of(request, "Serial log", cli=cli, path=(*own, "serial-log"))
    if has_login:
        yield command_of(request, "Log in", cli=("ssh", name), path=own)
    for each in ACTIONS.values():
        if (allocation["allowed_actions"] or {}).get(each.allowed_by, {}).get("allowed"):
            view = allocation if each.load is None else await each.load(visit, allocation)
            form = Form([*each.first_values(view).items()])
            yield commands_of(visit, ALLOCATION, {"allocation": name}, each.adapted(allocation), form)


async def show_timeline(visit: Visit) -> Response:
    name = visit.request.path_params["allocation"]
    listed, seal = await both(
        visit.get(
            "allocations", name, "events", order="desc", limit=TIMELINE_PAGE, cursor=visit.query("cursor")
        ),
        read_seal(visit),
    )
    return visit.render(
        "timeline.html",
        name=name,
        timeline=timeline_of(visit, await with_tasks(visit, listed["items"]), seal),
        next_cursor=listed["next_cursor"],
    )


async def show_placement(visit: Visit) -> Response:
    name = visit.request.path_params["allocation"]
    placement = await visit.get("allocations", name, "placement")
    node, at = placement["slots"][0].rpartition("/")[0], f"position:{placement['position']}"
    slots_before = (
        await visit.get("slots", node=node, at=at, limit=_SLOTS_OF_NODE)
        if visit.allows("fleet:read")
        else None
    )
    return visit.render(
        "placement.html",
        placement=placement,
        node=node,
        slots=None if slots_before is None else slots_before["items"],
    )


async def show_serial_log(visit: Visit) -> Response:
    name, slot = visit.request.path_params["allocation"], visit.query("slot") or "0"
    path, attempt = ("allocations", name, "serial-log"), visit.query("attempt")
    log = await visit.get(*path, slot=slot, attempt=attempt, tail=visit.query("tail") or _LOG_LINES)
    cli = ("allocations", "serial-log", name, "--slot", slot, *(("--attempt", attempt) if attempt else ()))
    query = {"slot": slot, **({"attempt": attempt} if attempt else {})}
    command = command_of(visit.request, "Serial log", cli=cli, path=path, query=query)
    return visit.render(
        "serial_log.html",
        log=log,
        slot=slot,
        read_at=datetime.now(UTC).isoformat(),
        chosen=urlencode(query),
        text=_visible(log["text"]),
        command=command,
    )


def _visible(text: str) -> str:
    """Return the output of a terminal without its control sequences and control characters."""
    return _CONTROL.sub("", _SEQUENCE.sub("", text))


def _is_until(event: Mapping[str, Any], at: str) -> bool:
    """Return whether an event was recorded at or before a moment. `at` is the moment as `position:N` or a time (RFC
    3339); the API must have accepted it before.
    """
    position = at.removeprefix("position:")
    if position != at:
        return bool(event["position"] <= int(position))
    return datetime.fromisoformat(event["recorded_at"]) <= datetime.fromisoformat(at)


def _logins(allocation: Mapping[str, Any]) -> Iterator[dict[str, str | None]]:
    """Yield the command lines of ssh(1) that log in to the slices of an allocation: one for each endpoint that leads to
    the SSH server of a slice, and, if the deployment has an SSH gateway, one for each slice through it.
    """
    if allocation.get("ssh_gateway"):
        for number, slot in enumerate(allocation["slots"]):
            jump = f"{allocation['id']}@{allocation['ssh_gateway']['address']}"
            command = shlex.join(["ssh", "-J", jump, f"root@slice-{number}" if number else "root@slice"])
            yield {
                "command": command,
                "via": "gateway",
                "node_id": slot["node_id"],
                "slot_id": slot["slot_id"],
            }
    slot_of = slots_of_endpoints(allocation)
    by_rule = {(each["public_address"], each["public_port"]): each["port"] for each in allocation["ingress"]}
    for index, each in enumerate(allocation["endpoints"]):
        address, port = each["address"], each["port"] or _SSH_PORT
        guest_port = by_rule.get((address, each["port"])) if each["via"] == "public" else _SSH_PORT
        if (
            each["kind"] == "udp"
            or (guest_port or _SSH_PORT) != _SSH_PORT
            or (each["via"] == "node" and each["kind"] != "ssh")
        ):
            continue
        command = shlex.join(["ssh", *([] if port == _SSH_PORT else ["-p", str(port)]), f"root@{address}"])
        yield {"command": command, "via": each["via"], "node_id": each["node_id"], "slot_id": slot_of[index]}


def slots_of_endpoints(allocation: Mapping[str, Any]) -> list[str | None]:
    """Return the slot to which each endpoint of an allocation leads; None if no slot and no ingress rule has its
    address.
    """
    via_node = {
        (slot["node_id"], address): slot["slot_id"]
        for slot in allocation["slots"]
        for address in (slot["private_ip"], slot["actual_ip"])
    }
    public = {
        (each["public_address"], each["protocol"] or "address", each["public_port"]): each["slot_id"]
        for each in allocation["ingress"]
    }
    return [
        via_node.get((each["node_id"], each["address"]))
        if each["via"] == "node"
        else public.get((each["address"], each["kind"], each["port"]))
        for each in allocation["endpoints"]
    ]
