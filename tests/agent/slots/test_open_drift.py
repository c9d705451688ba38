"""Open drift computed from host snapshots: its start time, its end, and the reports about it."""

from datetime import UTC, datetime, timedelta

import pytest

from events.values import SlotIndex
from node_agent.host.drift import NODE, Drifts, differences, newest
from node_agent.host.slices import Difference, Step
from tasks.drift import LocatedEvidence
from tasks.orders import Order
from tasks.reports import MOST_DRIFT, DriftRepaired, ReportBody

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
A, B = SlotIndex(0), SlotIndex(1)
PORT = Difference("port.absent", "port 1000", "no port")
UPLINK = Difference("uplink.lost", "a default route by uplink0", "default routes by no link")


class DriftRecorder:
    """Open drift of a node that records its reports, with a clock that advances by `step` at each read."""

    def __init__(self) -> None:
        self.repaired: list[DriftRepaired] = []
        self.changes = 0
        self.now, self.step = START, timedelta(minutes=1)
        self.drifts = Drifts(self._record_report, self._now, self._changed)

    def _record_report(self, body: ReportBody, _cause: Order | None) -> None:
        assert isinstance(body, DriftRepaired)
        self.repaired.append(body)

    def _now(self) -> datetime:
        self.now += self.step
        return self.now

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
def recorder() -> DriftRecorder:
    return DriftRecorder()


def kinds(drift: tuple[LocatedEvidence, ...]) -> list[tuple[int | None, str]]:
    return [(each.slot, each.kind) for each in drift]


def slot_and_kinds(repaired: DriftRepaired) -> tuple[int | None, list[str]]:
    return repaired.slot, [each.kind for each in repaired.drift]


def test_newest_of_two_observations_of_the_same_kind_of_drift_is_kept() -> None:
    found = [Difference("port.flows", "11 flows", f"{count} flows") for count in (3, 0)]
    assert newest((UPLINK, *found)) == (UPLINK, found[1])


def test_repaired_drift_is_reported_once_and_is_not_open(recorder: DriftRecorder) -> None:
    recorder.drifts.record(A, [PORT])
    [repaired] = recorder.repaired
    assert slot_and_kinds(repaired) == (0, ["port.absent"])
    assert (recorder.drifts.open(), recorder.changes) == ((), 0)


def test_drift_that_remains_after_a_repair_is_open_and_not_reported_as_repaired(
    recorder: DriftRecorder,
) -> None:
    recorder.drifts.record(A, [PORT], [PORT])
    assert (recorder.repaired, kinds(recorder.drifts.open()), recorder.changes) == (
        [],
        [(0, "port.absent")],
        1,
    )


def test_drift_that_stays_open_keeps_its_first_time_and_text_and_causes_no_new_report(
    recorder: DriftRecorder,
) -> None:
    recorder.drifts.record(A, left=[PORT])
    first = recorder.drifts.open()
    recorder.drifts.record(A, left=[Difference("port.absent", "port 1000", "still no port")])
    assert (recorder.drifts.open(), recorder.changes) == (first, 1)


def test_repaired_drift_that_was_open_is_reported_with_the_time_since_which_it_was_open(
    recorder: DriftRecorder,
) -> None:
    recorder.drifts.record(A, left=[PORT])
    [before] = recorder.drifts.open()
    recorder.drifts.record(A, [PORT])
    assert [each.since for each in recorder.repaired[0].drift] == [before.since]
    assert (recorder.drifts.open(), recorder.changes) == ((), 2)


def test_open_drift_lists_the_node_first_and_then_its_slots_by_index(recorder: DriftRecorder) -> None:
    recorder.drifts.record(B, left=[PORT])
    recorder.drifts.record(A, left=[PORT])
    recorder.drifts.record(NODE, left=[UPLINK])
    assert kinds(recorder.drifts.open()) == [(None, "uplink.lost"), (0, "port.absent"), (1, "port.absent")]
    assert recorder.drifts.has_exactly_open(B, [PORT])
    assert not recorder.drifts.has_exactly_open(NODE, [])


def test_restored_open_drift_keeps_the_time_since_which_it_is_open(recorder: DriftRecorder) -> None:
    known = LocatedEvidence(kind="port.absent", slot=0, desired="port 1000", observed="no port", since=START)
    recorder.drifts.restore([known])
    recorder.drifts.record(A, left=[PORT])
    assert (recorder.drifts.open(), recorder.changes) == ((known,), 0)


def test_drift_from_an_incomplete_survey_is_added_to_the_open_drift(recorder: DriftRecorder) -> None:
    recorder.drifts.record(NODE, left=[UPLINK])
    recorder.drifts.add(NODE, [PORT])
    assert kinds(recorder.drifts.open()) == [(None, "uplink.lost"), (None, "port.absent")]
    assert (recorder.repaired, recorder.changes) == ([], 2)


def test_drift_of_one_kind_at_two_objects_is_opened_and_closed_separately_for_each_object(
    recorder: DriftRecorder,
) -> None:
    one, other = (Difference("device.absent", f"link {name}", "no such link") for name in ("vf0", "bf3"))
    recorder.drifts.record(NODE, left=[one, other])
    recorder.drifts.record(NODE, left=[other])
    assert [each.desired for each in recorder.drifts.open()] == ["link bf3"]


def test_more_open_drift_than_a_report_holds_is_truncated_so_that_every_slot_is_present(
    recorder: DriftRecorder,
) -> None:
    many = [Difference("lease.conflicting", f"reservation {number}", "another") for number in range(40)]
    for index in range(10):
        recorder.drifts.record(SlotIndex(index), left=many)
    listed = recorder.drifts.open()
    assert len(listed) <= MOST_DRIFT
    assert {each.slot for each in listed} == set(range(10))


def test_drift_that_opens_and_closes_repeatedly_stays_open(recorder: DriftRecorder) -> None:
    recorder.step = timedelta(seconds=5)
    for _ in range(4):
        recorder.drifts.record(NODE, left=[UPLINK])
        recorder.drifts.record(NODE)
    assert (kinds(recorder.drifts.open()), recorder.changes) == ([(None, "uplink.lost")], 7)


def test_drift_that_is_open_for_some_time_before_its_repair_counts_as_one_occurrence(
    recorder: DriftRecorder,
) -> None:
    recorder.step = timedelta(seconds=8)
    for _ in range(3):
        recorder.drifts.record(A, left=[PORT])
        recorder.drifts.record(A, [PORT])
    assert (len(recorder.repaired), recorder.drifts.open()) == (3, ())


def test_drift_that_recurs_after_each_repair_is_open_until_it_stops_recurring(
    recorder: DriftRecorder,
) -> None:
    recorder.step = timedelta(seconds=10)
    for _ in range(5):
        recorder.drifts.record(A, [PORT])
    assert (len(recorder.repaired), kinds(recorder.drifts.open()), recorder.changes) == (
        3,
        [(0, "port.absent")],
        1,
    )
    [seen] = recorder.drifts.open()
    assert seen.observed == "no port; the drift recurs although it is repaired"
    recorder.step = timedelta(minutes=1)
    recorder.drifts.record(A)
    assert (recorder.drifts.open(), recorder.changes) == ((), 2)


def test_drift_repaired_once_a_minute_is_reported_each_time(recorder: DriftRecorder) -> None:
    for _ in range(5):
        recorder.drifts.record(A, [PORT])
    assert (len(recorder.repaired), recorder.drifts.open()) == (5, ())


def test_drift_repaired_continually_for_half_an_hour_becomes_open(recorder: DriftRecorder) -> None:
    recorder.step = timedelta(seconds=25)
    for _ in range(80):
        recorder.drifts.record(A, [PORT])
    assert (len(recorder.repaired), kinds(recorder.drifts.open())) == (60, [(0, "port.absent")])


def test_observed_text_of_drift_is_one_line_without_control_characters(recorder: DriftRecorder) -> None:
    recorder.drifts.record(A, left=[Difference("port.absent", "port 1000", "no\nport\x1b[31m \u202ehere")])
    assert [each.observed for each in recorder.drifts.open()] == ["no port [31m here"]


def test_differences_of_one_drift_kind_at_one_object_are_reported_together_with_all_observed_values() -> None:
    conflicts = [Difference("lease.conflicting", "slice0", found) for found in ("one", "another")]
    steps = [Step("lease.withdraw", lambda: None, each) for each in (*conflicts, PORT, PORT)]
    steps.append(Step("port.delete", lambda: None))
    assert differences(steps) == (Difference("lease.conflicting", "slice0", "one; another"), PORT)


DEVICE = Difference("slot.device", "gpu at 0000:1b:00.0", "PCI device 0000:1b:00.0 does not exist")


def test_missing_device_of_a_slot_stays_open_while_other_drift_of_the_slot_changes(
    recorder: DriftRecorder,
) -> None:
    recorder.drifts.record_blocking({A: (DEVICE,), B: ()})
    before = recorder.drifts.open()
    recorder.drifts.record(A, [PORT])
    recorder.drifts.record_blocking({A: (DEVICE,)})
    assert (kinds(before), recorder.drifts.open(), recorder.changes) == ([(0, "slot.device")], before, 1)
    recorder.drifts.record_blocking({A: (), B: ()})
    assert (recorder.drifts.open(), recorder.changes) == ((), 2)


def test_device_that_is_missing_before_and_after_a_restart_keeps_the_time_since_which_it_is_missing(
    recorder: DriftRecorder,
) -> None:
    known = LocatedEvidence(
        slot=0, kind=DEVICE.kind, desired=DEVICE.desired, observed=DEVICE.observed, since=START
    )
    recorder.drifts.restore([known])
    recorder.drifts.record_blocking({A: (DEVICE,)})
    assert (recorder.drifts.open(), recorder.changes) == ((known,), 0)
