"""Times that users enter in the console, converted to the format of the API.

A time without a zone is in UTC, as all times of the console are.
"""

from datetime import UTC, datetime
from typing import Final

from control_plane.client.moments import parse_moment

FORMS: Final = "yesterday 10:00, 3h ago, 2026-11-28 10:00"
"""Examples of the forms, which are the tooltips of the fields."""


def api_moment(text: str, now: datetime) -> str | None:
    """Return a time or position in the format of the API; None if the text is neither. A time relative to `now` is
    rounded down to a second.
    """
    return parse_moment(text, now.replace(microsecond=0), UTC)
