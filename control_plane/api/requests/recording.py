"""The dependency that opens the row of a request in the access log, before the handler of its route runs."""

from fastapi import Request

from control_plane.api.audit.access_log import access_log_of
from control_plane.api.audit.entries import entry_of
from control_plane.api.requests.access import NOT_RECORDED, declaration_of


async def recorded(request: Request) -> None:
    """Write the row of a request that is recorded even if it succeeds. Raises a database error.

    It is the last dependency of every route: what the others refuse, and a body that is not valid JSON, gets its row
    when it is refused.
    """
    entry, log = entry_of(request), access_log_of(request)
    policy = declaration_of(request.scope["route"]).get("audit")
    entry.exempt = policy == NOT_RECORDED
    entry.wanted = not entry.exempt and log.wants(entry, policy)
    if entry.wanted:
        await log.open(entry)
    else:
        log.passed_by(entry)
