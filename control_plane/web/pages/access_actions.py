"""Actions on API keys, service accounts and sessions, and those that create a key or a service account."""

from typing import Any, Final

from control_plane.web.actions import (
    NEW,
    REASON,
    Action,
    Call,
    Field,
    Names,
    Resource,
    View,
    Words,
    by_scope,
    plain,
    seconds,
    with_reason,
    without_repeated,
    words,
)
from control_plane.web.rendering import in_path
from control_plane.web.visits import Form, Visit

ROLES: Final = ("caller", "admin", "auditor")
_RIGHTS: Final = {
    "caller": "creates, changes and reads allocations of the given projects; reads their tasks, events and usage",
    "admin": "reads and changes everything, including nodes, projects and access",
    "auditor": "reads everything, and changes nothing",
}
_HOUR: Final = 3600
_DAY: Final = 86400
_ISSUED: Final = "key"
_LIMITS: Final = (
    Field("role", "Role", "choice", value=ROLES[0], choices=ROLES, example=ROLES[0]),
    Field("projects", "Projects, separated by spaces (required for the role caller)", required=False),
    Field("scopes", "Scopes (if none is ticked, the key has every scope of its role)", "several", required=False),
)  # fmt: skip
_NAME: Final = Field(
    "name", "Name of the owner, such as ci: the id of the key begins with it", example="NAME"
)
_ACCOUNT: Final = Field("service_account", "Service account", example="ACCOUNT")
_DAYS: Final = Field(
    "days", "Days until the key expires (empty: it does not expire)", "number", required=False
)


def _limits(form: Form) -> dict[str, Any]:
    body: dict[str, Any] = {"role": form.text("role")}
    return body | {name: form.listed(name) for name in ("projects", "scopes") if form.listed(name)}


def _limit_words(form: Form) -> Words:
    options = [word for each in form.listed("projects") for word in ("--project", each)]
    options += [word for each in form.listed("scopes") for word in ("--scope", each)]
    return ("--role", form.text("role"), *options)


def _lifetime(form: Form) -> dict[str, Any]:
    days = form.text("days")
    return {"lifetime_seconds": seconds(days, "days", _DAY)} if days else {}


def _lifetime_words(form: Form) -> Words:
    return ("--lifetime", f"{form.text('days')}d") if form.text("days") else ()


def _issue(form: Form) -> Call:
    return Call("POST", ("keys",), {"name": form.text("name"), **_limits(form), **_lifetime(form)})


def _issue_words(_name: Words, form: Form) -> Words:
    return ("keys", "issue", form.text("name"), *_limit_words(form), *_lifetime_words(form))


def _issue_of_account(form: Form) -> Call:
    own = {"name": form.text("name"), "service_account": form.text("service_account")}
    return Call("POST", ("keys",), {**own, **_lifetime(form)})


def _issue_of_account_words(_name: Words, form: Form) -> Words:
    account = form.text("service_account")
    return ("keys", "issue", form.text("name"), "--service-account", account, *_lifetime_words(form))


def _create(form: Form) -> Call:
    own = {"id": form.text("id"), "description": form.text("description")}
    return Call("POST", ("service-accounts",), {**own, **_limits(form)})


def _create_words(_name: Words, form: Form) -> Words:
    description = form.text("description")
    option = ("--description", description) if description else ()
    return ("service-accounts", "create", form.text("id"), *_limit_words(form), *option)


def _rotate(form: Form) -> Call:
    return Call("POST", ("rotate",), {"overlap_seconds": seconds(form.text("hours"), "hours", _HOUR)})


def _page_of_key(answer: View) -> str:
    return f"/access/keys/{in_path(answer['id'])}"


def _page_of_account(answer: View) -> str:
    return f"/access/service-accounts/{in_path(answer['id'])}"


async def own_key(visit: Visit) -> str | None:
    """Return the id of the API key with which the user logged in; None if it logged in at an identity provider."""
    session = await visit.get("sessions", visit.user["credential"])
    return session["credential"] if session["credential_kind"] == "key" else None


def _scopes(view: View) -> dict[str, tuple[str, ...]]:
    return {"scopes": view["scopes"]}


async def _roles(_visit: Visit, _view: View) -> dict[str, str]:
    """Return what each role may do, which the form shows before the choice."""
    return {f"Role {name}": text for name, text in _RIGHTS.items()}


async def _warn_of_rotating(visit: Visit, view: View) -> str | None:
    if view["id"] != await own_key(visit):
        return None
    return (
        "You are logged in with this key. Your session ends when the replaced key is no longer accepted: with 0 hours,"
        " at once. Afterwards, log in with the new key, which is shown once."
    )


async def _warn_of_revoking(visit: Visit, view: View) -> str | None:
    if view["id"] != await own_key(visit):
        return None
    return (
        "You are logged in with this key. Your session ends at once, and this browser is logged out. Make sure that you"
        " have another key."
    )


async def _warn_of_disabling(visit: Visit, view: View) -> str | None:
    if visit.user["actor"] != f"service-account:{view['id']}":
        return None
    return "You are logged in as this service account. Your session ends at once, and this browser is logged out."


async def _warn_of_ending(visit: Visit, view: View) -> str | None:
    if view["id"] != visit.user["credential"]:
        return None
    return "This is your session in this browser: it is logged out."


KEY_ACTIONS: Final = {
    "rotate": Action(
        "Rotate", "rotate",
        "A new key with the same role, projects, scopes and expiry replaces the key. The replaced key is still accepted for"
        " the given time, but never past its own expiry. The secret of the new key is shown once.",
        _rotate, lambda name, form: ("keys", "rotate", *name, "--overlap", f"{form.text('hours')}h"),
        fields=(Field("hours", "Hours for which the replaced key is still accepted (0: it is refused at once)", "number", value="1", example="1"),),
        made=_page_of_key, secret=_ISSUED, dangerous=True, asks_name=True, warning=_warn_of_rotating,
    ),
    "revoke-key": Action(
        "Revoke", "revoke", "The key is refused from now on, and its sessions end. This cannot be undone.",
        with_reason("revoke"), words("keys", "revoke", reason=True), fields=(REASON,), dangerous=True, asks_name=True,
        warning=_warn_of_revoking,
    ),
}  # fmt: skip
SERVICE_ACCOUNT_ACTIONS: Final = {
    "disable": Action(
        "Disable", "disable",
        "Each key of the service account is refused until the account is enabled, and so is each session that was started"
        " with one.",
        with_reason("disable"), words("service-accounts", "disable", reason=True), fields=(REASON,), dangerous=True,
        warning=_warn_of_disabling,
    ),
    "enable": Action(
        "Enable", "enable", "Keys of the service account that are not revoked or expired are accepted again.",
        plain("POST", "enable"), words("service-accounts", "enable"),
    ),
}  # fmt: skip
SESSION_ACTIONS: Final = {
    "end": Action(
        "End session", "end", "The session is refused from now on. A browser with it is logged out.",
        with_reason("end"), words("sessions", "end", reason=True), fields=(REASON,), dangerous=True,
        warning=_warn_of_ending,
    ),
}  # fmt: skip
CREATING: Final = {
    "issue-key": Action(
        "Issue an API key", "issue-key",
        "The key acts with the chosen role. Its secret is shown once; the control plane stores only a hash of it.",
        _issue, _issue_words, fields=(_NAME, *_LIMITS, _DAYS), choices=_scopes, made=_page_of_key, secret=_ISSUED,
        facts=_roles,
    ),
    "issue-account-key": Action(
        "Issue a key of a service account", "issue-account-key",
        "Requests with the key act as the service account, with its role, projects and scopes. Its secret is shown once;"
        " the control plane stores only a hash of it.",
        _issue_of_account, _issue_of_account_words, fields=(_ACCOUNT, _NAME, _DAYS), made=_page_of_key, secret=_ISSUED,
    ),
    "create-service-account": Action(
        "Create a service account", "create-service-account",
        "The account is the identity of a workload. It gets keys of its own afterwards.",
        _create, _create_words,
        fields=(
            Field("id", "Id, such as ci", example="ACCOUNT"),
            Field("description", "Description: what the workload does", required=False),
            *_LIMITS,
        ),
        choices=_scopes, made=_page_of_account, facts=_roles,
    ),
}  # fmt: skip


async def _load(visit: Visit, _names: Names) -> View:
    await visit.get("keys", limit=1)  # a caller that may not read the lists gets the refusal of the API
    # The API refuses a key with scopes that its issuer does not have.
    allowed = by_scope(visit, *CREATING, scope="access:write")
    return {"scopes": tuple(visit.user["scopes"]), "allowed_actions": allowed}


KEY: Final = Resource(
    "API key", KEY_ACTIONS,
    path=lambda names: ("keys", names["key"]),
    page=lambda names: f"/access/keys/{in_path(names['key'])}",
    facts=lambda view: {
        "Role": view["role"],
        "Projects": ", ".join(view["projects"] or ()) or "all",
        "Service account": view["service_account"],
        "Expires": view["expires_at"] or "never",
        "Last used": view["last_used_at"] or "not recorded yet",
    },
    label=lambda names: names["key"],
    words=lambda names: (names["key"],),
)  # fmt: skip


def with_effective_actions(account: View) -> View:
    """Return the view of a service account, changed so that an active one cannot be enabled."""
    return without_repeated(
        account, "service account", {"enable": "active"} if account["state"] == "active" else {}
    )


async def _service_account(visit: Visit, names: Names) -> View:
    return with_effective_actions(await visit.get("service-accounts", names["account"]))


SERVICE_ACCOUNT: Final = Resource(
    "service account", SERVICE_ACCOUNT_ACTIONS,
    path=lambda names: ("service-accounts", names["account"]),
    page=lambda names: f"/access/service-accounts/{in_path(names['account'])}",
    facts=lambda view: {"Description": view["description"], "Role": view["role"], "Disabled": view["reason"]},
    label=lambda names: names["account"],
    words=lambda names: (names["account"],),
    load=_service_account,
)  # fmt: skip
SESSION_OF_CALLER: Final = Resource(
    "session", SESSION_ACTIONS,
    path=lambda names: ("sessions", names["session"]),
    page=lambda _names: "/access/sessions",
    facts=lambda view: {"Caller": view["actor"], "Label": view["label"], "Last used": view["last_used_at"]},
    label=lambda names: names["session"],
    words=lambda names: (names["session"],),
)  # fmt: skip
ACCESS: Final = Resource(
    "access", CREATING,
    path=lambda _names: (),
    page=lambda _names: "/access/keys",
    facts=lambda _view: {},
    label=lambda _names: NEW,
    words=lambda _names: (),
    load=_load,
)  # fmt: skip
"""What does not exist yet: each action names in its form what it creates."""
