"""History explorer: one resource at any past moment, and what changed it."""

from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from control_plane.web.rendering import fields_of
from control_plane.web.visits import Visit, both, problem

KINDS: Final = ("allocation", "node", "slot", "address", "ingress", "device")
_CHANGES: Final = 100


async def show(visit: Visit) -> Response:
    kind, name = visit.query("kind") or KINDS[0], visit.query("name")
    if kind not in KINDS:
        message = f"unknown kind {kind!r}; choose one of {', '.join(KINDS)}"
        raise problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_value", message, "Choose a kind from the list."
        )
    begin, compared = visit.query("from"), visit.query("compared")
    values: dict[str, Any] = {
        "kind": kind,
        "kinds": KINDS,
        "name": name,
        "begin": begin,
        "compared": compared,
    }
    if name is None:
        return visit.render("history.html", found=None, changes=None, **values)
    # The API parses the name behind the kind as the rest of its path, so a slash of a slot's name stays one.
    segments = name.split("/")
    found, changes = await both(
        visit.get("history", kind, *segments, at=visit.at),
        visit.get("history", kind, *segments, "changes", limit=_CHANGES, **{"from": begin}),
    )
    return visit.render(
        "history.html", found=found, changes=changes, rows=[*fields_of(found["state"])], **values
    )
