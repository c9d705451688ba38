"""Parts of the agent: stored orders, clock, backoff, gate that blocks orders, resync, settings, thread failures."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from node_agent.__main__ import halt_on_broken_threads
from node_agent.runtime.backoff import Backoff
from node_agent.runtime.clock import NodeClock
from node_agent.runtime.durable import replace_file
from node_agent.runtime.halt import Halt
from node_agent.runtime.timetable import Timetable
from node_agent.settings import SettingsRefused, read_settings
from node_agent.slots.fence import FenceFiles, Refused, is_newer_order
from node_agent.slots.resync import Resync
from node_agent.transport.broker import RequeueOrder
from node_agent.transport.client import ControlPlane
from node_agent.transport.gate import Gate
from node_agent.transport.reporter import Reporter
from node_agent.transport.spool import Spool
from tasks.orders import Order, Token
from tests.agent.control_plane import FakeControlPlane
from tests.agent.entrance import Entrance
from tests.agent.eventually import eventually
from tests.agent.orders import apply
from tests.agent.program.test_reporter import spool_reports
from tests.agent.task_signing import held, trust


def test_first_order_of_a_slot_without_a_stored_order_counts_as_newer() -> None:
    assert is_newer_order(None, apply())


def test_fence_tokens_are_compared_by_epoch_and_then_by_position() -> None:
    assert is_newer_order(held(apply(900, epoch=1)), apply(1, epoch=2))
    with pytest.raises(Refused, match=r"1\.900 is older than 2\.1"):
        is_newer_order(held(apply(1, epoch=2)), apply(900, epoch=1))


def test_order_with_the_same_fence_token_and_a_different_envelope_is_not_newer() -> None:
    again = apply().model_copy(
        update={"issued_at": datetime(2030, 1, 1, tzinfo=UTC), "trace_context": "00-1"}
    )
    assert not is_newer_order(held(apply()), again)


def test_order_that_the_agent_stores_in_its_fence_files_is_read_back_unchanged(tmp_path: Path) -> None:
    files = FenceFiles(tmp_path, trust().verify_stored)
    written = held(apply())
    files.write(written)
    found = FenceFiles(tmp_path, trust().verify_stored).read(apply().slot_id)
    assert found == written
    assert written.order.token == Token(1, 7)


def test_agent_considers_its_fence_files_complete_only_after_it_has_stored_the_mark_of_completeness(
    tmp_path: Path,
) -> None:
    assert not FenceFiles(tmp_path, trust().verify_stored).complete
    FenceFiles(tmp_path, trust().verify_stored).mark_complete()
    assert FenceFiles(tmp_path, trust().verify_stored).complete


def test_agent_with_a_damaged_fence_file_keeps_the_file_and_considers_its_fence_files_incomplete(
    tmp_path: Path,
) -> None:
    files = FenceFiles(tmp_path, trust().verify_stored)
    files.write(held(apply()))
    files.mark_complete()
    (tmp_path / "slot-0.json").write_bytes(b'{"order":')
    again = FenceFiles(tmp_path, trust().verify_stored)
    assert again.read(apply().slot_id) is None
    assert not again.complete
    assert (tmp_path / "slot-0.json").read_bytes() == b'{"order":'


def test_file_that_the_agent_replaces_atomically_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    replace_file(tmp_path / "secret", b"old")
    replace_file(tmp_path / "secret", b"new")
    assert (tmp_path / "secret").read_bytes() == b"new"
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_synchronized_node_clock_returns_the_control_planes_time_advanced_by_the_monotonic_clock() -> None:
    clock = NodeClock()
    control_plane_time = datetime(2031, 1, 1, tzinfo=UTC)
    now = time.monotonic()
    clock.synchronize(control_plane_time, asked=now - 2, answered=now)
    assert timedelta(seconds=1) <= clock.now() - control_plane_time < timedelta(seconds=30)


def test_node_clock_that_was_never_synchronized_returns_the_hosts_time() -> None:
    assert abs(NodeClock().now() - datetime.now(UTC)) < timedelta(seconds=5)


def test_backoff_pauses_grow_up_to_a_maximum_and_begin_with_the_first_pause_again_after_a_reset() -> None:
    backoff = Backoff(first=1, cap=8)
    pauses = [backoff.next() for _ in range(2000)]
    assert 0.5 <= pauses[0] <= 1 <= pauses[1] <= 2
    assert all(4 <= pause <= 8 for pause in pauses[3:])
    backoff.reset()
    assert backoff.next() <= 1


def synchronized_clock() -> NodeClock:
    clock = NodeClock()
    clock.synchronize(datetime.now(UTC), asked=time.monotonic(), answered=time.monotonic())
    return clock


def test_agent_takes_no_order_until_its_clock_is_synchronized_with_the_control_plane(spool: Spool) -> None:
    clock = NodeClock()
    gate = Gate(spool, clock)
    passed = threading.Thread(target=gate.wait_until_open, daemon=True)
    passed.start()
    passed.join(0.2)
    assert passed.is_alive()
    clock.synchronize(datetime.now(UTC), asked=time.monotonic(), answered=time.monotonic())
    gate.resume_orders()
    eventually(lambda: not passed.is_alive())


def test_agent_takes_no_order_while_its_spool_is_full(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit=2)
    spool_reports(Reporter(spool, NodeClock()), 2)
    gate = Gate(spool, synchronized_clock())
    passed = threading.Thread(target=gate.wait_until_open, daemon=True)
    with capture_logs() as log:
        passed.start()
        eventually(lambda: bool(log))
        assert not gate.room
        assert passed.is_alive()
        spool.forget(1)
        eventually(lambda: not passed.is_alive())
    assert log == [
        {"event": "orders_blocked_by_full_report_spool", "undelivered_reports": 2, "log_level": "error"},
        {
            "event": "orders_resumed_because_report_spool_has_room",
            "undelivered_reports": 1,
            "log_level": "info",
        },
    ]


def test_fetched_order_that_the_agent_has_not_taken_yet_is_requeued_when_the_agent_stops(
    spool: Spool,
) -> None:
    gate = Gate(spool, NodeClock())
    gate.stop_orders("unknown node")
    with ThreadPoolExecutor(1) as pool:
        passed = pool.submit(gate.wait_until_open)
        gate.close()
        assert isinstance(passed.exception(10), RequeueOrder)
    with pytest.raises(RequeueOrder):
        gate.wait_until_open()


def test_fetched_order_that_the_agent_does_not_take_within_the_timeout_is_requeued(
    spool: Spool,
) -> None:
    gate = Gate(spool, NodeClock(), timeout=0.05)
    with pytest.raises(RequeueOrder):
        gate.wait_until_open()


def test_node_fetches_its_desired_state_once_its_clock_is_synchronized(
    client: ControlPlane, plane: FakeControlPlane, tmp_path: Path
) -> None:
    """Before the synchronization, the wrong clock of the host could make every fetched order appear expired."""
    node, clock = Entrance(tmp_path), NodeClock()
    files = FenceFiles(tmp_path / "fence", node.trust.verify_stored)
    files.mark_complete()
    before = node.fences()
    plane.desired = [apply()]
    carried_out: list[Order] = []
    with Timetable() as timetable:
        resync = Resync(
            client,
            node.acceptance,
            files,
            node.trust.verify,
            clock,
            timetable=timetable,
            carry_out=carried_out.append,
        )
        assert not resync.begin(Halt())
        assert node.fences() == before
        clock.synchronize(datetime.now(UTC), asked=time.monotonic(), answered=time.monotonic())
        resync.ask_again()
        eventually(lambda: carried_out == [apply()])
        resync.stop(5)
    assert set(node.fences()) - set(before) == {"slot-0.json"}


def test_node_settings_with_two_slots_of_the_same_index_are_refused(tmp_path: Path) -> None:
    slot = '{"index":0,"vcpus":1,"memory_mib":96}'
    (tmp_path / "agent.json").write_text(
        '{"node_id":"lab-a","api_url":"http://127.0.0.1:1","enrolment_token_file":"/t","state_folder":"/s",'
        f'"run_folder":"/r","images_folder":"/i","slots":[{slot},{slot}]}}'
    )
    with pytest.raises(SettingsRefused, match="two slots have the same index"):
        read_settings(tmp_path / "agent.json")


def test_agent_without_its_configuration_file_reports_the_cause(tmp_path: Path) -> None:
    with pytest.raises(SettingsRefused, match="No such file"):
        read_settings(tmp_path / "nowhere.json")


def raise_error() -> None:
    raise LookupError("a programming error")


def test_thread_that_raises_an_error_stops_the_whole_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    halt = Halt()
    broken = halt_on_broken_threads(halt)
    threading.Thread(target=raise_error).start()
    eventually(broken.is_set)
    assert halt.wait_for_request(5)


def test_thread_that_raises_an_error_during_the_shutdown_of_the_agent_is_not_recorded_as_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    halt = Halt()
    broken = halt_on_broken_threads(halt)
    halt.request()
    thread = threading.Thread(target=raise_error)
    thread.start()
    thread.join()
    assert not broken.is_set()
