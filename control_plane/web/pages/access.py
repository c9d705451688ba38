"""Pages of access: API keys, service accounts and sessions."""

from typing import Any, Final

from starlette.responses import Response

from control_plane.web.actions import by_scope
from control_plane.web.pages.access_actions import (
    CREATING,
    KEY_ACTIONS,
    ROLES,
    SERVICE_ACCOUNT_ACTIONS,
    SESSION_ACTIONS,
    own_key,
    with_effective_actions,
)
from control_plane.web.visits import Visit, both

_LISTED: Final = 50
_KEYS_OF_ACCOUNT: Final = 100


async def show_keys(visit: Visit) -> Response:
    chosen = {name: visit.query(name) for name in ("state", "role", "project", "service_account")}
    listed, own, delay = await both(
        visit.get("keys", cursor=visit.query("cursor"), limit=_LISTED, **chosen),
        own_key(visit),
        _delay(visit),
    )
    return visit.render(
        "keys.html",
        keys=listed["items"],
        own=own,
        delay=delay,
        next_cursor=listed["next_cursor"],
        chosen=chosen,
        roles=ROLES,
        creating=CREATING,
        allowed=by_scope(visit, *CREATING, scope="access:write"),
    )


async def show_key(visit: Visit) -> Response:
    key, own, delay = await both(
        visit.get("keys", visit.request.path_params["key"]), own_key(visit), _delay(visit)
    )
    return visit.render("key.html", key=key, own=own, delay=delay, actions=KEY_ACTIONS)


async def show_service_accounts(visit: Visit) -> Response:
    chosen = {name: visit.query(name) for name in ("role", "project")}
    listed = await visit.get("service-accounts", cursor=visit.query("cursor"), limit=_LISTED, **chosen)
    return visit.render(
        "service_accounts.html",
        accounts=listed["items"],
        next_cursor=listed["next_cursor"],
        chosen=chosen,
        roles=ROLES,
        creating=CREATING,
        allowed=by_scope(visit, *CREATING, scope="access:write"),
    )


async def show_service_account(visit: Visit) -> Response:
    name = visit.request.path_params["account"]
    account, keys, own, delay = await both(
        visit.get("service-accounts", name),
        visit.get("keys", service_account=name, limit=_KEYS_OF_ACCOUNT),
        own_key(visit),
        _delay(visit),
    )
    return visit.render(
        "service_account.html",
        account=with_effective_actions(account),
        keys=keys["items"],
        own=own,
        delay=delay,
        has_more=keys["next_cursor"] is not None,
        actions=SERVICE_ACCOUNT_ACTIONS,
        allowed=by_scope(visit, *CREATING, scope="access:write"),
    )


async def show_sessions(visit: Visit) -> Response:
    chosen = {"state": visit.query("state") or "active", "actor": visit.query("actor")}
    query = {**chosen, "state": None if chosen["state"] == "any" else chosen["state"]}
    session = visit.query("session")
    listed, delay = await both(
        visit.get("sessions", cursor=visit.query("cursor"), limit=_LISTED, order="desc", **query)
        if session is None
        else _only(visit, session),
        _delay(visit),
    )
    return visit.render(
        "sessions.html",
        sessions=listed["items"],
        delay=delay,
        next_cursor=listed["next_cursor"],
        chosen={**chosen, "state": "any" if session else chosen["state"]},
        session=session,
        states=("active", "ended", "expired", "any"),
        ending=SESSION_ACTIONS["end"],
    )


async def _only(visit: Visit, session: str) -> dict[str, Any]:
    """Return a list with one session, in the form of the API."""
    return {"items": [await visit.get("sessions", session)], "next_cursor": None}


async def _delay(visit: Visit) -> float:
    """Return the longest time in seconds after which the last use of a key or session is shown."""
    seconds: float = (await visit.get())["limits"]["credential_use_seconds"]
    return seconds
