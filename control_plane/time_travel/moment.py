"""Parsing of the `at` parameter: a moment in the past, given as a time or as a position of the ledger."""

import re
from datetime import UTC, datetime
from typing import Final

from events.ledger import cursors
from events.values import InvalidValue, Position

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
_FORMS: Final = "use a time such as 2026-11-21T09:30:00Z (RFC 3339; '+' is sent as %2B), or position:N"

Moment = Position | datetime


def moment(raw: str) -> Moment:
    """Parse the value of the query parameter `at`; return a time in UTC, or a position. Raises `InvalidValue`."""
    if (position := cursors.parse_position(raw)) is not None:
        return position
    if not _TIME.fullmatch(raw.upper()):
        raise InvalidValue("moment in the past", raw[:64], _FORMS)
    try:
        return datetime.fromisoformat(raw.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidValue("time", raw[:64], str(error)) from None
