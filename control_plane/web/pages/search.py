"""Search for a resource by its id, name or address."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import urlencode

from starlette.responses import Response

from control_plane.web.calls import Refusal
from control_plane.web.cookies import ROOT
from control_plane.web.rendering import in_path
from control_plane.web.visits import Visit, see_other

_ALLOCATION: Final = re.compile(r"alc-[0-9a-z]{26}")
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ADDRESS: Final = re.compile(r"\d{1,3}(\.\d{1,3}){3}|[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
_SLOT: Final = re.compile(r"(?P<node>[a-z0-9-]+)/\d+")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,62})")


class _Candidate(NamedTuple):
    """A resource that the text may name: the API path that finds it, and its page in the console."""

    title: str
    scope: str
    path: tuple[str, ...]
    page: str


async def show(visit: Visit) -> Response:
    """Show the only resource that the text names; else the list of those that it names, which may be empty."""
    text = visit.query("q") or ""
    found = [each for each in _candidates(text) if visit.allows(each.scope) and await _exists(visit, each)]
    if len(found) == 1:
        return see_other(f"{ROOT}{found[0].page}")
    return visit.render("search.html", text=text, found=found)


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
        yield _Candidate("Allocation", "allocations:read", ("allocations", text), f"/allocations/{text}")
    elif _UUID.fullmatch(text):
        yield _Candidate("Task", "tasks:read", ("tasks", text), f"/tasks/{text}")
    elif _ADDRESS.fullmatch(text):
        page = f"/history?{urlencode({'kind': 'address', 'name': text})}"
        yield _Candidate("Address", "events:read", ("history", "address", text), page)
    elif slot := _SLOT.fullmatch(text):
        node, index = text.split("/")
        yield _Candidate(
            "Slot", "fleet:read", ("nodes", node, "slots", index), f"/nodes/{in_path(node)}/slots/{index}"
        )
        yield _Candidate("Node", "fleet:read", ("nodes", slot["node"]), f"/nodes/{in_path(slot['node'])}")
    elif _NAME.fullmatch(text):
        yield _Candidate("Node", "fleet:read", ("nodes", text), f"/nodes/{in_path(text)}")
        yield _Candidate("Project", "projects:read", ("projects", text), f"/projects/{in_path(text)}")
        yield _Candidate("SKU", "catalogue:read", ("skus", text), f"/skus#{in_path(text)}")
        yield _Candidate("Image", "catalogue:read", ("images", text), f"/images#{in_path(text)}")
