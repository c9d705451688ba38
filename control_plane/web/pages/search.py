"""Search for a resource by its id, name, address or position, at a time if one follows: `10.1.0.12 yesterday`. Of the
id of an allocation or a task, the form in which lists shorten it is enough, or its beginning.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, NamedTuple

from starlette.responses import Response

from control_plane.web.calls import Refusal, url_of
from control_plane.web.cookies import ROOT
from control_plane.web.moments import api_moment
from control_plane.web.rendering import in_path
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
_ADDRESS: Final = re.compile(r"\d{1,3}(\.\d{1,3}){3}|[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
_SLOT: Final = re.compile(r"[a-z0-9-]+/\d+")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,62})")
_BEFORE_TIME: Final = re.compile(r"^(?:at |\+ ?)", re.IGNORECASE)
_POSITION: Final = re.compile(r"(?:position:)?(?P<number>[1-9]\d{0,18})", re.ASCII)


class _Candidate(NamedTuple):
    """A resource that the text may name: the API path that finds it, and its page in the console. `past` is the page
    that shows the resource at a time; None: it has no past. `name` is its id if the text is a part of it.
    """

    title: str
    scope: str
    path: tuple[str, ...]
    page: str
    past: str | None = None
    name: str = ""


async def show(visit: Visit) -> Response:
    """Show the only resource that the text names; else the list of those that it names, which may be empty."""
    entered = visit.query("q") or ""
    text, time = _split(entered)
    at = api_moment(time, datetime.now(UTC)) if time else None
    if time and at is None:
        code = HTTPStatus.UNPROCESSABLE_ENTITY
        return visit.render("search.html", code, text=text, found=(), entered=entered, unreadable=time)
    found = [each for each in _candidates(text) if visit.allows(each.scope) and await _exists(visit, each)]
    found += await _shortened(visit, text)
    if len(found) == 1:
        return see_other(_page_at(found[0], at))
    pages = [(f"{each.title} {each.name or text}", _page_at(each, at)) for each in found]
    more = len(found) >= _MOST
    return visit.render("search.html", text=text, found=pages, more=more, entered=entered, unreadable=None)


def _split(entered: str) -> tuple[str, str]:
    """Split the text of a search into a name and a time. The word `at`, or a `+`, before the time is removed."""
    text, _, time = " ".join(entered.split()).partition(" ")
    return text, _BEFORE_TIME.sub("", time)


def _page_at(candidate: _Candidate, at: str | None) -> str:
    """Return the page of a resource, at a time if it has a past."""
    if at is None or candidate.past is None:
        return f"{ROOT}{candidate.page}"
    page, marked, anchor = candidate.past.partition("#")
    joined = "&" if "?" in page else "?"
    return f"{ROOT}{page}{joined}{url_of('', {'at': at})[1:]}{marked}{anchor}"


async def _shortened(visit: Visit, text: str) -> list[_Candidate]:
    """Return the newest resources with an id of which the text is a part."""
    found: list[_Candidate] = []
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
        for name in (each["id"] for each in listed["items"]):
            page = f"/{path}/{name}"
            past = page if title == "Allocation" else None
            found.append(_Candidate(title, f"{path}:read", (path, name), page, past, name))
    return found


async def _exists(visit: Visit, candidate: _Candidate) -> bool:
    try:
        return await visit.try_get(*candidate.path) is not None
    except Refusal as refusal:
        # A caller that is limited to projects may not read the history of an address.
        if refusal.status in (403, 422):
            return False
        raise


def _candidates(text: str) -> Iterator[_Candidate]:
    if _ALLOCATION.fullmatch(text):
        yield _with_past("Allocation", "allocations:read", ("allocations", text), f"/allocations/{text}")
    elif _UUID.fullmatch(text):
        yield _Candidate("Task", "tasks:read", ("tasks", text), f"/tasks/{text}")
    elif _ADDRESS.fullmatch(text):
        yield _with_past("Address", "events:read", ("history", "address", text), _history("address", text))
    elif _SLOT.fullmatch(text):
        node, index = text.split("/")
        page = f"/nodes/{in_path(node)}/slots/{index}"
        yield _Candidate("Slot", "fleet:read", ("nodes", node, "slots", index), page, _history("slot", text))
    else:
        yield from _named(text)


def _named(text: str) -> Iterator[_Candidate]:
    """Yield the event with this position, and the resources with this name, which may be a number too."""
    if position := _POSITION.fullmatch(text):
        number = position["number"]
        yield _Candidate("Event", "events:read", ("events", number, "causes"), f"/events/{number}")
    if _NAME.fullmatch(text):
        yield _with_past("Node", "fleet:read", ("nodes", text), f"/nodes/{in_path(text)}")
        yield _with_past("Project", "projects:read", ("projects", text), f"/projects/{in_path(text)}")
        yield _with_past("SKU", "catalogue:read", ("skus", text), f"/skus#{in_path(text)}")
        yield _with_past("Image", "catalogue:read", ("images", text), f"/images#{in_path(text)}")


def _with_past(title: str, scope: str, path: tuple[str, ...], page: str) -> _Candidate:
    """Return a candidate with a page that also shows the past."""
    return _Candidate(title, scope, path, page, page)


def _history(kind: str, name: str) -> str:
    return url_of("/history", {"kind": kind, "name": name})
