"""Reports survive crashes, restarts and failed deliveries, and arrive once and in order (NOD-11)."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from node_agent.runtime.clock import NodeClock
from node_agent.runtime.timetable import Timetable
from node_agent.transport.reporter import Reporter
from node_agent.transport.spool import Spool
from tasks.reports import SliceNotRemoved, SliceStarting
from tests.agent.conftest import CREDENTIAL
from tests.agent.control_plane import THROTTLED_SECONDS, FakeControlPlane, serving
from tests.agent.credential_client import client_of
from tests.agent.eventually import eventually
from tests.agent.orders import apply
from tests.servers.program_copies import run_copy

COUNT = 12
Deliver = Callable[[Reporter], None]


def spool_reports(reporter: Reporter, times: int = 1) -> None:
    """Add `times` equal reports to the spool of the agent."""
    order = apply()
    for _ in range(times):
        reporter.report(SliceStarting(slot_id=order.slot_id, allocation_id=order.allocation_id), order)


def sequences(plane: FakeControlPlane) -> list[int]:
    return [report.sequence for report in plane.reports]


def test_spooled_reports_are_delivered_in_order_and_deleted_from_the_spool(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    spool_reports(reporter, 250)
    deliver(reporter)
    eventually(lambda: spool.waiting == 0)
    assert sequences(plane) == list(range(1, 251))
    assert plane.batches == 3
    assert plane.reports[0].order_id == apply().order_id


def test_large_reports_are_split_into_requests_of_the_maximum_size(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    order = apply()
    leftovers = ("x" * 2000,) * 256
    for _ in range(5):
        found = SliceNotRemoved(slot_id=order.slot_id, allocation_id=order.allocation_id, leftovers=leftovers)
        reporter.report(found, order)
    deliver(reporter)
    eventually(lambda: spool.waiting == 0)
    assert sequences(plane) == [1, 2, 3, 4, 5]
    assert plane.batches == 3


def test_report_sequence_continues_after_a_restart_with_an_empty_spool(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter, tmp_path: Path
) -> None:
    spool_reports(reporter, 3)
    deliver(reporter)
    eventually(lambda: spool.waiting == 0)
    again = Reporter(Spool(tmp_path / "spool"), NodeClock())
    spool_reports(again)
    deliver(again)
    eventually(lambda: len(plane.reports) == 4)
    again.stop(5)
    assert sequences(plane) == [1, 2, 3, 4]
    assert len(plane.incarnations) == 1


def test_reports_wait_in_the_spool_while_the_control_plane_is_unavailable(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    plane.mode = "unavailable"
    deliver(reporter)
    spool_reports(reporter, 5)
    eventually(lambda: plane.rejected_requests > 0)
    assert spool.waiting == 5
    plane.mode = "available"
    eventually(lambda: spool.waiting == 0)
    assert sequences(plane) == [1, 2, 3, 4, 5]


def test_reports_without_an_answer_are_sent_again_and_stored_once(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    plane.mode = "dropping"
    spool_reports(reporter, 3)
    deliver(reporter)
    eventually(lambda: plane.batches >= 2)
    plane.mode = "available"
    eventually(lambda: spool.waiting == 0)
    assert sequences(plane) == [1, 2, 3]


def test_rejected_reports_stay_in_the_spool(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    plane.mode = "refusing"
    deliver(reporter)
    spool_reports(reporter, 2)
    eventually(lambda: plane.rejected_requests > 0)
    assert spool.waiting == 2
    plane.mode = "available"
    eventually(lambda: sequences(plane) == [1, 2])


def test_throttled_reporter_waits_for_retry_after_and_keeps_the_report_order(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    plane.mode = "throttling"
    spool_reports(reporter, 3)
    deliver(reporter)
    eventually(lambda: len(plane.reported_at) == 1)
    # A report that is spooled meanwhile must not shorten the wait.
    spool_reports(reporter, 2)
    eventually(lambda: spool.waiting == 0)
    first, second, *_ = plane.reported_at
    assert second - first >= THROTTLED_SECONDS
    assert sequences(plane) == [1, 2, 3, 4, 5]


def test_control_plane_that_lost_reports_receives_further_reports_as_a_new_spool_incarnation(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    spool_reports(reporter, 3)
    deliver(reporter)
    eventually(lambda: spool.waiting == 0)
    plane.forget_reports()
    spool_reports(reporter, 2)
    eventually(lambda: sequences(plane) == [1, 2, 3, 1, 2])
    assert len(plane.incarnations) == 2


def test_spool_restored_from_an_older_disk_image_starts_a_new_spool_incarnation(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter
) -> None:
    plane._accepted[spool._head.incarnation] = 40
    spool_reports(reporter, 2)
    deliver(reporter)
    eventually(lambda: sequences(plane) == [1, 2])
    assert len(plane.incarnations) == 2


def test_incomplete_last_line_of_the_spool_is_discarded(
    spool: Spool, reporter: Reporter, tmp_path: Path
) -> None:
    spool_reports(reporter, 2)
    with (tmp_path / "spool" / "reports.jsonl").open("ab") as lines:
        lines.write(b'{"sequence":3,"observed_at"')
    again = Spool(tmp_path / "spool")
    assert again.waiting == 2
    spool_reports(Reporter(again, NodeClock()))
    assert Spool(tmp_path / "spool").waiting == 3


def test_spool_file_is_compacted_after_its_reports_were_delivered(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter, tmp_path: Path
) -> None:
    deliver(reporter)
    spool_reports(reporter, 1700)
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
    command = ["reporting-child", str(folder), url, CREDENTIAL, str(count)]
    ended = run_copy(command, {**os.environ, "SLICEPLANE_FAILPOINTS": failpoints})
    print(ended.stdout, ended.stderr)
    return ended.returncode


def test_reports_arrive_while_the_spool_file_with_the_last_delivered_sequence_cannot_be_written(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter, tmp_path: Path
) -> None:
    obstacle = tmp_path / "spool" / "head.json.new"
    obstacle.mkdir()
    spool_reports(reporter, 2)
    deliver(reporter)
    eventually(lambda: sequences(plane) == [1, 2])
    spool_reports(reporter)
    eventually(lambda: sequences(plane) == [1, 2, 3])
    obstacle.rmdir()
    spool_reports(reporter)
    eventually(lambda: Spool(tmp_path / "spool").waiting == 0)
    assert sequences(plane) == [1, 2, 3, 4]


def test_damaged_spool_line_loses_only_its_own_report_and_a_copy_of_the_file_is_kept(
    plane: FakeControlPlane, deliver: Deliver, spool: Spool, reporter: Reporter, tmp_path: Path
) -> None:
    spool_reports(reporter, 3)
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
def test_agent_killed_while_it_starts_a_new_spool_incarnation_resends_no_accepted_report(
    plane: FakeControlPlane, enrolled_plane: FakeControlPlane, url: str, tmp_path: Path, visit: int
) -> None:
    assert run_child(tmp_path / "spool", url) == 0
    plane.forget_reports()
    point = f"agent.compact.between@{visit}"
    assert run_child(tmp_path / "spool", url, point, COUNT + 1) == -signal.SIGKILL
    eventually(lambda: run_child(tmp_path / "spool", url, count=1) == 0)
    assert sequences(plane) == [*range(1, COUNT + 1), 1]


@pytest.mark.parametrize("point", POINTS)
def test_reports_arrive_once_and_in_order_when_the_agent_is_killed_at_any_failpoint(
    plane: FakeControlPlane, enrolled_plane: FakeControlPlane, url: str, tmp_path: Path, point: str
) -> None:
    assert run_child(tmp_path / "spool", url, point) == -signal.SIGKILL, "the failpoint was never reached"
    assert run_child(tmp_path / "spool", url) == 0
    assert sequences(plane) == list(range(1, COUNT + 1))
    assert len(plane.incarnations) == 1


def test_no_report_is_lost_when_the_agent_is_killed_during_spool_compaction(
    plane: FakeControlPlane, enrolled_plane: FakeControlPlane, url: str, tmp_path: Path
) -> None:
    assert run_child(tmp_path / "spool", url, "agent.compact.between", 1500) == -signal.SIGKILL
    assert run_child(tmp_path / "spool", url, "", 1500) == 0
    assert sequences(plane) == list(range(1, 1501))


def test_control_plane_that_starts_later_receives_all_spooled_reports(
    enrolled_plane: FakeControlPlane, spool: Spool, reporter: Reporter, timetable: Timetable
) -> None:
    with serving(enrolled_plane) as url:
        port = int(url.rpartition(":")[2])
    client = client_of(url, CREDENTIAL)
    reporter.start(client, timetable)
    spool_reports(reporter, 3)
    with serving(enrolled_plane, port):
        eventually(lambda: spool.waiting == 0)
    assert sequences(enrolled_plane) == [1, 2, 3]
