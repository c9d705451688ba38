"""An API process of which each request chooses what it pays for: the three sides of the access benchmark.

It is the product's API with two functions replaced before the routes are made: the function that authenticates, and the
one that decides whether a request is recorded. All sides share one process, because two processes of the same program
differ in speed by up to a third.
"""

import sys
from contextvars import ContextVar
from typing import Final

from fastapi import Request

from bench.access.clients import HEADER
from control_plane.api.audit.access_log import AccessLog
from control_plane.api.audit.entries import Entry, entry_of
from control_plane.api.requests import access
from control_plane.decisions.access import SCOPES_OF, Principal, Role
from control_plane.programs import Program
from control_plane.server import main

RECORDED: Final = "recorded"
"""The request is authenticated and recorded, as in a deployment."""
UNRECORDED: Final = "unrecorded"
"""The request is authenticated, and not recorded."""
UNAUTHENTICATED: Final = "unauthenticated"
"""The request is permitted without credentials, and not recorded."""
SIDES: Final = (RECORDED, UNRECORDED, UNAUTHENTICATED)

_ADMIN: Final = Principal("key:bench", Role.ADMIN, SCOPES_OF[Role.ADMIN])
_side: ContextVar[str] = ContextVar("_side")
_authorise: Final = access.authorise


async def authorise(request: Request) -> None:
    """Authenticate the request, or accept an admin as its caller without credentials, as its header asks."""
    side = request.headers.get(HEADER, RECORDED)
    _side.set(side)
    if side != UNAUTHENTICATED:
        await _authorise(request)
        return
    entry = entry_of(request)
    entry.route, entry.principal = request.scope["route"].path, _ADMIN.actor
    request.state.principal = _ADMIN


def is_recorded(_log: AccessLog, _entry: Entry, _policy: str | None) -> bool:
    return _side.get(RECORDED) == RECORDED


if __name__ == "__main__":
    assert "control_plane.api.app" not in sys.modules, "`authorise` is replaced before the routes are made"
    vars(access)["authorise"] = authorise
    AccessLog.wants = is_recorded  # type: ignore[method-assign, assignment]  # for this process only
    sys.argv[1:] = [Program.API]
    sys.exit(main())
