"""Pages of console sessions: the serial console, the display and the terminal of a slice, and all open sessions."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from control_plane.web.actions import REASON, Action, Names, Resource, View, by_scope, with_reason, words
from control_plane.web.calls import Refusal
from control_plane.web.commands import command_of, server_of
from control_plane.web.cookies import ROOT
from control_plane.web.rendering import DISPLAY_POLICY, POLICY
from control_plane.web.visits import Visit, problem

_SCOPE: Final = "fleet:write"
_NOT_OFFERED: Final = {
    "allowed": False,
    "code": "terminals_not_offered",
    "reason": "this deployment has no terminals in the browser; use ssh",
}
_ENDING: Final = ("releasing", "failed", "released")
"""States of allocations of which the slices are being removed or are removed, so that they have no consoles."""
_REMOVED: Final = {
    "allowed": False,
    "code": "slice_not_on_node",
    "reason": "the slices are being removed, or are removed",
}
_STOPPED: Final = {
    "allowed": False,
    "code": "wrong_state",
    "reason": "the allocation is stopped, so that no machine runs; start it first",
}
_CUT: Final = {
    "cut": Action(
        "Cut", "cut", "The session ends within a second. Its user gets the reason. The slice continues to run.",
        with_reason("cut"), words("consoles", "cut", reason=True), fields=(REASON,), dangerous=True,
    ),
}  # fmt: skip


def allowed(visit: Visit, allocation: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return whether the caller may open consoles of the slices of an allocation, in the form of `allowed_actions`. The
    allocation is None if the caller may not read it.
    """
    found: Mapping[str, Any] = by_scope(visit, "console", scope=_SCOPE)["console"]
    if found["allowed"] and allocation is not None and allocation["state"] in _ENDING:
        return _REMOVED
    if found["allowed"] and allocation is not None and allocation["state"] == "stopped":
        return _STOPPED
    return found


def allowed_terminal(allocation: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return whether the caller may open a terminal in the slices of an allocation, in the form of `allowed_actions`.
    An allocation in the past has no terminals.
    """
    action = (allocation["allowed_actions"] or {}).get("open_terminal", _NOT_OFFERED)
    if action["allowed"] and allocation["terminal_address"] is None:
        return _NOT_OFFERED
    found: Mapping[str, Any] = action
    return found


async def show_serial_console(visit: Visit) -> Response:
    return await _page(visit, "serial", "terminal")


async def show_terminal(visit: Visit) -> Response:
    name, slot = visit.request.path_params["allocation"], visit.query("slot") or "0"
    allocation = await visit.get("allocations", name)
    address, action = allocation["terminal_address"], allowed_terminal(allocation)
    shown = command_of(
        visit.request, "Log in", cli=("ssh", name, "--slot", slot), method="POST",
        path=("allocations", name, "terminal-sessions"),
        body={"slot": _number(slot), "origin": server_of(visit.request)},
    )  # fmt: skip
    response = visit.render(
        "console.html",
        allocation=name,
        slot=slot,
        slot_id=_slot_id(allocation, slot),
        kind="terminal",
        allowed=action,
        command=shown,
    )
    if address is not None:
        # The terminal is a WebSocket of the SSH gateway, which has a listener of its own.
        policy = POLICY.replace("connect-src 'self'", f"connect-src 'self' {address}")
        response.headers["Content-Security-Policy"] = policy
    return response


async def show_display(visit: Visit) -> Response:
    response = await _page(visit, "graphics", "display")
    # noVNC decodes compressed parts of a display, and shows the cursor of the guest, as images in `data:` addresses.
    response.headers["Content-Security-Policy"] = DISPLAY_POLICY
    return response


async def _page(visit: Visit, kind: str, command: str) -> Response:
    name, slot = visit.request.path_params["allocation"], visit.query("slot") or "0"
    # An unknown allocation, or one of another project, has no page.
    allocation = await visit.get("allocations", name) if visit.allows("allocations:read") else None
    shown = command_of(
        visit.request, "Open", cli=("consoles", command, name, "--slot", slot), method="POST",
        path=("allocations", name, "console-sessions"), body={"slot": _number(slot), "kind": kind},
    )  # fmt: skip
    action = allowed(visit, allocation)
    return visit.render(
        "console.html",
        allocation=name,
        slot=slot,
        slot_id=_slot_id(allocation, slot),
        kind=kind,
        allowed=action,
        command=shown,
    )


def _slot_id(allocation: Mapping[str, Any] | None, slot: str) -> str | None:
    """Return the id of the allocation's slot with the number `slot`; None if the allocation is not known or has no slot
    with this number.
    """
    slots, number = [] if allocation is None else allocation["slots"], _number(slot)
    return str(slots[number]["slot_id"]) if isinstance(number, int) and number < len(slots) else None


def _number(slot: str) -> int | str:
    """Return the number of a slot for the API, which refuses a text."""
    return int(slot) if slot.isascii() and slot.isdigit() else slot


async def open_session(visit: Visit) -> Response:
    """Request a session for the script of a page, and return its ticket or the refusal as JSON."""
    form = await visit.form()
    body = {
        "slot": _number(form.text("slot") or "0"),
        "origin": server_of(visit.request),
        "kind": form.text("kind"),
        "shared": form.text("shared") == "yes",
    }
    return await _ticket(visit, "console-sessions", body)


async def open_terminal(visit: Visit) -> Response:
    """Request a terminal for the script of a page, and return its ticket or the refusal as JSON."""
    form = await visit.form()
    body = {"slot": _number(form.text("slot") or "0"), "origin": server_of(visit.request)}
    return await _ticket(visit, "terminal-sessions", body)


async def _ticket(visit: Visit, sessions: str, body: Mapping[str, Any]) -> Response:
    name, url = visit.request.path_params["allocation"], visit.request.url
    try:
        ticket = await visit.send("POST", "allocations", name, sessions, body=body)
    except Refusal as refusal:
        if refusal.status == HTTPStatus.UNAUTHORIZED:
            raise
        return JSONResponse(refusal.problem, refusal.status)
    own = f"{url.scheme.replace('http', 'ws', 1)}://{url.netloc}{ROOT}/console-sessions/{ticket['id']}/stream"
    return JSONResponse({"url": own, **ticket}, HTTPStatus.CREATED)


async def show_sessions(visit: Visit) -> Response:
    listed = await visit.get("console-sessions")
    return visit.render("console_sessions.html", consoles=listed["items"], cutting=_CUT["cut"])


async def _load(visit: Visit, names: Names) -> View:
    listed = await visit.get("console-sessions")
    found = next((each for each in listed["items"] if each["id"] == names["console"]), None)
    if found is None:
        message = f"no open console session has the id {names['console'][:64]!r}"
        raise problem(HTTPStatus.NOT_FOUND, "unknown_console", message, "Open the list of open consoles.")
    return {**found, "allowed_actions": by_scope(visit, *_CUT, scope=_SCOPE)}


CONSOLE: Final = Resource(
    "console session", _CUT,
    path=lambda names: ("console-sessions", names["console"]),
    page=lambda _names: "/access/console-sessions",
    facts=lambda view: {
        "Caller": view["actor"],
        "Kind": view["kind"],
        "Slot": view["slot_id"],
        "Allocation": view["allocation_id"],
    },
    label=lambda names: names["console"],
    words=lambda names: (names["console"],),
    load=_load,
)  # fmt: skip
