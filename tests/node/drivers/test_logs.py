"""Tests of the agent's limit on repeated warnings: the first one is logged, then one per minute with the number of
dropped warnings.
"""

import pytest
import structlog

from node_agent.runtime.logs import RepeatsLimited


class Log:
    """Log lines that pass the limit on repeated warnings, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.limit = RepeatsLimited(60, lambda: self.now)

    def write(self, method: str = "warning", /, **fields: object) -> dict[str, object] | None:
        try:
            return dict(self.limit(None, method, dict(fields)))
        except structlog.DropEvent:
            return None


UNREADABLE = {"event": "host_unreadable", "reason": "libvirt: no answer"}


def test_log_warning_repeated_within_a_minute_is_dropped_and_counted_in_the_next_written_warning() -> None:
    log = Log()
    assert log.write(**UNREADABLE) == UNREADABLE
    for at in (1.0, 30.0, 59.9):
        log.now = at
        assert log.write(**UNREADABLE) is None
    log.now = 60.0
    assert log.write(**UNREADABLE) == {**UNREADABLE, "repeated": 3}
    log.now = 120.0
    assert log.write(**UNREADABLE) == UNREADABLE


@pytest.mark.parametrize(
    "changed", [{"reason": "ovs: no answer"}, {"slot": 1}, {"event": "slot_state_unreadable_on_host"}]
)
def test_log_warning_that_differs_in_reason_slot_or_name_from_the_previous_one_is_written(
    changed: dict[str, object],
) -> None:
    log = Log()
    log.write(**UNREADABLE)
    assert log.write(**UNREADABLE | changed) == UNREADABLE | changed


@pytest.mark.parametrize("method", ["info", "error"])
def test_log_line_that_is_not_a_warning_is_written_each_time(method: str) -> None:
    log = Log()
    assert [log.write(method, **UNREADABLE) for _ in range(3)] == [UNREADABLE] * 3


def test_repeated_log_warning_is_written_if_many_different_warnings_came_in_between() -> None:
    log = Log()
    log.write(**UNREADABLE)
    for number in range(1000):
        log.write(event="other", number=number)
    assert log.write(**UNREADABLE) == UNREADABLE
