"""Times that users enter in the console, and what the API gets."""

from datetime import UTC, datetime

import pytest

from control_plane.web.moments import api_moment

_NOW = datetime(2026, 11, 28, 12, 30, 5, 250000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("entered", "sent"),
    [
        ("yesterday", "2026-11-27T12:30:05Z"),
        ("3h ago", "2026-11-28T09:30:05Z"),
        ("10 minutes ago", "2026-11-28T12:20:05Z"),
        ("2 Weeks  ago", "2026-11-14T12:30:05Z"),
        ("2026-11-27", "2026-11-27T00:00:00Z"),
        ("2026-11-27 10:00", "2026-11-27T10:00:00Z"),
        ("2026-11-27T10:00", "2026-11-27T10:00:00Z"),
        ("2026-11-27 10:00+02:00", "2026-11-27T08:00:00Z"),
    ],
)
def test_time_that_a_user_enters_is_converted_to_the_format_of_the_api(entered: str, sent: str) -> None:
    assert api_moment(entered, _NOW) == sent


@pytest.mark.parametrize(
    "text",
    ["position:120", "2026-11-27T10:00:00.123456Z", "tomorrow", "2026-13-01", "999999w ago", "h ago", ""],
)
def test_text_that_the_api_reads_or_refuses_is_not_changed(text: str) -> None:
    assert api_moment(text, _NOW) == text
