"""Pages of access: API keys, service accounts and sessions."""

from typing import Final

from starlette.responses import Response

from control_plane.web.actions import by_scope
from control_plane.web.pages.access_actions import (
    CREATING,
    KEY_ACTIONS,
    ROLES,
    SERVICE_ACCOUNT_ACTIONS,
    SESSION_ACTIONS,
)
from control_plane.web.visits import Visit, both

_LISTED: Final = 50
_KEYS_OF_ACCOUNT: Final = 100


async def show_keys(visit: Visit) -> Response:
    chosen = {name: visit.query(name) for name in ("state", "role", "project", "service_account")}
    listed = await visit.get("keys", cursor=visit.query("cursor"), limit=_LISTED, **chosen)
    return visit.render(
        "keys.html",
        keys=listed["items"],
        next_cursor=listed["next_cursor"],
        chosen=chosen,
        roles=ROLES,
        creating=CREATING,
        allowed=by_scope(visit, *CREATING, scope="access:write"),
    )


async def show_key(visit: Visit) -> Response:
    key = await visit.get("keys", visit.request.path_params["key"])
    return visit.render("key.html", key=key, actions=KEY_ACTIONS)


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
    account, keys = await both(
        visit.get("service-accounts", name),
        visit.get("keys", service_account=name, limit=_KEYS_OF_ACCOUNT),
    )
    return visit.render(
        "service_account.html",
        account=account,
        keys=keys["items"],
        has_more=keys["next_cursor"] is not None,
        actions=SERVICE_ACCOUNT_ACTIONS,
        allowed=by_scope(visit, *CREATING, scope="access:write"),
    )


async def show_sessions(visit: Visit) -> Response:
    chosen = {"state": visit.query("state") or "active", "actor": visit.query("actor")}
    query = {**chosen, "state": None if chosen["state"] == "any" else chosen["state"]}
    listed = await visit.get("sessions", cursor=visit.query("cursor"), limit=_LISTED, order="desc", **query)
    return visit.render(
        "sessions.html",
        sessions=listed["items"],
        next_cursor=listed["next_cursor"],
        chosen=chosen,
        states=("active", "ended", "expired", "any"),
        ending=SESSION_ACTIONS["end"],
    )
