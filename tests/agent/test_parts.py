"""The small parts that the road stands on."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from node_agent.__main__ import halt_on_broken_threads
from node_agent.client import ControlPlane
from node_agent.clock import NodeClock
from node_agent.durable import replace_file
from node_agent.fence import FenceFiles, Refused, is_news
from node_agent.gate import Gate
from node_agent.halt import Halt
from node_agent.reporter import Reporter
from node_agent.resync import Resync
from node_agent.settings import SettingsRefused, read_settings
from node_agent.spool import Spool
from tasks.backoff import Backoff
from tasks.broker import GivenBack
from tasks.orders import Order, Token
from tasks.timetable import Timetable
from tests.agent.control_plane import FakeControlPlane
from tests.agent.entrance import Entrance
from tests.agent.eventually import eventually
from tests.agent.orders import apply
from tests.agent.sealing import held, trust
from tests.agent.test_reporter import tell


def test_a_first_order_is_news() -> None:
    assert is_news(None, apply())


def test_a_token_is_ordered_by_epoch_before_position() -> None:
    assert is_news(held(apply(900, epoch=1)), apply(1, epoch=2))
    with pytest.raises(Refused, match=r"1\.900 is older than 2\.1"):
        is_news(held(apply(1, epoch=2)), apply(900, epoch=1))


def test_an_order_sent_again_is_no_news_whatever_its_envelope_says() -> None:
    again = apply().model_copy(
        update={"issued_at": datetime(2030, 1, 1, tzinfo=UTC), "trace_context": "00-1"}
    )
    assert not is_news(held(apply()), again)


def test_what_a_slot_holds_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    files = FenceFiles(tmp_path, trust().recall)
    written = held(apply())
    files.write(written)
    found = FenceFiles(tmp_path, trust().recall).read(apply().slot_id)
    assert found == written
    assert written.order.token == Token(1, 7)


def test_fence_files_are_complete_only_once_marked(tmp_path: Path) -> None:
    assert not FenceFiles(tmp_path, trust().recall).complete
    FenceFiles(tmp_path, trust().recall).mark_complete()
    assert FenceFiles(tmp_path, trust().recall).complete


def test_a_damaged_fence_file_is_kept_and_makes_the_node_ask_first(tmp_path: Path) -> None:
    files = FenceFiles(tmp_path, trust().recall)
    files.write(held(apply()))
    files.mark_complete()
    (tmp_path / "slot-0.json").write_bytes(b'{"order":')
    again = FenceFiles(tmp_path, trust().recall)
    assert again.read(apply().slot_id) is None
    assert not again.complete
    assert (tmp_path / "slot-0.json").read_bytes() == b'{"order":'


def test_a_replaced_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    replace_file(tmp_path / "secret", b"old")
    replace_file(tmp_path / "secret", b"new")
    assert (tmp_path / "secret").read_bytes() == b"new"
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_time_is_the_control_planes_carried_on_by_the_monotonic_clock() -> None:
    clock = NodeClock()
    theirs = datetime(2031, 1, 1, tzinfo=UTC)
    now = time.monotonic()
    clock.learn(theirs, asked=now - 2, answered=now)
    assert timedelta(seconds=1) <= clock.now() - theirs < timedelta(seconds=30)


def test_a_clock_that_was_told_nothing_is_the_hosts() -> None:
    assert abs(NodeClock().now() - datetime.now(UTC)) < timedelta(seconds=5)


def test_pauses_grow_to_their_cap_and_start_again() -> None:
    backoff = Backoff(first=1, cap=8)
    pauses = [backoff.next() for _ in range(2000)]
    assert 0.5 <= pauses[0] <= 1 <= pauses[1] <= 2
    assert all(4 <= pause <= 8 for pause in pauses[3:])
    backoff.reset()
    assert backoff.next() <= 1


def told_clock() -> NodeClock:
    clock = NodeClock()
    clock.learn(datetime.now(UTC), asked=time.monotonic(), answered=time.monotonic())
    return clock


def test_orders_wait_until_the_node_knows_what_time_it_is(spool: Spool) -> None:
    clock = NodeClock()
    gate = Gate(spool, clock)
    passed = threading.Thread(target=gate.pass_through, daemon=True)
    passed.start()
    passed.join(0.2)
    assert passed.is_alive()
    clock.learn(datetime.now(UTC), asked=time.monotonic(), answered=time.monotonic())
    gate.welcome()
    eventually(lambda: not passed.is_alive())


def test_orders_wait_while_the_spool_is_full(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit=2)
    tell(Reporter(spool, NodeClock()), 2)
    gate = Gate(spool, told_clock())
    passed = threading.Thread(target=gate.pass_through, daemon=True)
    with capture_logs() as told:
        passed.start()
        eventually(lambda: bool(told))
        assert not gate.room
        assert passed.is_alive()
        spool.forget(1)
        eventually(lambda: not passed.is_alive())
    assert told == [
        {"event": "orders_wait_for_reports", "waiting": 2, "log_level": "error"},
        {"event": "orders_go_on", "waiting": 1, "log_level": "info"},
    ]


def test_whoever_waits_at_the_gate_gives_the_order_back_at_the_end(spool: Spool) -> None:
    gate = Gate(spool, NodeClock())
    gate.turned_away("unknown node")
    with ThreadPoolExecutor(1) as pool:
        passed = pool.submit(gate.pass_through)
        gate.close()
        assert isinstance(passed.exception(10), GivenBack)
    with pytest.raises(GivenBack):
        gate.pass_through()


def test_who_waits_long_at_the_gate_gives_the_order_back_and_keeps_its_time_for_its_work(
    spool: Spool,
) -> None:
    gate = Gate(spool, NodeClock(), patience=0.05)
    with pytest.raises(GivenBack):
        gate.pass_through()


def test_a_node_asks_what_is_wanted_as_soon_as_it_knows_the_time(
    client: ControlPlane, plane: FakeControlPlane, tmp_path: Path
) -> None:
    """By the clock of its host, all that it is told may have expired."""
    node, clock = Entrance(tmp_path), NodeClock()
    files = FenceFiles(tmp_path / "fence", node.trust.recall)
    files.mark_complete()
    before = node.fences()
    plane.desired = [apply()]
    carried_out: list[Order] = []
    with Timetable() as timetable:
        resync = Resync(
            client,
            node.acceptance,
            files,
            node.trust.believe,
            clock,
            timetable=timetable,
            carry_out=carried_out.append,
        )
        assert not resync.begin(Halt())
        assert node.fences() == before
        clock.learn(datetime.now(UTC), asked=time.monotonic(), answered=time.monotonic())
        resync.ask_again()
        eventually(lambda: carried_out == [apply()])
        resync.stop(5)
    assert set(node.fences()) - set(before) == {"slot-0.json"}


def test_two_slots_of_one_index_are_refused(tmp_path: Path) -> None:
    slot = '{"index":0,"vcpus":1,"memory_mib":96}'
    (tmp_path / "agent.json").write_text(
        '{"node_id":"lab-a","api_url":"http://127.0.0.1:1","enrolment_token_file":"/t","state_folder":"/s",'
        f'"run_folder":"/r","images_folder":"/i","slots":[{slot},{slot}]}}'
    )
    with pytest.raises(SettingsRefused, match="two slots have the same index"):
        read_settings(tmp_path / "agent.json")


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsRefused, match="No such file"):
        read_settings(tmp_path / "nowhere.json")


def breaks() -> None:
    raise LookupError("a mistake of ours")


def test_a_thread_that_breaks_ends_the_agent_and_not_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    halt = Halt()
    broken = halt_on_broken_threads(halt)
    threading.Thread(target=breaks).start()
    eventually(broken.is_set)
    assert halt.rest(5)


def test_a_thread_that_breaks_while_the_agent_ends_does_not_change_how_it_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    halt = Halt()
    broken = halt_on_broken_threads(halt)
    halt.ask()
    thread = threading.Thread(target=breaks)
    thread.start()
    thread.join()
    assert not broken.is_set()
