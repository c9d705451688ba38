"""The dependency that opens the row of a request in the access log, before the handler of its route runs."""

from fastapi import Request

from control_plane.api.audit.access_log import access_log_of
from control_plane.api.audit.entries import entry_of
from control_plane.api.requests.access import NOT_RECORDED, declaration_of


async def recorded(request: Request) -> None:
    """Write the row of the request to the access log before its handler runs, if the request is recorded even when it
    succeeds. Raises a database error.

    This is the last dependency of every route. The row of a request that another dependency refuses, or of which the
    body is not valid JSON, is written by the middleware when the request is refused.
    """
    entry, log = entry_of(request), access_log_of(request)
    policy = declaration_of(request.scope["route"]).get("audit")
    entry.exempt = policy == NOT_RECORDED
    entry.wanted = not entry.exempt and log.wants(entry, policy)
    if entry.wanted:
        await log.open(entry)
    else:
        log.passed_by(entry)
