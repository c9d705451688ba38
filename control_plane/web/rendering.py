"""Rendering of pages: the Jinja2 environment, and the filters of its templates.

Every value is escaped, because names, labels and reasons come from callers and nodes. A template that names a field
which the API does not return fails, instead of showing nothing.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from control_plane.client.field_names import parts_of, readable_name
from control_plane.version import release
from control_plane.web.moments import FORMS

_FOLDER: Final = Path(__file__).parent
STATIC: Final = _FOLDER / "static"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
"""Content security policy of the pages."""
DISPLAY_POLICY: Final = POLICY.replace("img-src 'self'", "img-src 'self' data:")
_LONGEST: Final = 60
_BETWEEN: Final = " / "
"""Separator between the names in the path of a field."""
_UNREADABLE: Final = ("_sha256", "_thumbprint", "public_key", "gateway_key")
_LEFT_OUT: Final = frozenset({
    "session", "current_session", "presented_session", "session_id", "console_id", "message_id", "order_id", "network_id",
    "network_policy_id", "project_network_id", "credential", "use", "serial", "origin", "lead_seconds", "idle_seconds",
    "started_at", "granted_at", "queued_at", "revoked_at",
})  # fmt: skip
"""Fields of events that the line of an event leaves out: counters and ids of the control plane, and times that are
close to that of the event. The page of the event shows them.
"""
_Place = Callable[[str], str | Markup]
"""How the name of a node or slot is shown: as text, or as a link to its page."""
_LISTED: Final = ("skus", "added", "withdrawn", "missing", "limits", "reservations")
"""Fields of events with a list or a record as their value that the line of an event shows."""
_SECONDS: Final = "_seconds"
_LEASE_ENDS: Final = {"expires_at": "the lease ends"}
_READY_BY: Final = {"deadline": "must be ready by"}
_WORDS_OF_EVENTS: Final = {
    "allocation.lease_granted": _LEASE_ENDS,
    "allocation.lease_renewed": _LEASE_ENDS,
    "allocation.lease_expiring": _LEASE_ENDS,
    "allocation.placed": _READY_BY,
    "allocation.replaced": _READY_BY,
    "allocation.slice_interrupted": {"deadline": "must be ready again by"},
    "allocation.starting": _READY_BY,
    "task.failed": {"final": "not tried again"},
}
"""Labels of fields of events, by the type of the event, if the meaning of the field depends on the type."""
_NOTATIONS: Final = {
    ("reason",): ((r"report (\d+) of [0-9a-f-]{36}", r"report \1 of the node's agent"),),
    ("holders", "value"): (
        (r"(.+)/(\d+\.\d+\.\d+\.\d+)", r"address \2 of network \1"),
        (r"(.+)/((?:[0-9a-f]{2}:){5}[0-9a-f]{2})", r"MAC address \2 of L2 domain \1"),
        (r"(.+)/([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", r"PCI device \2 of node \1"),
        (r"(tcp|udp)/(.+):(\d+)", r"\1 port \3 of address \2"),
    ),
    ("holders", "stream"): ((r"(slot|allocation|node)-(.+)", r"\1 \2"),),
}
"""How fields that have a notation of the ledger are shown: patterns of their values by the names in their paths."""
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_TIME_IN_TEXT: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)", re.ASCII)
_DURATION_IN_TEXT: Final = re.compile(r"(?<![\w.,-])(\d{2,9}) s\b(?!/)", re.ASCII)
_ALLOCATION: Final = re.compile(r"alc-[0-9a-z]{26}", re.ASCII)
_REQUEST: Final = re.compile(r"(?<![\w-])req-[0-9a-f]{32}(?![\w-])", re.ASCII)
_KINDS: Final = frozenset({
    "allocation", "node", "slot", "task", "project", "API key", "service account", "session", "read model", "SKU", "image",
})  # fmt: skip
"""Kinds of resources that stand before a name at the beginning of a sentence. Other words do not: in `the scope
allocations:write is missing`, `scope` is not the name of a project.
"""
LIMIT_LABELS: Final = {
    "slots": "Slots",
    "gpus": "GPUs",
    "vcpus": "vCPUs",
    "memory_mib": "Memory",
    "public_addresses": "Whole public addresses",
    "public_ports": "Public ports",
    "waiting_requests": "Waiting requests",
    "max_lease_seconds": "Longest lease",
    "price_per_hour": "Price per hour",
    "budget_per_month": "Budget per calendar month",
}
"""Labels of the limits of projects and callers, by their names in the API."""
LIMIT_UNITS: Final = {"memory_mib": ("GiB", 1024), "max_lease_seconds": ("hours", 3600)}
"""Units of the console for limits that have a smaller unit in the API, and their sizes in the smaller unit."""
_LEASE_OVER: Final = ("releasing", "released", "failed")
_ABBREVIATION: Final = re.compile(r"\bsku\b")
_MINUTE: Final = 60
_HOUR: Final = 3600
_HUNDREDTH: Final = Decimal("0.01")
_MIB_PER_GIB: Final = 1024
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_WORDS_OF_UNITS: Final = {"d": "day", "h": "hour", "min": "minute", "s": "second"}
_TONES: Final = {
    "good": (
        "active", "free", "enrolled", "done", "completed", "ok", "ready", "offered", "published", "bound", "suitable", "sealed", "closed",
        "equal", "live", "allowed", "connected",
    ),
    "busy": (
        "requested", "placed", "provisioning", "starting", "stopping", "releasing",
        "due", "sent", "waiting", "not_sealed", "resyncing", "reserved", "none", "asked", "running", "rebuilding", "connecting",
    ),
    "used": ("claimed",),
    "new": ("registered", "discovered"),
    "held": ("quarantined", "cordoned"),
    "bad": (
        "failed", "unreachable", "revoked", "refused", "poisoned", "expired", "not_ready", "lost", "different",
        "disabled", "not_allowed", "not_found", "blocked", "excluded",
    ),
}  # fmt: skip
_TONE_OF: Final = {state: tone for tone, states in _TONES.items() for state in states}
_MARKS: Final = {"good": "●", "busy": "◐", "used": "■", "new": "◇", "held": "◆", "bad": "▲", "quiet": "○"}
"""Shape of each tone, so that a state is recognized without its colour."""
_OBSTACLES: Final = {
    "registered": "not enrolled",
    "missing": "a prerequisite is missing",
    "uplink.unresponsive": "the uplink does not respond",
    "bring_ups_failed": "excluded after failed bring-ups",
}
"""Reasons for placing no slice on a node or in a slot that their codes do not explain."""
SLOT_STATUSES: Final = {
    "free": "A slice can be placed in the slot.",
    "claimed": "An allocation holds the slot.",
    "releasing": "The allocation of the slot ended. The slot is free when its node has proved that it is empty.",
    "quarantined": "The slot is not offered, because its node still finds remains of a slice in it.",
    "blocked": "No allocation holds the slot, but no slice can be placed in it now, for example because its node is unreachable.",
    "discovered": "The node reported the slot. It is offered when an admin has approved it.",
    "retired": "An admin took the slot out of use. It is offered again when an admin has approved it.",
}
"""States of slots as the console shows them, each with a tone of its own, and with their explanations."""


def page(request: Request, template: str, code: int, /, **values: Any) -> Response:
    """Return a page made from a template, with a status code."""
    path = request.url.path
    text = _ENVIRONMENT.get_template(template).render(path=path, query=request.query_params, **values)
    return HTMLResponse(text, code)


def badge(state: str) -> Markup:
    """Return a state as a word with the colour and the shape of its kind."""
    return _badge(tone_of(state), _ABBREVIATION.sub(lambda found: found[0].upper(), state.replace("_", " ")))


def neutral(state: str) -> Markup:
    """Return a state as a word without the colour of its kind, for a state of which only a part is known."""
    return _badge("quiet", state)


def counted(number: int, tone: str) -> Markup:
    """Return a number of resources with the colour and the shape of their kind of state."""
    return _badge(tone, str(number))


def _badge(tone: str, text: str) -> Markup:
    return Markup('<span class="badge {}"><span aria-hidden="true">{}</span> {}</span>').format(
        tone, _MARKS[tone], text
    )


def tone_of(state: str) -> str:
    """Return the kind of a state: good, busy, used, new, held, bad or quiet."""
    return _TONE_OF.get(state, "quiet")


def slot_status(slot: Mapping[str, Any]) -> str:
    """Return the state of a slot as the console shows it: `blocked` for a free slot that placement cannot use, such as
    a slot of an unreachable node.
    """
    return "blocked" if slot["state"] == "free" and slot.get("blocked_by") else str(slot["state"])


def blocking(node: Mapping[str, Any]) -> list[str]:
    """Return all reasons in the view of a node why no new slice is placed on it. The first is its `blocked_by`, if it
    has one; that of a past view is always null, so only reasons that follow from events are returned.
    """
    found = [
        node["blocked_by"],
        None if node["key_thumbprint"] else node["state"],
        "missing" if node["missing"] else None,
        *(each["kind"] for each in node["drift"] if each["blocks"]),
        "cordoned" if node["cordoned"] else None,
        node["excluded"]["code"] if node["excluded"] else None,
    ]
    return [obstacle(each) for each in dict.fromkeys(found) if each]


def obstacle(code: str) -> str:
    """Return in words the reason with this code for placing no slice on a node or in a slot."""
    return _OBSTACLES.get(code, code.replace("_", " "))


def mark_of(state: str) -> str:
    """Return the shape of the kind of a state."""
    return _MARKS[tone_of(state)]


def moment(raw: str | None) -> Markup:
    """Return a time of the API (RFC 3339) as UTC date and time to the second; a dash if there is none."""
    if raw is None:
        return Markup('<span class="quiet">–</span>')
    time = datetime.fromisoformat(raw).astimezone(UTC)
    shown = f"{time:%Y-%m-%d %H:%M:%S}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        time.isoformat(), time.isoformat(), shown
    )


def fact(value: Any) -> Markup | str:
    """Return a value of a resource as text; a time of the API as date and time."""
    text = scalar(value)
    return moment(text) if _TIME.fullmatch(text) else text


@pass_context
def relative(context: Mapping[str, Any], raw: str | None) -> str:
    """Return a time of the API relative to the time that the page shows, such as `in 2 h` or `5 min ago`; an empty text
    if there is none, and on a page that shows the state at a position of the ledger, of which the time is not known.
    """
    at = context["at"]
    if raw is None or (at is not None and _TIME.fullmatch(at) is None):
        return ""
    shown = datetime.now(UTC) if at is None else datetime.fromisoformat(at)
    left = (datetime.fromisoformat(raw) - shown).total_seconds()
    return f"in {span(left)}" if left > 0 else f"{span(-left)} ago"


def is_lease_over(allocation: Mapping[str, Any]) -> bool:
    """Return whether the lease of an allocation has ended: a release or failure ends it before its planned end."""
    return allocation["state"] in _LEASE_OVER


def holds_slots(allocation: Mapping[str, Any]) -> bool:
    """Return whether an allocation still holds its slots, so that nodes may still have its slices. A failed
    allocation holds them until their nodes have proved them empty; until then, a fault of its slots can be reported.

    Callers that may not report a fault, and views of the past, do not show this. For them, a failed allocation holds
    its slots only if their release is overdue: most failed allocations have released them.
    """
    if allocation["state"] == "failed":
        actions = allocation["allowed_actions"] or {}
        may_report = actions.get("report_fault", {}).get("allowed", False)
        return bool(may_report or allocation["release_overdue"] is not None)
    return bool(allocation["state"] != "released")


def span(seconds: float) -> str:
    """Return a duration in its two largest units, rounded down, such as `4 h 48 min`. No-break spaces separate numbers
    and units.
    """
    return "\N{NO-BREAK SPACE}".join(
        f"{number}\N{NO-BREAK SPACE}{unit}" for number, unit in _in_largest_units(seconds)
    )


def span_in_words(seconds: float) -> str:
    """Return a duration in its two largest units, rounded down, such as `2 days 18 hours`."""
    return " ".join(
        f"{number} {_WORDS_OF_UNITS[unit]}{'' if number == 1 else 's'}"
        for number, unit in _in_largest_units(seconds)
    )


def _in_largest_units(seconds: float) -> list[tuple[int, str]]:
    """Return a duration in its two largest units, such as 4 h and 48 min; the second one is left out if it is 0."""
    first = next((index for index, (size, _) in enumerate(_UNITS) if seconds >= size), len(_UNITS) - 1)
    found, left = list[tuple[int, str]](), int(seconds)
    for size, unit in _UNITS[first : first + 2]:
        number, left = divmod(left, size)
        if number or not found:
            found.append((number, unit))
    return found


def prose(text: str) -> str:
    """Return a sentence, such as a recorded reason, with its times (ISO 8601) as UTC date and time to the second, and
    its durations of a minute and more (`5400 s`) in their two largest units.
    """
    text = _DURATION_IN_TEXT.sub(lambda found: span(int(found[1])), text)
    return _TIME_IN_TEXT.sub(lambda found: f"{found[1]} {found[2]}", text)


def unnamed(sentence: str, name: str) -> str:
    """Return a sentence of the API about the resource `name`, which the page shows, without the name: `the node is not
    cordoned` for `node n1 is not cordoned`.
    """
    kind, found, rest = sentence.partition(f" {name} ")
    return f"the {kind} {rest}" if found and kind in _KINDS else sentence


def linked(value: Any) -> Markup | str:
    """Return a scalar of a JSON document as text; the id of an allocation as a link to its page, and times as date and
    time. A `Markup` is returned unchanged.
    """
    if isinstance(value, Markup):
        return value
    text = scalar(value)
    if _TIME.fullmatch(text):
        return moment(text)
    if not _ALLOCATION.fullmatch(text):
        return prose(text)
    return Markup('<a href="/ui/allocations/{}">{}</a>').format(text, text)


def slot_hours(seconds: str) -> Markup:
    """Return a number of slot-seconds in slot-hours with two decimals, and with the exact slot-seconds as the title."""
    exact, hours = f"{amount(seconds)} slot-seconds", Decimal(seconds) / _HOUR
    return Markup('<span title="{}">{}</span>').format(exact, _two_decimals(hours))


def requests_linked(text: str) -> Markup:
    """Return a text, such as the reason of an event, with the ids of requests in it as links to their pages. The page
    must be for callers with the scope `events:read` or `access:read`.
    """
    link, begin = Markup('<a href="/ui/requests/{}">{}</a>'), 0
    pieces = list[str | Markup]()
    for found in _REQUEST.finditer(text):
        pieces += (text[begin : found.start()], link.format(found[0], found[0]))
        begin = found.end()
    return Markup().join([*pieces, text[begin:]])


def amount(value: str | int, others: Iterable[str | int | None] = ()) -> str:
    """Return a decimal number with separators, and with as many decimals as the longest of `others`: the numbers of
    its column.
    """
    decimals = max(len(str(each).partition(".")[2]) for each in (value, *others) if each is not None)
    return f"{Decimal(value):,.{decimals}f}"


def money(value: str) -> Markup:
    """Return an amount of money with two decimals, and with all of its decimals as the title."""
    return Markup('<span title="{}">{}</span>').format(amount(value), _two_decimals(Decimal(value)))


def _two_decimals(value: Decimal) -> str:
    """Return a number with two decimals; one that is not 0 and closer to 0 than 0.01 as `<0.01`."""
    if value == 0 or abs(value) >= _HUNDREDTH:
        return f"{value:,.2f}"
    return f"{'−' if value < 0 else ''}<{_HUNDREDTH}"


def quantity(value: str | int, limit: str) -> str | Markup:
    """Return an amount of a limit in the unit of the console; money with two decimals."""
    if limit in ("price_per_hour", "budget_per_month"):
        return money(str(value))
    unit, _ = LIMIT_UNITS.get(limit, ("", 1))
    return f"{amount(in_unit(value, limit))} {unit}".rstrip()


def in_unit(value: str | int, limit: str) -> str:
    """Return an amount of a limit in the unit of the console as a number, with at most 6 decimals."""
    _, size = LIMIT_UNITS.get(limit, ("", 1))
    whole, _, decimals = f"{Decimal(value) / size:.6f}".partition(".")
    return f"{whole}.{decimals.rstrip('0')}".rstrip(".")


def elapsed(seconds: float | None) -> str:
    """Return the time between two events, such as `120 ms`, `3.4 s` or `4 h 48 min`; empty if it is not known. Times of
    transactions that ran at once can be in another order than their positions: then the time is 0.
    """
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{round(max(0, seconds) * 1000)}\N{NO-BREAK SPACE}ms"
    return f"{seconds:.1f}\N{NO-BREAK SPACE}s" if seconds < _MINUTE else span(seconds)


def gist(event: Mapping[str, Any], of: str = "", *, links: bool = False) -> Markup:
    """Return the content of an event in one line, for every type of event. Values equal to `of`, the name of the
    resource that the page shows, or to the actor of the event are omitted, and so are values that mean nothing to a
    reader, such as digests, keys and counters. `links`: nodes and slots are links to their pages.
    """
    known = (of, event["actor"])
    shown = {
        name: each
        for name, each in event["data"].items()
        if each not in known and name not in _LEFT_OUT and not name.endswith(_UNREADABLE)
    }
    if "reason" in shown:
        shown.pop("failures", None)
    if _names_all(shown.get("reason"), shown.get("leftovers")):
        del shown["leftovers"]
    if shown.get("vacated") and shown.get("slots"):
        # Replace both by one part, `moved from A to B`, in the place of the first.
        moved = (shown["vacated"], shown.pop("slots"))
        shown = {("moved" if name == "vacated" else name): each for name, each in shown.items()} | {
            "moved": moved
        }
    words = _WORDS_OF_EVENTS.get(str(event.get("type")), {})
    if str(shown.get("slot_id", "")).startswith(f"{shown.get('node_id')}/"):
        del shown["node_id"]
    named = {words.get(name, name): each for name, each in shown.items()}
    return Markup(", ").join(_parts(named, _place_link if links else str))


def _names_all(reason: Any, leftovers: Any) -> bool:
    """Return whether the reason of an event has each of its leftovers, so that a line shows them once."""
    message = str(reason.get("message", "")) if isinstance(reason, dict) else ""
    return bool(message and leftovers) and all(each in message for each in leftovers)


def _parts(data: Mapping[str, Any], place: _Place) -> Iterator[str | Markup]:
    for name, value in data.items():
        if value not in (None, "") and value is not False:
            yield from _of_field(name, value, place)


def _of_field(name: str, value: Any, place: _Place) -> Iterator[str | Markup]:
    match name, value:
        case _, True:
            yield readable_name([name])
        case "allocation_id", _:
            yield linked(value)
        case "task_id", _:
            yield Markup('task <a href="/ui/tasks/{}">{}…{}</a>').format(value, value[:8], value[-4:])
        case "moved", (vacated, slots):
            yield Markup("moved from {} to {}").format(_slots(vacated, place), _slots(slots, place))
        case "slot_id" | "node_id", _:
            yield place(str(value))
        case "reason", str():
            yield prose(value)
        case _, dict() | list():
            yield from _of_record(name, value, place)
        case _, int() if name.endswith(_SECONDS):
            yield f"{readable_name([name.removesuffix(_SECONDS)])} {span(value)}"
        case _, _:
            yield from _short(name, scalar(value))


def _place_link(name: str) -> Markup:
    """Return the name of a node or slot as a link to its page."""
    node, is_slot, index = name.partition("/")
    path = f"/ui/nodes/{in_path(node)}{f'/slots/{in_path(index)}' if is_slot else ''}"
    return Markup('<a href="{}">{}</a>').format(path, name)


def _of_record(name: str, value: Any, place: _Place) -> Iterator[str | Markup]:
    """Yield what a line shows of a record or a list in an event: most are left out."""
    match name, value:
        case ("reason", {"message": message}) | ("failures", [*_, {"reason": {"message": message}}]):
            yield prose(str(message))
        case "slots", [*slots]:
            yield Markup("{} {}").format("slot" if len(slots) == 1 else "slots", _slots(slots, place))
        case "vacated", [*vacated] if vacated:
            yield Markup("vacated {}").format(_slots(vacated, place))
        case "drift", [*drift]:
            kinds = (str(each.get("kind", "")) for each in drift)
            yield ", ".join(_OBSTACLES.get(each, each) for each in kinds)
        case "leftovers", [*found] if found:
            yield f"leftovers: {', '.join(map(str, found))}"
        case _, {"name": str(named), "version": int(version)}:
            yield f"{readable_name([name])} {named} version {version}"
        case _, [*listed] if listed and name in _LISTED:
            yield from _short(name, " ".join(map(str, listed)))
        case _, dict() if name in _LISTED:
            yield from _parts(value, place)
        case _:
            pass


def _slots(slots: Iterable[Any], place: _Place) -> Markup:
    """Return the names of slots, which an event has as texts or as records."""
    names = (str(each.get("slot_id", "")) if isinstance(each, dict) else str(each) for each in slots)
    return Markup(", ").join(map(place, names))


def _short(name: str, text: str) -> Iterator[str]:
    # A text of JSON, such as the result of a task, is left out like a record.
    if not text.startswith(("{", "[")):
        yield f"{readable_name([name])} {prose(text if len(text) <= _LONGEST else text[:_LONGEST] + '…')}"


def field_name(path: str, currency: str = "") -> Markup:
    """Return an HTML span with the readable name of a field, and `path` as its title. The name of a field with a unit
    ends with the unit, such as `(MiB)`; the unit of a price is `currency`.
    """
    parts = field_path(path)
    unit = {"memory_mib": "MiB", "price_per_hour": currency}.get(parts[-1])
    return Markup('<span title="{}">{}{}</span>').format(
        path, readable_name(parts), f" ({unit})" if unit else ""
    )


def field_path(path: str) -> list[str]:
    """Return the parts of a path, which is a JSON pointer (`/slots/0/mac_address`) or a path from `fields_of`
    (`slots / 0 / mac_address`).
    """
    # The name of a label may contain the separator.
    most = 1 if path.startswith(f"labels{_BETWEEN}") else -1
    return parts_of(path) if path.startswith("/") else path.split(_BETWEEN, most)


def field_names(path: str) -> tuple[str, ...]:
    """Return the parts of a path without the indexes of lists."""
    return tuple(each for each in field_path(path) if not each.isdecimal())


def readable(value: Any, path: str) -> Any:
    """Return the value of a field as an operator writes it, such as `slot n1/0` for the stream `slot-n1/0`. A value
    without a notation of the ledger is returned unchanged.
    """
    for pattern, shown in _NOTATIONS.get(field_names(path), ()):
        if found := re.fullmatch(pattern, scalar(value), re.ASCII):
            return found.expand(shown)
    return value


def breakable(name: str) -> Markup:
    """Return an identifier that may be broken into lines after each of its underscores."""
    return Markup("_<wbr>").join(name.split("_"))


def titled(text: str) -> str:
    """Return a text with a capital as its first letter. Capitals inside it, such as those of `API key`, are kept."""
    return text[:1].upper() + text[1:]


def by_prefix(names: Iterable[str]) -> dict[str, list[str]]:
    """Return names such as `tasks:read` in groups by the part before the colon, in the order of the first of each."""
    found = dict[str, list[str]]()
    for each in names:
        found.setdefault(each.partition(":")[0], []).append(each)
    return found


def in_path(segment: str) -> str:
    """Return a name as one segment of a path of the console."""
    return quote(segment, safe="")


def scalar(value: Any) -> str:
    """Return a scalar of a JSON document as text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_json(value: Any) -> str:
    """Return a value of a JSON document as JSON, with its characters unescaped."""
    return json.dumps(value, ensure_ascii=False)


def fields_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the scalar fields of a JSON document, each with its path, such as `lease / expires_at`."""
    match value:
        case dict() if value:
            for name, each in value.items():
                yield from fields_of(each, f"{path}{_BETWEEN}{name}" if path else str(name))
        case list() if value:
            for index, each in enumerate(value):
                yield from fields_of(each, f"{path}{_BETWEEN}{index}" if path else str(index))
        case {} | []:
            yield path, None
        case _:
            yield path, value


def mib(size: int) -> str:
    """Return a size in MiB as text, in GiB if it is a whole number of them."""
    return f"{size:,} MiB" if size % _MIB_PER_GIB or not size else f"{size // _MIB_PER_GIB:,} GiB"


def _without_cursor(query: Mapping[str, str]) -> dict[str, str]:
    """Return the query parameters of a list without its cursor: those of its first page."""
    return {name: value for name, value in query.items() if name != "cursor"}


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {
        "badge": badge, "moment": moment, "relative": relative, "gist": gist, "in_path": in_path, "span": span,
        "tone": tone_of, "fact": fact, "mark": mark_of, "slot_status": slot_status, "scalar": scalar, "as_json": as_json, "elapsed": elapsed,
        "prose": prose, "titled": titled, "linked": linked, "slot_hours": slot_hours, "amount": amount, "money": money,
        "breakable": breakable, "mib": mib, "field_name": field_name, "span_in_words": span_in_words, "unnamed": unnamed,
        "blocking": blocking, "by_prefix": by_prefix, "counted": counted, "requests_linked": requests_linked,
        "obstacle": obstacle, "neutral": neutral, "readable": readable, "quantity": quantity,
    }  # fmt: skip
    made.filters.update(filters)
    made.globals.update(
        release=release(),
        slot_statuses=SLOT_STATUSES,
        forms_of_times=FORMS,
        holds_slots=holds_slots,
        limit_labels=LIMIT_LABELS,
        is_lease_over=is_lease_over,
        new_key=lambda: str(uuid4()),
        without_cursor=_without_cursor,
    )
    return made


_ENVIRONMENT: Final = _environment()
