"""When a request is sent again, and after which pause. Pure.

A request is repeated only if a second execution has no second effect: its method is idempotent, or it has an
idempotency key. It is repeated after a failed connection, and after a response with Retry-After (RFC 9110, section
10.2.3) and the status 429, 503, or 409 because the first request with this key is still in progress.
"""

from collections.abc import Mapping
from typing import Final

from control_plane.client.exchange import Prepared

PAUSES: Final = (0.2, 0.5, 1.0)
"""Seconds to wait before the first, second and third repetition of a request. A server may request a longer pause."""
LONGEST_PAUSE: Final = 5.0
_LATER: Final = frozenset({409, 429, 503})


def pause_after_loss(request: Prepared, attempt: int) -> float | None:
    """Return the seconds to wait before the next attempt after the connection of attempt `attempt` (from 0) failed;
    None: do not repeat the request.
    """
    return PAUSES[attempt] if request.repeatable and attempt < len(PAUSES) else None


def pause_after_response(
    request: Prepared, attempt: int, status: int, headers: Mapping[str, str]
) -> float | None:
    """Return the seconds to wait before the next attempt after a response; None: the response is the result."""
    asked = headers.get("retry-after")
    if asked is None or status not in _LATER or not request.repeatable or attempt >= len(PAUSES):
        return None
    return min(float(asked), LONGEST_PAUSE) if asked.isdigit() else LONGEST_PAUSE
