"""An API process that permits every request without credentials: the baseline of the access benchmark.

It is the product's API, in which the function that authenticates is replaced before the routes are made.
"""

import sys
from typing import Final

from fastapi import Request

from control_plane.api.audit.entries import entry_of
from control_plane.api.requests import access
from control_plane.decisions.access import SCOPES_OF, Principal, Role
from control_plane.programs import Program
from control_plane.server import main

_ADMIN: Final = Principal("key:bench", Role.ADMIN, SCOPES_OF[Role.ADMIN])


async def permit(request: Request) -> None:
    """Accept an admin as the caller of the request, without credentials. This function replaces `authorise`."""
    entry = entry_of(request)
    entry.route, entry.principal = request.scope["route"].path, _ADMIN.actor
    request.state.principal = _ADMIN


if __name__ == "__main__":
    assert "control_plane.api.app" not in sys.modules, "`authorise` is replaced before the routes are made"
    vars(access)["authorise"] = permit
    sys.argv[1:] = [Program.API]
    sys.exit(main())
