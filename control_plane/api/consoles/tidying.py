"""Record the end of console sessions that a process of the API or of the SSH gateway left open when it was killed.
Every process of the API searches for such sessions.
"""

from typing import Final

import structlog

from control_plane.commands.consoles.session_commands import record_lost
from control_plane.handle import AGAIN
from control_plane.origin import Origin
from control_plane.outage import DATABASE_UNAVAILABLE, rest
from control_plane.wiring import Plane
from events.values import new_uuid

log = structlog.get_logger()
_EVERY_SECONDS: Final = 5.0


async def end_lost_consoles(plane: Plane) -> None:
    """Record periodically the end of console sessions with a process that has ended. Runs until cancelled."""
    while True:
        await rest(_EVERY_SECONDS)
        try:
            while await plane.handle(record_lost(_origin())) == AGAIN:
                continue
        except DATABASE_UNAVAILABLE as error:
            log.info("lost_console_sessions_not_checked", error=str(error))


def _origin() -> Origin:
    return Origin("system:api", "the process of a console session has ended", new_uuid())
