"""The report gate of the API refuses the requests of throttled nodes without a database query."""

import pytest

from control_plane.api.requests.report_gate import IN_PROGRESS, ReportGate
from control_plane.decisions.refusals import Throttled
from control_plane.reports.intake import merged, single
from events.values import NodeId
from tasks.reports import DriftRepaired, NodeSurveyed, Report
from tests.api.node import batch, survey

N1, N2 = NodeId("n1"), NodeId("n2")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_report_requests_of_a_throttled_node_are_refused_until_retry_after_and_counted() -> None:
    gate = ReportGate(clock := Clock())
    assert gate.refused(N1, 10) == 1
    for _ in range(3):
        with pytest.raises(Throttled) as refused, gate.entered(N1):
            raise AssertionError("the gate did not refuse the request")
        assert refused.value.retry_after == 10
    with gate.entered(N2):
        clock.now += 10
    with gate.entered(N1):
        assert gate.refused(N1, 10) == 4


def test_number_of_concurrent_report_requests_of_one_node_is_limited() -> None:
    gate, entered = ReportGate(Clock()), [ReportGate.entered] * IN_PROGRESS
    made = [enter(gate, N1) for enter in entered]
    for each in made:
        each.__enter__()
    with pytest.raises(Throttled), gate.entered(N1):
        raise AssertionError("the gate did not refuse the request")
    with gate.entered(N2):
        made[0].__exit__(None, None, None)
    with gate.entered(N1):
        pass


def test_node_counts_as_throttled_until_its_reports_were_accepted_without_refusal_for_some_time() -> None:
    gate = ReportGate(clock := Clock())
    gate.refused(N1, 1)
    clock.now += 60
    gate.taken(N1)
    assert gate.is_throttled(N1)
    clock.now += 60
    gate.taken(N1)
    assert not gate.is_throttled(N1)


def reports(*kinds: str) -> list[Report]:
    seen = {"kind": "node.forwarding", "desired": "w", "observed": "f", "since": "2026-03-01T12:00:00Z"}
    bodies = {"s": survey(), "m": {"kind": "drift.repaired", "slot": None, "drift": [seen]}}
    report_batch = batch("", *((number, bodies[kind]) for number, kind in enumerate(kinds, 5)))
    return [Report.model_validate(each) for each in report_batch["reports"]]


def test_consecutive_survey_reports_are_merged_into_the_last_one_and_other_reports_are_kept() -> None:
    steps = list(merged(reports("s", "s", "m", "s", "m", "m", "s", "s", "s")))
    taken = [(step.after, step.report.sequence) for step in steps]
    assert taken == [(4, 6), (6, 7), (7, 8), (8, 9), (9, 10), (10, 13)]
    kinds = [type(step.report.body) for step in steps]
    assert kinds == [NodeSurveyed, DriftRepaired, NodeSurveyed, DriftRepaired, DriftRepaired, NodeSurveyed]
    assert [step.after for step in single(reports("s", "s"))] == [4, 5]
