"""Times that users enter, converted to the format of the API.

A time without a zone is in UTC, as all times of the console are. A text that is none of these forms is returned as it
is: the API refuses it, with its hint.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

FORMS: Final = "yesterday, 3h ago, 2026-11-28 10:00"
"""Examples of all forms, which are the tooltips of the fields."""
_AGO: Final = re.compile(r"(\d{1,6}) ?([smhdw])[a-z]* ago", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?", re.ASCII)


def api_moment(text: str, now: datetime) -> str:
    """Return a time or position in the format of the API, such as `2026-11-28T10:00:00Z`."""
    lowered = " ".join(text.lower().split())
    try:
        if lowered == "yesterday":
            return _rfc3339(now - timedelta(days=1))
        if ago := _AGO.fullmatch(lowered):
            return _rfc3339(now - timedelta(**{_UNITS[ago[2]]: int(ago[1])}))
        if _DATE.fullmatch(text):
            time = datetime.fromisoformat(text)
            # With a zone, the text is already in the format of the API, which may have more digits than a time here.
            return (
                text
                if "T" in text and time.tzinfo
                else _rfc3339(time if time.tzinfo else time.replace(tzinfo=UTC))
            )
    except (ValueError, OverflowError):
        return text
    return text


def _rfc3339(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
