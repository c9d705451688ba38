"""The gate refuses a throttled node without asking the database, and no other node."""

import pytest

from control_plane.api.report_gate import IN_PROGRESS, ReportGate
from control_plane.decisions.refusals import Throttled
from control_plane.intake import merged, single
from events.values import NodeId
from tasks.reports import DriftMended, NodeSurveyed, Report
from tests.api.node import batch, survey

N1, N2 = NodeId("n1"), NodeId("n2")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_gate_refuses_a_node_until_its_wait_is_over_and_counts_the_requests() -> None:
    gate = ReportGate(clock := Clock())
    assert gate.refused(N1, 10) == 1
    for _ in range(3):
        with pytest.raises(Throttled) as refused, gate.entered(N1):
            raise AssertionError("it is not let in")
        assert refused.value.retry_after == 10
    with gate.entered(N2):
        clock.now += 10
    with gate.entered(N1):
        assert gate.refused(N1, 10) == 4


def test_gate_bounds_the_requests_of_one_node_that_are_in_progress() -> None:
    gate, entered = ReportGate(Clock()), [ReportGate.entered] * IN_PROGRESS
    made = [enter(gate, N1) for enter in entered]
    for each in made:
        each.__enter__()
    with pytest.raises(Throttled), gate.entered(N1):
        raise AssertionError("it is not let in")
    with gate.entered(N2):
        made[0].__exit__(None, None, None)
    with gate.entered(N1):
        pass


def test_gate_forgets_an_old_refusal_when_reports_are_taken() -> None:
    gate = ReportGate(clock := Clock())
    gate.refused(N1, 1)
    clock.now += 60
    gate.taken(N1)
    assert gate.is_throttled(N1)
    clock.now += 60
    gate.taken(N1)
    assert not gate.is_throttled(N1)


def reports(*kinds: str) -> list[Report]:
    seen = {"kind": "node.forwarding", "wanted": "w", "found": "f", "since": "2026-03-01T12:00:00Z"}
    bodies = {"s": survey(), "m": {"kind": "drift.mended", "slot": None, "drift": [seen]}}
    said = batch("", *((number, bodies[kind]) for number, kind in enumerate(kinds, 5)))
    return [Report.model_validate(each) for each in said["reports"]]


def test_consecutive_descriptions_are_merged_into_the_last_and_other_reports_are_kept() -> None:
    steps = list(merged(reports("s", "s", "m", "s", "m", "m", "s", "s", "s")))
    taken = [(step.after, step.report.sequence) for step in steps]
    assert taken == [(4, 6), (6, 7), (7, 8), (8, 9), (9, 10), (10, 13)]
    kinds = [type(step.report.body) for step in steps]
    assert kinds == [NodeSurveyed, DriftMended, NodeSurveyed, DriftMended, DriftMended, NodeSurveyed]
    assert [step.after for step in single(reports("s", "s"))] == [4, 5]
