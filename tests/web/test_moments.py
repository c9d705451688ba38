"""Times that users enter in the console, and what the API gets."""

from datetime import UTC, datetime

import pytest

from control_plane.web.moments import api_moment
from control_plane.web.rendering import relative

_NOW = datetime(2026, 11, 28, 12, 30, 5, 250000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("entered", "sent"),
    [
        ("yesterday", "2026-11-27T12:30:05Z"),
        ("Now", "2026-11-28T12:30:05Z"),
        ("3h ago", "2026-11-28T09:30:05Z"),
        ("10 minutes ago", "2026-11-28T12:20:05Z"),
        ("2 Weeks  ago", "2026-11-14T12:30:05Z"),
        ("2026-11-27", "2026-11-27T00:00:00Z"),
        ("2026-11-27 10:00", "2026-11-27T10:00:00Z"),
        ("2026-11-27T10:00", "2026-11-27T10:00:00Z"),
        ("2026-11-27 10:00+02:00", "2026-11-27T08:00:00Z"),
        ("2026-11-27 10:00 UTC", "2026-11-27T10:00:00Z"),
        ("2026-11-27 05:31:34 utc", "2026-11-27T05:31:34Z"),
        ("2026-11-27 10:00 Z", "2026-11-27T10:00:00Z"),
        ("2026-11-27T10:00Z", "2026-11-27T10:00:00Z"),
        ("2026-11-27T10:00:00.123456Z", "2026-11-27T10:00:00.123456Z"),
        ("yesterday 10:00", "2026-11-27T10:00:00Z"),
        ("Yesterday 9:05 UTC", "2026-11-27T09:05:00Z"),
        ("today 10:00:30", "2026-11-28T10:00:30Z"),
        ("-1h30m", "2026-11-28T11:00:05Z"),
        ("position:120", "position:120"),
    ],
)
def test_time_that_a_user_enters_is_converted_to_the_format_of_the_api(entered: str, sent: str) -> None:
    assert api_moment(entered, _NOW) == sent


@pytest.mark.parametrize(
    "text",
    [
        "tomorrow", "today", "2026-13-01", "999999w ago", "h ago", "2 months ago", "10:00", "yesterday 25:00",
        "2026-11-27 10:00+02:00 UTC", "position:x", "",
    ],
)  # fmt: skip
def test_text_that_is_neither_a_time_nor_a_position_is_not_converted(text: str) -> None:
    assert api_moment(text, _NOW) is None


@pytest.mark.parametrize(
    ("shown_at", "shown"),
    [
        ("2026-11-27T10:00:00Z", "in 2\xa0h"),
        ("2026-11-28T13:00:00Z", "1\xa0d\xa01\xa0h ago"),
        ("position:120", ""),
    ],
)
def test_relative_time_on_a_page_of_the_past_counts_from_the_shown_time(shown_at: str, shown: str) -> None:
    assert relative({"at": shown_at}, "2026-11-27T12:00:00Z") == shown
