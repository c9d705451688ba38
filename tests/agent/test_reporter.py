"""Reports survive what they must, and arrive once, in order (NOD-11)."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from node_agent.clock import NodeClock
from node_agent.reporter import Reporter
from node_agent.spool import Spool
from tasks.reports import SliceRemains, SliceStarting
from tasks.timetable import Timetable
from tests.agent.bearing import client_of
from tests.agent.conftest import CREDENTIAL
from tests.agent.control_plane import THROTTLED_SECONDS, FakeControlPlane, serving
from tests.agent.eventually import eventually
from tests.agent.orders import apply

COUNT = 12
Deliver = Callable[[Reporter], None]


def tell(reporter: Reporter, times: int = 1) -> None:
    order = apply()
    for _ in range(times):
        reporter.tell(SliceStarting(slot_id=order.slot_id, allocation_id=order.allocation_id), order)


def sequences(plane: FakeControlPlane) -> list[int]:
    return [report.sequence for report in plane.reports]


def test_reports_arrive_in_order_and_are_forgotten(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    tell(reporter, 250)
    deliver(reporter)
    eventually(lambda: spool.waiting == 0)
    assert sequences(plane) == list(range(1, 251))
    assert plane.batches == 3
    assert plane.reports[0].order_id == apply().order_id


def test_of_large_reports_as_many_are_sent_at_once_as_a_request_may_hold(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    order = apply()
    leftovers = ("x" * 2000,) * 256
    for _ in range(5):
        found = SliceRemains(slot_id=order.slot_id, allocation_id=order.allocation_id, leftovers=leftovers)
        reporter.tell(found, order)
    deliver(reporter)
    eventually(lambda: spool.waiting == 0)
    assert sequences(plane) == [1, 2, 3, 4, 5]
    assert plane.batches == 3


def test_counting_goes_on_after_a_restart_with_nothing_waiting(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter, tmp_path: Path
) -> None:
    tell(reporter, 3)
    deliver(reporter)
    eventually(lambda: spool.waiting == 0)
    again = Reporter(Spool(tmp_path / "spool"), NodeClock())
    tell(again)
    deliver(again)
    eventually(lambda: len(plane.reports) == 4)
    again.stop(5)
    assert sequences(plane) == [1, 2, 3, 4]
    assert len(plane.incarnations) == 1


def test_reports_wait_while_the_control_plane_is_away(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    plane.mood = "away"
    deliver(reporter)
    tell(reporter, 5)
    eventually(lambda: plane.turned_away > 0)
    assert spool.waiting == 5
    plane.mood = "well"
    eventually(lambda: spool.waiting == 0)
    assert sequences(plane) == [1, 2, 3, 4, 5]


def test_a_lost_answer_means_the_same_reports_again_and_they_are_taken_once(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    plane.mood = "deaf"
    tell(reporter, 3)
    deliver(reporter)
    eventually(lambda: plane.batches >= 2)
    plane.mood = "well"
    eventually(lambda: spool.waiting == 0)
    assert sequences(plane) == [1, 2, 3]


def test_reports_that_are_turned_away_stay(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    plane.mood = "refusing"
    deliver(reporter)
    tell(reporter, 2)
    eventually(lambda: plane.turned_away > 0)
    assert spool.waiting == 2
    plane.mood = "well"
    eventually(lambda: sequences(plane) == [1, 2])


def test_reporter_that_is_throttled_waits_for_retry_after_and_keeps_the_order(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    plane.mood = "throttling"
    tell(reporter, 3)
    deliver(reporter)
    eventually(lambda: len(plane.reported_at) == 1)
    # A report that comes meanwhile must not shorten the wait.
    tell(reporter, 2)
    eventually(lambda: spool.waiting == 0)
    first, second, *_ = plane.reported_at
    assert second - first >= THROTTLED_SECONDS
    assert sequences(plane) == [1, 2, 3, 4, 5]


def test_a_control_plane_that_lost_its_memory_gets_a_new_incarnation(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    tell(reporter, 3)
    deliver(reporter)
    eventually(lambda: spool.waiting == 0)
    plane.forget_reports()
    tell(reporter, 2)
    eventually(lambda: sequences(plane) == [1, 2, 3, 1, 2])
    assert len(plane.incarnations) == 2


def test_a_disk_that_went_back_in_time_gets_a_new_incarnation(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    plane._taken[spool._head.incarnation] = 40
    tell(reporter, 2)
    deliver(reporter)
    eventually(lambda: sequences(plane) == [1, 2])
    assert len(plane.incarnations) == 2


def test_a_line_torn_by_a_crash_is_cut_off(spool: Spool, reporter: Reporter, tmp_path: Path) -> None:
    tell(reporter, 2)
    with (tmp_path / "spool" / "reports.jsonl").open("ab") as lines:
        lines.write(b'{"sequence":3,"observed_at"')
    again = Spool(tmp_path / "spool")
    assert again.waiting == 2
    tell(Reporter(again, NodeClock()))
    assert Spool(tmp_path / "spool").waiting == 3


def test_a_spool_that_was_emptied_long_ago_is_small(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter, tmp_path: Path
) -> None:
    deliver(reporter)
    tell(reporter, 1700)
    eventually(lambda: spool.waiting == 0, 30)
    assert sum(len(report.model_dump_json()) for report in plane.reports) > 300 * 1024
    assert (tmp_path / "spool" / "reports.jsonl").stat().st_size < 300 * 1024
    assert sequences(plane) == list(range(1, 1701))


POINTS = [
    "agent.report.before@1",
    "agent.report.before@7",
    "agent.report.after@1",
    "agent.report.after@7",
    "agent.deliver.before@1",
    "agent.deliver.before@2",
    "agent.deliver.after@1",
    "agent.deliver.after@2",
    "agent.head.after@1",
    "agent.head.after@2",
]


def run_child(folder: Path, url: str, failpoints: str = "", count: int = COUNT) -> int:
    command = [sys.executable, "-m", "tests.agent.reporting", str(folder), url, CREDENTIAL, str(count)]
    return subprocess.run(
        command, env={**os.environ, "SLICEPLANE_FAILPOINTS": failpoints}, check=False
    ).returncode


def test_a_disk_that_refuses_for_a_while_keeps_no_report_from_arriving(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter, tmp_path: Path
) -> None:
    in_the_way = tmp_path / "spool" / "head.json.new"
    in_the_way.mkdir()
    tell(reporter, 2)
    deliver(reporter)
    eventually(lambda: sequences(plane) == [1, 2])
    tell(reporter)
    eventually(lambda: sequences(plane) == [1, 2, 3])
    in_the_way.rmdir()
    tell(reporter)
    eventually(lambda: Spool(tmp_path / "spool").waiting == 0)
    assert sequences(plane) == [1, 2, 3, 4]


def test_a_damaged_line_costs_its_own_report_and_the_file_is_kept_for_a_person(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter, tmp_path: Path
) -> None:
    tell(reporter, 3)
    lines = tmp_path / "spool" / "reports.jsonl"
    first, second, third = lines.read_bytes().splitlines(keepends=True)
    damaged = first + second.replace(b"slice.starting", b"slice.st@rting") + third
    lines.write_bytes(damaged)
    again = Reporter(Spool(tmp_path / "spool"), NodeClock())
    deliver(again)
    eventually(lambda: sequences(plane) == [1, 2])
    again.stop(5)
    assert (tmp_path / "spool" / "reports.damaged").read_bytes() == damaged


@pytest.mark.parametrize("visit", [1, 2])
def test_killed_while_it_begins_anew_nothing_that_was_taken_is_sent_again(
    plane: FakeControlPlane, known: FakeControlPlane, url: str, tmp_path: Path, visit: int
) -> None:
    assert run_child(tmp_path / "spool", url) == 0
    plane.forget_reports()
    point = f"agent.compact.between@{visit}"
    assert run_child(tmp_path / "spool", url, point, COUNT + 1) == -signal.SIGKILL
    eventually(lambda: run_child(tmp_path / "spool", url, count=1) == 0)
    assert sequences(plane) == [*range(1, COUNT + 1), 1]


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_each_report_arrives_once_and_in_order(
    plane: FakeControlPlane, known: FakeControlPlane, url: str, tmp_path: Path, point: str
) -> None:
    assert run_child(tmp_path / "spool", url, point) == -signal.SIGKILL, "the failpoint was never reached"
    assert run_child(tmp_path / "spool", url) == 0
    assert sequences(plane) == list(range(1, COUNT + 1))
    assert len(plane.incarnations) == 1


def test_killed_while_compacting_nothing_is_lost(
    plane: FakeControlPlane, known: FakeControlPlane, url: str, tmp_path: Path
) -> None:
    assert run_child(tmp_path / "spool", url, "agent.compact.between", 1500) == -signal.SIGKILL
    assert run_child(tmp_path / "spool", url, "", 1500) == 0
    assert sequences(plane) == list(range(1, 1501))


def test_a_control_plane_that_comes_up_later_gets_everything(
    known: FakeControlPlane, spool: Spool, reporter: Reporter, timetable: Timetable
) -> None:
    with serving(known) as url:
        port = int(url.rpartition(":")[2])
    client = client_of(url, CREDENTIAL)
    reporter.start(client, timetable)
    tell(reporter, 3)
    with serving(known, port):
        eventually(lambda: spool.waiting == 0)
    assert sequences(known) == [1, 2, 3]
