"""Times and positions that users enter, converted to the format of the API.

The command line and the web console read the same forms. They differ in the zone of a time that is entered without one.
"""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

POSITION: Final = re.compile(r"position:\d{1,18}", re.ASCII)
_UNIT: Final = r"(?:s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)"
_AGO: Final = re.compile(rf"(-?)((?:\d{{1,6}} ?{_UNIT} ?)+)(ago)?", re.ASCII)
_PART: Final = re.compile(r"(\d+) ?([smhdw])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_UTC: Final = re.compile(r" ?(?:utc|z)$", re.ASCII)
_DAYS: Final = {"today": 0, "yesterday": 1}
_WHOLE_DAYS_AGO: Final = {"now": 0, "yesterday": 1}
"""Words that are times by themselves, each with the number of days before now."""
_SHORT_HOUR: Final = re.compile(r" (\d:)", re.ASCII)


def parse_moment(text: str, now: datetime, zone: tzinfo | None) -> str | None:
    """Return a time or position in the format of the API, such as `2026-11-28T10:00:00Z`; None if the text is neither.

    `10m ago`, `-10m` and `yesterday` are relative to `now`, and the text `now` is this time. `zone` applies to a time
    without a zone, and to the days of `yesterday 10:00` and `today 10:00`; None is the local time of this machine.
    """
    words = " ".join(text.lower().split())
    if POSITION.fullmatch(words):
        return words
    try:
        time = _time_ago(words, now) or _time(words, now, zone)
        return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return None


def _time_ago(words: str, now: datetime) -> datetime | None:
    if words in _WHOLE_DAYS_AGO:
        return now - timedelta(days=_WHOLE_DAYS_AGO[words])
    ago = _AGO.fullmatch(words)
    if ago is None or not (ago[1] or ago[3]):
        return None
    return now - timedelta(seconds=sum(int(count) * _SECONDS[unit] for count, unit in _PART.findall(ago[2])))


def _time(words: str, now: datetime, zone: tzinfo | None) -> datetime:
    """Return a date with or without a time, or a time of today or yesterday. Raises `ValueError`."""
    bare = _UTC.sub("", words)
    if bare != words:
        zone = UTC
    day, _, clock = bare.partition(" ")
    if day in _DAYS and clock:
        bare = f"{now.astimezone(zone).date() - timedelta(_DAYS[day])} {clock}"
    time = datetime.fromisoformat(_SHORT_HOUR.sub(r" 0\1", bare).upper())
    if time.tzinfo is None:
        return time.replace(tzinfo=zone)
    if bare != words:
        raise ValueError("the time has two zones")
    return time
