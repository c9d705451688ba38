"""Tests of trace contexts: which are valid (W3C Trace Context, level 1), and how a trace is started and continued."""

from uuid import UUID

import pytest

from events.traces import continued, report_id, started, trace_id

CAUSE = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        (f"00-{TRACE}-{PARENT}-01", "01"),
        (f"00-{TRACE}-{PARENT}-00", "00"),
        (f"00-{TRACE}-{PARENT}-fe", "00"),
        (f"00-{TRACE}-{PARENT}-ff", "01"),
        (f"cc-{TRACE}-{PARENT}-01-what-the-future-will-be-like", "01"),
    ],
)
def test_continued_trace_has_the_same_trace_id_a_new_parent_id_and_no_unknown_flag(
    given: str, flags: str
) -> None:
    assert continued(given, CAUSE) == f"00-{TRACE}-bcceb302099a8057-{flags}"
    assert trace_id(given) == TRACE


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01-",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-01\n",
        f"cc-{TRACE}-{PARENT}-01.more",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}-0g",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f"00-{TRACE[:-1]}\u0661-{PARENT}-01",
    ],
)
def test_invalid_trace_context_is_ignored(given: str | None) -> None:
    assert continued(given, CAUSE) is None
    assert trace_id(given) is None


def test_trace_started_with_an_id_has_this_id_as_its_trace_id() -> None:
    assert started(CAUSE) == f"00-{CAUSE.hex}-bcceb302099a8057-01"
    assert trace_id(started(CAUSE)) == CAUSE.hex


def test_reports_with_different_causes_or_sequence_numbers_have_different_ids() -> None:
    assert len({report_id(CAUSE, 1), report_id(CAUSE, 2), report_id(UUID(int=1), 1)}) == 3
