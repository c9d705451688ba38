"""Actions on projects, which describe, limit, archive and erase them and reserve slots, and the actions that create a
project and close a billing period.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal
from urllib.parse import urlencode

from markupsafe import Markup

from control_plane.web.actions import (
    REASON,
    Action,
    Call,
    Field,
    Names,
    Resource,
    View,
    Words,
    by_scope,
    list_of,
    scaled,
    whole,
    with_reason,
    words,
)
from control_plane.web.rendering import LIMIT_LABELS, LIMIT_UNITS, in_path, in_unit, moment, money, quantity
from control_plane.web.visits import Form, Visit, both, nothing

_PRICES: Final = ("price_per_hour", "budget_per_month")
"""The limits of a project that are amounts of money."""
_SLOT_COUNTS: Final = ("free", "claimed", "quarantined", "blocked")
"""Fields of the API's capacity of a SKU that together count all of its slots."""
_MOST: Final = 500
_MOST_DAYS: Final = 31
"""Days of the longest month."""


def _field_of(limit: str) -> Field:
    """Return the field of a limit. Its name ends with the unit if this is not the unit of the API: `memory_gib`."""
    label = LIMIT_LABELS[limit]
    kind: Literal["money", "number"] = "money" if limit in _PRICES else "number"
    if limit in LIMIT_UNITS:
        unit, _ = LIMIT_UNITS[limit]
        return Field(f"{limit.rpartition('_')[0]}_{unit.lower()}", f"{label} in {unit}", kind, required=False)
    return Field(limit, label, kind, required=False)


_FIELDS_OF_LIMITS: Final = {limit: _field_of(limit) for limit in LIMIT_LABELS}


def _given_limits(form: Form) -> dict[str, str | int]:
    """Return the limits that a form has, in the units of the API. Raises `Refusal`."""
    given = dict[str, str | int]()
    for name, field in _FIELDS_OF_LIMITS.items():
        if text := form.text(field.name):
            if name in LIMIT_UNITS:
                given[name] = scaled(text, *LIMIT_UNITS[name])
            else:
                given[name] = text if name in _PRICES else whole(text, f"a number ({name})")
    return given


def _limits(form: Form) -> Call:
    return Call("PUT", ("limits",), _given_limits(form))


def _limits_words(name: Words, form: Form) -> Words:
    options = [
        word
        for limit, value in _given_limits(form).items()
        for word in (
            ("--max-lease", f"{value}s")
            if limit == "max_lease_seconds"
            else (f"--{limit.replace('_', '-')}", str(value))
        )
    ]
    return ("projects", "limits", "set", *name, *options)


def _present_limits(view: View) -> Names:
    return {
        _FIELDS_OF_LIMITS[name].name: in_unit(value, name) if name in LIMIT_UNITS else str(value)
        for name, value in view["limits"].items()
        if value is not None
    }


def _reserve(form: Form) -> Call:
    return Call(
        "PUT", ("reservations", form.text("sku")), {"slots": whole(form.text("slots"), "a number of slots")}
    )


def _unreserve(form: Form) -> Call:
    return Call("DELETE", ("reservations", form.text("sku")))


async def _project(visit: Visit, names: Names) -> View:
    """Return the view of a project, with the names of the offered SKUs as `skus` if the caller may read them."""
    found, skus = await both(
        visit.get("projects", names["project"]),
        visit.get("skus", state="offered", limit=_MOST) if visit.allows("catalogue:read") else nothing(),
    )
    return {**found, "skus": tuple(each["name"] for each in skus["items"]) if skus else ()}


def limits_of(project: View, currency: str) -> list[tuple[str, str, str | int | None, str | int | None]]:
    """Return each limit of a project: its name, its label, the limit and what is used of it. The budget is used by what
    is committed.
    """
    committed = project["budget"] and project["budget"]["committed"]
    used = {**(project["used"] or {}), "budget_per_month": committed}
    return [
        (name, f"{label} ({currency})" if name in _PRICES else label, project["limits"][name], used.get(name))
        for name, label in LIMIT_LABELS.items()
    ]


async def _used(visit: Visit, view: View) -> Mapping[str, Any]:
    """Return what a project uses now of each limit, and the default of the limit that has one."""
    limits = limits_of(view, visit.user["currency"])
    used = [
        Markup("<li>{}: {}{}</li>").format(
            label, quantity(used, name), " committed" if name == "budget_per_month" else ""
        )
        for name, label, _, used in limits
        if used is not None and Decimal(used)
    ]
    return {
        "In use now": Markup("<ul>{}</ul>").format(Markup().join(used)) if used else "nothing",
        "Default limit": f"{(await visit.get())['limits']['waiting_requests']} waiting requests",
    }


async def _free_slots(visit: Visit, view: View) -> Mapping[str, Any]:
    """Return how many slots each offered SKU has, and how many of them can hold an allocation now."""
    capacity = await visit.get_if_available("capacity") if visit.allows("fleet:read") else None
    rows = [
        Markup("<li>{}: {} of {} slots</li>").format(
            each["sku"], each["fits"] or 0, sum(each[name] for name in _SLOT_COUNTS)
        )
        for each in (capacity["skus"] if capacity else ())
        if each["sku"] in view["skus"]
    ]
    return {"Can be used now": Markup("<ul>{}</ul>").format(Markup().join(rows))} if rows else {}


async def _held(_visit: Visit, view: View) -> Mapping[str, Any]:
    """Return what a project must give up before its personal data can be erased, and what an erasure keeps."""
    used = view["used"] or {}
    listed = f"/ui/allocations?{urlencode({'project': view['id']})}"
    blocking = Markup('slots: {}, waiting requests: {} (<a href="{}">allocations</a>)').format(
        used.get("slots", 0), used.get("waiting_requests", 0), listed
    )
    return {
        "Must be released first": blocking
        if used.get("slots") or used.get("waiting_requests")
        else "nothing",
        "Stays readable": "which slots the project held, when and at which price; callers; names of API keys and"
        " service accounts; reasons of other commands",
    }


_SKU: Final = Field("sku", "SKU", example="SKU")
PROJECT_ACTIONS: Final = {
    "reserve": Action(
        "Reserve slots", "set_limits",
        "The project can hold this number of slots of the SKU, even if other projects request them: the slots that it"
        " holds count, and the rest is kept from other projects. While reserved slots of the SKU are missing, no other"
        " project gets a slot of it. An earlier reservation of the SKU is replaced.",
        _reserve, lambda name, form: ("reservations", "set", *name, form.text("sku"), form.text("slots")),
        fields=(_SKU, Field("slots", "Number of slots", "number", example="1")), preposition="for",
        choices=lambda view: {"sku": view["skus"]}, facts=_free_slots,
    ),
    "unreserve": Action(
        "Remove reservation", "set_limits",
        "The slots are no longer kept from other projects. Its allocations keep their slots.",
        _unreserve, lambda name, form: ("reservations", "remove", *name, form.text("sku")),
        fields=(_SKU,), dangerous=True, asks_name=True, preposition="of",
        choices=lambda view: {"sku": tuple(each["sku"] for each in view["reservations"])},
    ),
    "limits": Action(
        "Set limits", "set_limits",
        "A request that would exceed a limit is refused. Existing allocations keep what they have. A limit that is empty"
        " is removed; the default of the deployment then applies to waiting requests.",
        _limits, _limits_words,
        fields=tuple(_FIELDS_OF_LIMITS.values()),
        initial=_present_limits, preposition="of", facts=_used,
    ),
    "describe": Action(
        "Change description", "describe", "The description states what the project is for. It has no other effect.",
        lambda form: Call("PATCH", (), {"description": form.text("description")}),
        lambda name, form: ("projects", "describe", *name, form.text("description")), preposition="of",
        fields=(Field("description", "Description", required=False, example="TEXT"),),
        initial=lambda view: {"description": view["description"]},
    ),
    "archive": Action(
        "Archive", "archive",
        "The project can be read, but not changed any more: it gets no allocations, and its reservations"
        " keep no slots. This cannot be undone. While its allocations hold slots, it cannot be archived.",
        with_reason("archive"), words("projects", "archive", reason=True), fields=(REASON,), dangerous=True,
        asks_name=True,
    ),
    "erase": Action(
        "Erase personal data", "erase",
        "SSH keys, labels, user-data, descriptions and the reason for archiving become unreadable in all past events and"
        " are removed from all views. While its allocations hold slots or its requests wait, the erasure is refused. The"
        " project stays usable. This cannot be undone.",
        lambda form: Call("DELETE", ("personal-data",), {"reason": form.text("reason")}),
        words("projects", "erase", reason=True), dangerous=True, asks_name=True, preposition="of", facts=_held,
        fields=(REASON._replace(label="Reason, which is recorded and not erased: it must not contain personal data"),),
    ),
}  # fmt: skip
PROJECT: Final = Resource(
    "project", PROJECT_ACTIONS,
    path=lambda names: ("projects", names["project"]),
    page=lambda names: f"/projects/{in_path(names['project'])}",
    facts=lambda view: {
        "Description": view["description"],
        "Reservations": ", ".join(f"{each['slots']} × {each['sku']}" for each in view["reservations"]) or "none",
    },
    label=lambda names: names["project"],
    words=lambda names: (names["project"],),
    load=_project,
)  # fmt: skip


def _create(form: Form) -> Call:
    return Call("POST", (), {"id": form.text("id"), "description": form.text("description")})


def _create_words(_name: Words, form: Form) -> Words:
    description = form.text("description")
    option = ("--description", description) if description else ()
    return ("projects", "create", form.text("id"), *option)


CREATING: Final = {
    "create-project": Action(
        "Create project", "create-project",
        "Allocations can be created in the project at once. It has no reservations and no limits of its own until an"
        " admin sets them; only the number of its waiting requests has a default limit. A project is never deleted; it"
        " can be archived.",
        _create, _create_words,
        fields=(
            Field("id", "Id: 1 to 31 characters of a-z, 0-9 and '-', beginning with a letter", example="PROJECT"),
            Field("description", "Description: what the project is for (optional)", required=False),
        ),
        made=lambda answer: f"/projects/{in_path(answer['id'])}",
    ),
}  # fmt: skip
NEW_PROJECT: Final = list_of("projects", CREATING, "projects:write")


def _close(form: Form) -> Call:
    given: Mapping[str, Any] = {name: form.text(name) for name in ("starts_at", "ends_at") if form.text(name)}
    return Call("POST", (form.text("name"), "close"), given)


def _close_words(_name: Words, form: Form) -> Words:
    begin, end = form.text("starts_at"), form.text("ends_at")
    return (
        *words("usage", "periods", "close")((form.text("name"),), form),
        *(("--from", begin) if begin else ()),
        *(("--to", end) if end else ()),
    )


def _month_end(period: View) -> datetime:
    """Return the end of the calendar month in which the open billing period begins. A period usually ends then."""
    begin = datetime.fromisoformat(f"{_month(period)}-01T00:00:00Z")
    return (begin + timedelta(days=_MOST_DAYS)).replace(day=1)


def _month(period: View) -> str:
    return str(period["starts_at"][: len("2026-11")])


def _first_period(period: View) -> Names:
    """Return the initial values of the form that closes a period: the calendar month in which the open period begins,
    and before the end of the month, the part of it that has ended. A period that is a whole month needs no times.
    """
    name, begin, end = _month(period), period["starts_at"], _first_end(period)
    if end != _month_end(period):
        name = f"until-{end:%Y-%m-%d-%H%M}"
    elif begin == f"{name}-01T00:00:00Z":
        return {"name": name}
    return {"name": name, "starts_at": begin, "ends_at": _stamp(end)}


def _first_end(period: View) -> datetime:
    """Return the end of the month in which the open period begins; if this is in the future, the begin of today, or of
    the present minute for a period that begins today.
    """
    end, now = _month_end(period), datetime.now(UTC)
    if end <= now:
        return end
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    is_older = datetime.fromisoformat(period["starts_at"]) < today
    return today if is_older else now.replace(second=0, microsecond=0)


def _stamp(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


async def _open_period(visit: Visit, _names: Names) -> View:
    found, until_now = await both(visit.get("usage", "periods", "open"), visit.get("usage", period="open"))
    allowed = by_scope(visit, "close", scope="usage:write")
    if allowed["close"]["allowed"] and _first_end(found) <= datetime.fromisoformat(found["starts_at"]):
        reason = f"the open period began at {found['starts_at']}, in the present minute"
        allowed = {"close": {"allowed": False, "code": "period_not_ended", "reason": reason}}
    text = Markup("{} {}, not final: usage until {} (ledger position {})")
    bills = {"Usage until now": _billed(visit, text, until_now, until_now["total"]["price"])}
    if allowed["close"]["allowed"]:
        bills["Bill if closed now"] = await _first_bill(visit, found)
    return {**found, "allowed_actions": allowed, "bills": bills}


async def _first_bill(visit: Visit, period: View) -> Markup:
    """Return the total that closing the open period now would bill, if the form is sent with its initial values."""
    query = {"from": period["starts_at"], "to": _stamp(_first_end(period))}
    usage = await visit.get("usage", **query)
    # A range of time has no corrections of earlier periods. The bill has those that the open period has.
    price = Decimal(usage["total"]["price"]) + Decimal(period["corrections"]["price"])
    text = Markup(
        "{} {} for the proposed end {} (ledger position {}). It is not calculated again when the fields below are changed."
    )
    return _billed(visit, text, usage, str(price))


def _billed(visit: Visit, text: Markup, usage: View, price: str) -> Markup:
    """Return a text with a price, its currency, and the time and the position of the ledger up to which usage is
    counted.
    """
    return text.format(money(price), visit.user["currency"], moment(usage["end"]), usage["position"])


async def _warn_of_closing(_visit: Visit, period: View) -> str | None:
    """Return the warning that the initial end is before the end of the month; None if the month has ended."""
    end, first = _month_end(period), _first_end(period)
    if first >= end or not period["allowed_actions"]["close"]["allowed"]:
        return None
    month = datetime.fromisoformat(period["starts_at"])
    return (
        f"{month:%B %Y} has not ended. The proposed end closes a shorter period: usage from {first:%Y-%m-%d %H:%M:%S}"
        " on is in the next period. This cannot be undone."
    )


PERIOD: Final = Resource(
    "billing period",
    {
        "close": Action(
            "Close the billing period", "close",
            "The usage from the begin to the end of the period becomes final. The next period begins at this end, which"
            " must have passed. Later changes of final usage are corrections in the next period. This cannot be undone.",
            _close, _close_words, initial=_first_period,
            fields=(
                Field("name", "Name of the period, such as 2026-11", example="PERIOD"),
                Field("starts_at", "Begin, such as 2026-11-01T00:00:00Z (empty: that of the month)", required=False),
                Field("ends_at", "End (empty: that of the month, if it has passed)", required=False),
            ),
            dangerous=True,
            asks_name=True,
            warning=_warn_of_closing,
        ),
    },
    path=lambda _names: ("usage", "periods"),
    page=lambda _names: "/usage",
    facts=lambda view: {
        "Begin": view["starts_at"],
        "Month ends": _stamp(_month_end(view)),
        **view["bills"],
    },
    label=lambda _names: "close",
    title=lambda view: _first_period(view)["name"],
    words=lambda _names: (),
    load=_open_period,
)  # fmt: skip
"""The action that closes a period has a field for the name of the period."""
