"""Search for a resource by its id, name, address or position, at a time if one follows: `10.1.0.12 yesterday`. Of the
id of an allocation or a task, the form in which lists shorten it is enough, or its beginning.

A text has one or more of the forms in `_FORMS`. The API decides whether a resource exists, and whether the caller may
read it.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.responses import Response

from control_plane.web.calls import Refusal, url_of
from control_plane.web.cookies import ROOT
from control_plane.web.moments import api_moment
from control_plane.web.pages import requests
from control_plane.web.pages.ids_in_events import INGRESS, REQUEST, claim_of, event_with_id, reservation_of
from control_plane.web.visits import Visit, see_other

_ALLOCATION: Final = re.compile(r"alc-[0-9a-z]{26}")
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SHORT: Final = {
    "Allocation": ("allocations", re.compile(r"alc-[0-9a-z]{4,26}((…|\.\.\.)[0-9a-z]{1,26})?")),
    "Task": ("tasks", re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,28}((…|\.\.\.)[0-9a-f]{1,12})?")),
}
"""Parts of ids that name resources: the list of the API that finds them, which is also that of the console."""
_MOST: Final = 20
"""Number of resources with the same part of their ids that are listed."""
_IPV4: Final = r"\d{1,3}(?:\.\d{1,3}){3}"
_MAC: Final = re.compile(
    r"(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}|[0-9a-f]{4}\.[0-9a-f]{4}\.[0-9a-f]{4}", re.IGNORECASE
)
"""A MAC address with colons, hyphens or dots. The API has it with colons."""
_NAME: Final = re.compile(
    rf"(?!(?:(?:alc|con|ing|req|ses)-[0-9a-z]{{26,32}}|{_UUID.pattern}|{_IPV4})$)[a-z0-9][a-z0-9.-]{{0,62}}"
)
"""A name that is neither an id nor an address: each name costs a request per kind of resource."""
_BEFORE_TIME: Final = re.compile(r"^(?:at |\+ ?)", re.IGNORECASE)
_NOT_FOUND: Final = (
    HTTPStatus.FORBIDDEN,  # a caller that is limited to projects may not read the history of an address
    HTTPStatus.UNPROCESSABLE_ENTITY,
)


class _Form(NamedTuple):
    """A form of texts, and what a text of this form names: a resource that the API returns at `path`, and its page.
    Both are templates: `{0}` is the text, and `{1}` and the following are the groups of the pattern. A single group is
    the name of the resource, without the word before it. With a `query`, the API returns a list: it must not be empty,
    unless its search has not ended, which the page continues.

    `time` is the parameter by which the page shows the past; None: it has no past. `scope` is None if every caller may
    read such resources of its own.
    """

    title: str
    pattern: re.Pattern[str]
    scope: str | None
    path: str
    page: str
    time: str | None = None
    query: Mapping[str, str] = {}


async def _event(visit: Visit, name: str) -> str | None:
    event = await event_with_id(visit, name)
    return None if event is None else f"/events/{event['position']}"


async def _ingress(visit: Visit, name: str) -> str | None:
    """Return the history of an ingress rule; for callers that may not read it, the allocation with the rule."""
    reservation = await reservation_of(visit, name)
    if reservation is None:
        return None
    if visit.user["projects"] is not None:
        return f"/allocations/{reservation['data']['allocation_id']}"
    return url_of("/history", {"kind": "ingress", "name": claim_of(reservation)})


async def _request(visit: Visit, name: str) -> str | None:
    row, events = await requests.found(visit, name)
    return f"/requests/{name}" if row or events else None


class _Id(NamedTuple):
    """A form of ids that no path of the API has: `find` returns the page of the resource, None if there is none."""

    title: str
    pattern: re.Pattern[str]
    scope: str | None
    find: Callable[[Visit, str], Awaitable[str | None]]
    time: str | None = None


_PORT: Final = rf"({_IPV4}:\d{{1,5}})"
_ACTOR: Final = re.compile(r"(?:key|service-account|user|node):\S{1,299}")
_NEWEST: Final = {"limit": "1", "order": "desc"}
_FORMS: Final[tuple[tuple[_Form | _Id, ...], ...]] = (
    (
        _Form("Allocation", _ALLOCATION, "allocations:read", "allocations/{0}", "/allocations/{0}", "at"),
        _Form("Task", _UUID, "tasks:read", "tasks/{0}", "/tasks/{0}"),
        _Form("Verification", _UUID, "fleet:read", "verifications/{0}", "/verifications/{0}"),
        _Form("Address", re.compile(_IPV4), "events:read", "history/address/{0}", "/history?kind=address&name={0}", "at"),
        _Form("Address", _MAC, "events:read", "history/address/{0}", "/history?kind=address&name={0}", "at"),
        _Form("Ingress rule (tcp)", re.compile(rf"(?:tcp/)?{_PORT}"), "events:read", "history/ingress/tcp/{1}", "/history?kind=ingress&name=tcp%2F{1}", "at"),
        _Form("Ingress rule (udp)", re.compile(rf"(?:udp/)?{_PORT}"), "events:read", "history/ingress/udp/{1}", "/history?kind=ingress&name=udp%2F{1}", "at"),
        _Form("Device", re.compile(r"([a-z0-9-]+)/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE), "events:read", "history/device/{1}/{2}", "/history?kind=device&name={0}", "at"),
        _Form("Slot", re.compile(r"([a-z0-9-]+)/(\d+)"), "fleet:read", "nodes/{1}/slots/{2}", "/history?kind=slot&name={0}", "at"),
        _Form("Login", re.compile(r"ses-[0-9a-z]{26}"), None, "sessions/{0}", "/access/sessions?session={0}"),
        _Form("Events of console session", re.compile(r"con-[0-9a-z]{26}"), "events:read", "events", "/events?stream=console-{0}", "to", {"stream": "console-{0}", **_NEWEST}),
        _Form("API key", re.compile(r"(?:key:)?([a-z][a-z0-9-]{0,31}-[0-9a-f]{12})"), "access:read", "keys/{1}", "/access/keys/{1}"),
        _Form("Service account", re.compile(rf"(?:service-account:)?({_NAME.pattern})"), "access:read", "service-accounts/{1}", "/access/service-accounts/{1}"),
        _Form("Events by", _ACTOR, "events:read", "events", "/events?actor={0}", "to", {"actor": "{0}", **_NEWEST}),
        _Form("Event", re.compile(r"(?:position:)?([1-9]\d{0,18})", re.ASCII), "events:read", "events/{1}/causes", "/events/{1}"),
        _Form("Node", re.compile(rf"(?:node:)?({_NAME.pattern})"), "fleet:read", "nodes/{1}", "/nodes/{1}", "at"),
        _Form("Project", _NAME, "projects:read", "projects/{0}", "/projects/{0}", "at"),
        _Form("SKU", _NAME, "catalogue:read", "skus/{0}", "/skus/{0}", "at"),
        _Form("Image", _NAME, "catalogue:read", "images/{0}", "/images/{0}", "at"),
        _Form("Billing period", _NAME, "usage:read", "usage/periods/{0}", "/usage/periods/{0}"),
        _Id("Ingress rule", INGRESS, "events:read", _ingress, "at"),
        _Id("Request", REQUEST, None, _request),
    ),
    (
        _Form("Events with correlation id", _UUID, "events:read", "events", "/events?correlation={0}", "to", {"correlation": "{0}", **_NEWEST}),
        _Id("Event", _UUID, "events:read", _event),
    ),
)  # fmt: skip
"""The forms of texts. Those of the second group are compared only if the text names nothing of the first one: the
correlation id of a task is the id of the task, and the ledger has no index of the ids of events.
"""


class _Found(NamedTuple):
    """A resource that the text names, and its page; `name` is its id if the text is a part of it. `time` is the
    parameter by which the page shows the past; None: it has no past.
    """

    title: str
    name: str
    page: str
    time: str | None = None


async def show(visit: Visit) -> Response:
    """Show the only resource that the text names; else the list of those that it names, which may be empty. A time
    alone shows the events up to this time.
    """
    entered, now = visit.query("q") or "", datetime.now(UTC)
    alone = api_moment(entered, now) if visit.allows("events:read") else None
    text, time = _split(entered)
    if alone is not None and time:
        return see_other(_events_until(alone))
    at = api_moment(time, now) if time else None
    if time and at is None:
        code = HTTPStatus.UNPROCESSABLE_ENTITY
        return visit.render("search.html", code, text=text, found=(), entered=entered, unreadable=time)
    found = await _named(visit, text) + await _shortened(visit, text)
    if not found and alone is not None:
        return see_other(_events_until(alone))
    if len(found) == 1:
        return see_other(_page_at(found[0], at))
    pages = [(f"{each.title} {each.name}", _page_at(each, at)) for each in found]
    more = len(found) >= _MOST
    return visit.render("search.html", text=text, found=pages, more=more, entered=entered, unreadable=None)


def _events_until(at: str) -> str:
    return f"{ROOT}/events{url_of('', {'to': at})}"


def _split(entered: str) -> tuple[str, str]:
    """Split the text of a search into a name and a time. The word `at`, or a `+`, before the time is removed. A MAC
    address gets the form of the API.
    """
    text, _, time = " ".join(entered.split()).partition(" ")
    if _MAC.fullmatch(text):
        digits = re.sub(r"[:.-]", "", text).lower()
        text = ":".join(digits[each : each + 2] for each in range(0, len(digits), 2))
    return text, _BEFORE_TIME.sub("", time)


def _page_at(found: _Found, at: str | None) -> str:
    """Return the page of a resource, at a time if it has a past."""
    if at is None or found.time is None:
        return f"{ROOT}{found.page}"
    joined = "&" if "?" in found.page else "?"
    return f"{ROOT}{found.page}{joined}{url_of('', {found.time: at})[1:]}"


async def _named(visit: Visit, text: str) -> list[_Found]:
    """Return what the text names as a whole."""
    for group in _FORMS:
        found = list[_Found]()
        for form in group:
            match = form.pattern.fullmatch(text)
            if match is None or not (form.scope is None or visit.allows(form.scope)):
                continue
            try:
                page = await (
                    form.find(visit, text) if isinstance(form, _Id) else _page_of(visit, form, match)
                )
            except Refusal as refusal:
                if refusal.status not in _NOT_FOUND:
                    raise
                continue
            if page is not None:
                name = match[1] if form.pattern.groups == 1 else text
                found.append(_Found(form.title, name, page, form.time))
        if found:
            return found
    return []


async def _page_of(visit: Visit, form: _Form, match: re.Match[str]) -> str | None:
    """Return the page of the resource that a text of a form names; None if the API does not return it."""
    parts = (match[0], *match.groups())
    query = {name: each.format(*parts) for name, each in form.query.items()}
    answer = await visit.try_get(*(each.format(*parts) for each in form.path.split("/")), **query)
    if answer is None or (form.query and not answer["items"] and answer["next_cursor"] is None):
        return None
    return form.page.format(*(quote(each, safe="") for each in parts))


async def _shortened(visit: Visit, text: str) -> list[_Found]:
    """Return the newest resources with an id of which the text is a part."""
    found: list[_Found] = []
    if _ALLOCATION.fullmatch(text) or _UUID.fullmatch(text):
        return found
    for title, (path, pattern) in _SHORT.items():
        if not pattern.fullmatch(text) or not visit.allows(f"{path}:read"):
            continue
        try:
            listed = await visit.get(path, id=text, limit=_MOST)
        except Refusal as refusal:
            if (
                refusal.status == HTTPStatus.UNPROCESSABLE_ENTITY
            ):  # a name that only looks like a part of an id
                continue
            raise
        time = "at" if title == "Allocation" else None
        found += [_Found(title, each["id"], f"/{path}/{each['id']}", time) for each in listed["items"]]
    return found
