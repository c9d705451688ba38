"""From looks at a host to what is said of drift: what is news, since when, and what is open."""

from datetime import UTC, datetime, timedelta

import pytest

from events.values import SlotIndex
from node_agent.drift import NODE, Drifts, differences, newest
from node_agent.slices import Difference, Step
from tasks.drift import DriftSeen
from tasks.orders import Order
from tasks.reports import MOST_DRIFT, DriftMended, ReportBody

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
A, B = SlotIndex(0), SlotIndex(1)
PORT = Difference("port.absent", "port 1000", "no port")
UPLINK = Difference("uplink.lost", "a default route by uplink0", "default routes by no link")


class Ear:
    def __init__(self) -> None:
        self.mended: list[DriftMended] = []
        self.changes = 0
        self.now, self.step = START, timedelta(minutes=1)
        self.drifts = Drifts(self._tell, self._now, self._changed)

    def _tell(self, body: ReportBody, _cause: Order | None) -> None:
        assert isinstance(body, DriftMended)
        self.mended.append(body)

    def _now(self) -> datetime:
        self.now += self.step
        return self.now

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
def ear() -> Ear:
    return Ear()


def kinds(drift: tuple[DriftSeen, ...]) -> list[tuple[int | None, str]]:
    return [(each.slot, each.kind) for each in drift]


def told_of(mended: DriftMended) -> tuple[int | None, list[str]]:
    return mended.slot, [each.kind for each in mended.drift]


def test_of_what_was_found_twice_the_last_is_told() -> None:
    found = [Difference("port.flows", "11 flows", f"{count} flows") for count in (3, 0)]
    assert newest((UPLINK, *found)) == (UPLINK, found[1])


def test_what_is_mended_is_told_once_and_is_not_open(ear: Ear) -> None:
    ear.drifts.note(A, [PORT])
    [told] = ear.mended
    assert told_of(told) == (0, ["port.absent"])
    assert (ear.drifts.open(), ear.changes) == ((), 0)


def test_what_is_left_is_open_and_not_called_mended(ear: Ear) -> None:
    ear.drifts.note(A, [PORT], [PORT])
    assert (ear.mended, kinds(ear.drifts.open()), ear.changes) == ([], [(0, "port.absent")], 1)


def test_what_stays_open_is_no_news_and_keeps_its_age_and_words(ear: Ear) -> None:
    ear.drifts.note(A, left=[PORT])
    first = ear.drifts.open()
    ear.drifts.note(A, left=[Difference("port.absent", "port 1000", "still no port")])
    assert (ear.drifts.open(), ear.changes) == (first, 1)


def test_what_was_open_and_is_mended_tells_since_when_it_was(ear: Ear) -> None:
    ear.drifts.note(A, left=[PORT])
    [before] = ear.drifts.open()
    ear.drifts.note(A, [PORT])
    assert [each.since for each in ear.mended[0].drift] == [before.since]
    assert (ear.drifts.open(), ear.changes) == ((), 2)


def test_the_node_comes_first_and_then_its_slots(ear: Ear) -> None:
    ear.drifts.note(B, left=[PORT])
    ear.drifts.note(A, left=[PORT])
    ear.drifts.note(NODE, left=[UPLINK])
    assert kinds(ear.drifts.open()) == [(None, "uplink.lost"), (0, "port.absent"), (1, "port.absent")]
    assert ear.drifts.knows(B, [PORT])
    assert not ear.drifts.knows(NODE, [])


def test_what_was_open_when_the_agent_ended_has_the_age_that_it_had(ear: Ear) -> None:
    known = DriftSeen(kind="port.absent", slot=0, wanted="port 1000", found="no port", since=START)
    ear.drifts.remember([known])
    ear.drifts.note(A, left=[PORT])
    assert (ear.drifts.open(), ear.changes) == ((known,), 0)


def test_what_a_look_that_was_cut_short_saw_is_added_to_what_was_open(ear: Ear) -> None:
    ear.drifts.note(NODE, left=[UPLINK])
    ear.drifts.add(NODE, [PORT])
    assert kinds(ear.drifts.open()) == [(None, "uplink.lost"), (None, "port.absent")]
    assert (ear.mended, ear.changes) == ([], 2)


def test_of_two_of_a_kind_each_has_its_own_beginning_and_end(ear: Ear) -> None:
    one, other = (Difference("device.absent", f"link {name}", "no such link") for name in ("vf0", "bf3"))
    ear.drifts.note(NODE, left=[one, other])
    ear.drifts.note(NODE, left=[other])
    assert [each.wanted for each in ear.drifts.open()] == ["link bf3"]


def test_of_more_than_a_report_holds_something_of_every_place_is_told(ear: Ear) -> None:
    many = [Difference("lease.rival", f"reservation {number}", "another") for number in range(40)]
    for index in range(10):
        ear.drifts.note(SlotIndex(index), left=many)
    told = ear.drifts.open()
    assert len(told) <= MOST_DRIFT
    assert {each.slot for each in told} == set(range(10))


def test_what_opens_and_closes_again_and_again_stays_open(ear: Ear) -> None:
    ear.step = timedelta(seconds=5)
    for _ in range(4):
        ear.drifts.note(NODE, left=[UPLINK])
        ear.drifts.note(NODE)
    assert (kinds(ear.drifts.open()), ear.changes) == ([(None, "uplink.lost")], 7)


def test_what_is_open_for_a_while_before_it_is_mended_came_up_once(ear: Ear) -> None:
    ear.step = timedelta(seconds=8)
    for _ in range(3):
        ear.drifts.note(A, left=[PORT])
        ear.drifts.note(A, [PORT])
    assert (len(ear.mended), ear.drifts.open()) == (3, ())


def test_what_is_undone_again_and_again_is_open_until_it_is_left_alone(ear: Ear) -> None:
    ear.step = timedelta(seconds=10)
    for _ in range(5):
        ear.drifts.note(A, [PORT])
    assert (len(ear.mended), kinds(ear.drifts.open()), ear.changes) == (3, [(0, "port.absent")], 1)
    [seen] = ear.drifts.open()
    assert seen.found == "no port; it comes up again and again"
    ear.step = timedelta(minutes=1)
    ear.drifts.note(A)
    assert (ear.drifts.open(), ear.changes) == ((), 2)


def test_what_is_mended_now_and_then_is_told_each_time(ear: Ear) -> None:
    for _ in range(5):
        ear.drifts.note(A, [PORT])
    assert (len(ear.mended), ear.drifts.open()) == (5, ())


def test_what_is_mended_now_and_then_all_the_time_is_open_as_well(ear: Ear) -> None:
    ear.step = timedelta(seconds=25)
    for _ in range(80):
        ear.drifts.note(A, [PORT])
    assert (len(ear.mended), kinds(ear.drifts.open())) == (60, [(0, "port.absent")])


def test_what_is_found_is_told_on_one_line_without_control_characters(ear: Ear) -> None:
    ear.drifts.note(A, left=[Difference("port.absent", "port 1000", "no\nport\x1b[31m \u202ehere")])
    assert [each.found for each in ear.drifts.open()] == ["no port [31m here"]


def test_differences_of_one_kind_are_one_drift_with_all_that_was_found() -> None:
    rivals = [Difference("lease.rival", "slice0", found) for found in ("one", "another")]
    steps = [Step("lease.withdraw", lambda: None, each) for each in (*rivals, PORT, PORT)]
    steps.append(Step("port.delete", lambda: None))
    assert differences(steps) == (Difference("lease.rival", "slice0", "one; another"), PORT)


DEVICE = Difference("slot.device", "gpu at 0000:1b:00.0", "PCI device 0000:1b:00.0 is not there")


def test_what_a_slot_lacks_is_open_whatever_becomes_of_its_orders(ear: Ear) -> None:
    ear.drifts.lack({A: (DEVICE,), B: ()})
    before = ear.drifts.open()
    ear.drifts.note(A, [PORT])
    ear.drifts.lack({A: (DEVICE,)})
    assert (kinds(before), ear.drifts.open(), ear.changes) == ([(0, "slot.device")], before, 1)
    ear.drifts.lack({A: (), B: ()})
    assert (ear.drifts.open(), ear.changes) == ((), 2)


def test_what_a_slot_lacked_when_the_agent_ended_is_as_old_as_it_was(ear: Ear) -> None:
    known = DriftSeen(slot=0, kind=DEVICE.kind, wanted=DEVICE.wanted, found=DEVICE.found, since=START)
    ear.drifts.remember([known])
    ear.drifts.lack({A: (DEVICE,)})
    assert (ear.drifts.open(), ear.changes) == ((known,), 0)
