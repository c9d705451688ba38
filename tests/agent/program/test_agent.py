"""The whole agent in the test process, with a real queue, real HTTP and a toy host."""

import errno
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from events.values import PciAddress, SlotIndex
from node_agent.host.pci import PciDevice
from node_agent.runtime.halt import Halt, Halted
from node_agent.runtime.single_agent import StateFolderInUse, single_agent_lock
from node_agent.settings import Settings, SlotSettings
from node_agent.slots import inspection
from node_agent.transport.enrol import EnrolmentRefused
from node_agent.transport.sessions import SessionFiles
from node_agent.wiring import run
from tasks.orders import Order
from tasks.reports import MOST_IMAGES, NodeSurveyed, OrderRefused
from tasks.signing import Signer, new_private_key
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually, eventually_async
from tests.agent.orders import NODE, apply, remove
from tests.agent.queue import await_empty_queue, await_enrolment, send
from tests.agent.task_signing import SIGNER, sealed
from tests.agent.toy_host import STEPS, Toy
from tests.servers.redis import Depth, queue_depth

CREATION_STEPS = [steps[0] for steps in STEPS.values()]


class Running:
    """Agent that runs in a thread; `stop` ends the agent and raises an unexpected exception of its thread."""

    def __init__(self, settings: Settings, toy: Toy) -> None:
        self._halt = Halt()
        self._pool = ThreadPoolExecutor(1)
        self.end = self._pool.submit(run, settings, self._halt, lambda *_: toy.host())

    def stop(self) -> None:
        self._halt.request()
        wait([self.end], 10)
        self._pool.shutdown(wait=False)
        if not isinstance(self.end.exception(0), Halted | EnrolmentRefused):
            self.end.result()


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def start(settings: Settings, toy: Toy) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(**changes: object) -> Running:
        started.append(Running(settings.model_copy(update=changes), toy))
        return started[-1]

    yield start
    for agent in started:
        agent.stop()


@pytest.fixture
async def agent(start: Callable[[], Running], plane: FakeControlPlane, control: Redis) -> Running:
    """Running agent that is enrolled and takes orders from its queue."""
    agent = start()
    await await_enrolment(plane)
    return agent


async def test_order_from_the_queue_is_executed_and_reported_to_the_control_plane(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    await send(control, remove())
    await eventually_async(lambda: "slice.removed" in plane.kinds())
    assert [kind for kind in plane.kinds() if kind != "node.surveyed"] == [
        "slice.starting",
        "slice.address",
        "slice.ready",
        "slice.removed",
    ]
    assert toy.objects == {}
    await await_empty_queue(control)


async def test_agent_prepares_its_host_with_a_single_read_of_the_host_state(agent: Running, toy: Toy) -> None:
    await eventually_async(lambda: toy.reads_per_snapshot != [])
    assert toy.reads_per_snapshot[0] == 1


async def test_node_sends_its_survey_report_once_until_the_content_changes(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await eventually_async(lambda: len(plane.heartbeats) >= 3)
    assert plane.kinds() == ["node.surveyed"]
    toy.missing = ("program nft",)
    await eventually_async(lambda: len(plane.kinds()) == 2)
    surveyed = plane.reports[-1].body
    assert isinstance(surveyed, NodeSurveyed)
    assert surveyed.missing == ("program nft",)
    assert [slot.network_device for slot in surveyed.slots] == ["slice0", "slice1"]


async def test_survey_report_lists_the_network_modes_that_the_host_does_not_support(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await eventually_async(lambda: plane.kinds() == ["node.surveyed"])
    toy.unsupported_modes = {"private-nat": "cannot add a rule with masquerade"}
    await eventually_async(lambda: plane.kinds() == ["node.surveyed"] * 2)
    surveyed = plane.reports[-1].body
    assert isinstance(surveyed, NodeSurveyed)
    [found] = surveyed.unsupported_modes
    assert (found.mode, found.reason) == ("private-nat", "cannot add a rule with masquerade")


async def test_survey_report_lists_the_devices_of_each_slot_and_the_missing_ones_as_drift(
    start: Callable[..., Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    gpu = PciDevice(PciAddress("0000:1b:00.0"), 0x10DE, 0x2330, 0x030200, numa_node=1)
    start(slots=(SlotSettings(index=SlotIndex(0), vcpus=1, memory_mib=96, gpus=(gpu.address,), numa_node=1),))

    async def described(times: int) -> tuple[list[tuple[str | None, str | None]], list[str]]:
        await eventually_async(lambda: plane.kinds() == ["node.surveyed"] * times)
        report = plane.reports[-1].body
        assert isinstance(report, NodeSurveyed)
        (slot,) = report.slots
        assert slot.numa_node == 1
        return [(each.number, each.kind) for each in slot.devices], [each.kind for each in report.drift]

    assert await described(1) == ([(None, None)], ["slot.device"])
    toy.pci = (gpu,)
    assert await described(2) == ([("10de:2330", "gpu")], [])
    toy.unreadable.add("pci")
    assert await described(3) == ([("10de:2330", "gpu")], ["host.unreadable"])
    toy.unreadable.clear()
    assert await described(4) == ([("10de:2330", "gpu")], [])


async def test_restarted_node_sends_a_survey_report_only_if_the_content_changed(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await eventually_async(lambda: plane.kinds() == ["node.surveyed"])
    agent.stop()
    beats = len(plane.heartbeats)
    again = start()
    await eventually_async(lambda: any(beat.resynced for beat in plane.heartbeats[beats:]))
    again.stop()
    assert plane.kinds() == ["node.surveyed"]
    toy.missing = ("program nft",)
    start()
    await eventually_async(lambda: plane.kinds() == ["node.surveyed"] * 2)


async def test_open_drift_keeps_its_start_time_if_the_agent_ends_before_it_marks_its_survey_report_as_sent(
    start: Callable[..., Running], plane: FakeControlPlane, control: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = SlotSettings(index=SlotIndex(0), vcpus=1, memory_mib=96, gpus=(PciAddress("0000:1b:00.0"),))

    def end(point: str) -> None:
        if point == "agent.described.before":
            raise Halted

    with monkeypatch.context() as patched:
        patched.setattr(inspection, "failpoint", end)
        ended = start(slots=(missing,))
        await eventually_async(ended.end.done)
    start(slots=(missing,))
    await eventually_async(lambda: plane.kinds() == ["node.surveyed"] * 2)
    first, second = (report.body for report in plane.reports)
    assert isinstance(first, NodeSurveyed)
    assert isinstance(second, NodeSurveyed)
    assert [each.kind for each in first.drift] == ["slot.device"]
    assert second.drift == first.drift


async def test_node_that_enrols_again_sends_its_survey_report_again(
    agent: Running,
    start: Callable[[], Running],
    plane: FakeControlPlane,
    control: Redis,
    settings: Settings,
) -> None:
    await eventually_async(lambda: plane.kinds() == ["node.surveyed"])
    agent.stop()
    plane.token = "another-token-for-one-use-only"
    settings.enrolment_token_file.write_text(plane.token)
    plane.session = None
    start()
    await eventually_async(lambda: plane.kinds() == ["node.surveyed"] * 2)


async def test_node_sends_its_survey_report_again_when_the_control_plane_lost_its_reports(
    agent: Running, plane: FakeControlPlane, control: Redis
) -> None:
    await eventually_async(lambda: plane.kinds() == ["node.surveyed"])
    plane.forget_reports()
    await send(control, apply())
    await eventually_async(lambda: plane.kinds().count("node.surveyed") == 2)


async def test_restarted_agent_sends_its_survey_report_again_if_its_stored_copy_of_the_report_is_unreadable(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, settings: Settings
) -> None:
    await eventually_async(lambda: plane.kinds() == ["node.surveyed"])
    agent.stop()
    (settings.state_folder / "described.json").write_text("{")
    start()
    await eventually_async(lambda: plane.kinds() == ["node.surveyed"] * 2)


async def test_node_with_more_guest_images_than_fit_into_a_report_reports_as_many_as_fit(
    start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    toy.images = tuple(f"image-{number:03}" for number in range(100))
    start()
    await eventually_async(lambda: bool(plane.reports))
    surveyed = plane.reports[0].body
    assert isinstance(surveyed, NodeSurveyed)
    assert surveyed.images == toy.images[:MOST_IMAGES]


async def test_time_of_an_agents_report_is_the_time_of_the_control_plane_and_not_of_the_host(
    start: Callable[[], Running], plane: FakeControlPlane, control: Redis
) -> None:
    plane.now = datetime.now(UTC) + timedelta(hours=1)
    start()
    await await_enrolment(plane)
    await eventually_async(lambda: bool(plane.reports))
    assert abs(plane.reports[0].observed_at - plane.now) < timedelta(seconds=30)


@pytest.mark.parametrize(
    ("payload", "code", "message"),
    [
        (sealed(json.dumps({"slot_id": "lab-a/0"})), "malformed", "is not a valid task"),
        (
            sealed(apply().model_dump_json().replace('"vcpus":1', '"vcpus":0')),
            "malformed",
            "than or equal to 1",
        ),
        (
            sealed(apply().model_dump_json().replace('"vcpus"', '"run":"rm -rf /","vcpus"')),
            "malformed",
            "not permitted",
        ),
    ],
)
async def test_payload_that_is_not_an_order_is_refused_with_a_reason_and_has_no_effect(
    agent: Running,
    plane: FakeControlPlane,
    control: Redis,
    toy: Toy,
    *,
    payload: str,
    code: str,
    message: str,
) -> None:
    await send(control, apply(), payload=payload)
    await eventually_async(lambda: "order.refused" in plane.kinds())
    refused = plane.reports[-1].body
    assert isinstance(refused, OrderRefused)
    assert (refused.reason.code, refused.order_id) == (code, apply().order_id)
    assert message in refused.reason.message
    assert toy.done == []
    await await_empty_queue(control)


def altered(text: str) -> str:
    """Return the signed text of a task with one character of its payload changed."""
    header, payload, signature = text.split(".")
    other = "A" if payload[40] != "A" else "B"
    return ".".join((header, payload[:40] + other + payload[41:], signature))


FOREIGN_SIGNER = Signer.of_pem(new_private_key())


@pytest.mark.parametrize(
    ("payload", "actor", "code"),
    [
        ("not a signed text", None, "forged"),
        (apply().model_dump_json(), None, "forged"),
        (altered(sealed(apply())), None, "forged"),
        (sealed(apply(), signer=FOREIGN_SIGNER), None, "unknown_key"),
        (sealed(apply(), until=datetime.now(UTC) - timedelta(seconds=2)), None, "expired"),
        (sealed(apply()), "slice.remove", "forged"),
        (sealed(apply()), "slice.reboot", "forged"),
        (sealed("[]"), None, "malformed"),
    ],
    ids=["text", "unsigned", "altered", "foreign-key", "expired", "other-actor", "unknown-actor", "list"],
)
async def test_message_that_fails_verification_is_refused_and_reported_and_has_no_effect(
    agent: Running,
    plane: FakeControlPlane,
    control: Redis,
    toy: Toy,
    *,
    payload: str,
    actor: str | None,
    code: str,
) -> None:
    await send(control, apply(), payload=payload, actor=actor)
    await eventually_async(lambda: "order.refused" in plane.kinds())
    refused = plane.reports[-1].body
    assert isinstance(refused, OrderRefused)
    assert (refused.reason.code, refused.order_id, refused.slot_id) == (code, apply().order_id, None)
    assert toy.done == []
    await await_empty_queue(control)
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())


async def test_signed_order_in_a_queue_message_with_the_id_of_another_order_is_refused_as_forged(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    other = apply().model_copy(update={"order_id": uuid4()})
    unreadable = apply().model_dump_json().replace('"vcpus":1', '"vcpus":0')
    await send(control, other, payload=sealed(unreadable))
    await eventually_async(lambda: "order.refused" in plane.kinds())
    refused = plane.reports[-1].body
    assert isinstance(refused, OrderRefused)
    assert (refused.reason.code, refused.order_id, refused.slot_id) == ("forged", other.order_id, None)
    assert toy.done == []


async def test_agent_that_receives_an_order_signed_with_an_unknown_key_fetches_the_key_and_executes_the_order(
    agent: Running, plane: FakeControlPlane, control: Redis
) -> None:
    await eventually_async(lambda: len(plane.heartbeats) > 11)
    plane.order_keys = (SIGNER.public, FOREIGN_SIGNER.public)
    await send(control, apply(), payload=sealed(apply(), signer=FOREIGN_SIGNER))
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    assert len(plane.renewals) == 1


async def test_orders_signed_with_the_old_or_the_new_key_are_accepted_during_key_rotation(
    start: Callable[[], Running], plane: FakeControlPlane, control: Redis
) -> None:
    plane.order_keys = (FOREIGN_SIGNER.public, SIGNER.public)
    start()
    await await_enrolment(plane)
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    await send(control, remove(), payload=sealed(remove(), signer=FOREIGN_SIGNER))
    await eventually_async(lambda: "slice.removed" in plane.kinds())


async def test_stored_order_is_still_trusted_after_its_signing_key_was_retired(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    agent.stop()
    plane.order_keys = (FOREIGN_SIGNER.public,)
    toy.objects.clear()
    again = start()
    await eventually_async(lambda: plane.kinds().count("slice.ready") == 2)
    again.stop()
    start()
    await eventually_async(lambda: len(plane.renewals) == 2)
    await send(control, remove())
    await eventually_async(lambda: "order.refused" in plane.kinds())
    refused = plane.reports[-1].body
    assert isinstance(refused, OrderRefused)
    assert refused.reason.code == "unknown_key"
    assert toy.kinds() == set(STEPS)


def has_reported(plane: FakeControlPlane, kind: str, order: Order) -> bool:
    """Return whether a report of this kind about the order arrived."""
    return any(report.body.kind == kind and report.order_id == order.order_id for report in plane.reports)


async def test_frequent_session_renewals_neither_lose_nor_repeat_an_order(
    start: Callable[..., Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    start(renewal_seconds=0.4)
    await await_enrolment(plane)
    for number in range(1, 16):
        for order, end in ((apply(2 * number), "slice.ready"), (remove(2 * number + 1), "slice.removed")):
            await send(control, order)
            await eventually_async(partial(has_reported, plane, end, order))
    await eventually_async(lambda: len(plane.renewals) > 5)
    assert toy.counts()["machine.start"] == 15
    assert "order.refused" not in plane.kinds()


async def test_new_node_takes_no_order_before_it_has_fetched_its_desired_state(
    start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    plane.desired = [remove(9)]
    await send(control, apply(7))
    start()
    await await_enrolment(plane)
    await eventually_async(lambda: "order.refused" in plane.kinds())
    assert toy.done == []


async def test_slices_are_kept_and_restored_while_the_control_plane_is_unavailable(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    agent.stop()
    assert toy.kinds() == set(STEPS), "an agent that shuts down must leave its slices"
    plane.mode = "unavailable"
    toy.objects.clear()
    start()
    await eventually_async(lambda: toy.kinds() == set(STEPS))
    plane.mode = "available"
    await eventually_async(lambda: plane.kinds().count("slice.ready") == 2)
    assert plane.kinds()[-3:] == ["slice.interrupted", "slice.starting", "slice.ready"]


async def test_node_started_without_the_control_plane_fetches_its_desired_state_once_the_control_plane_answers(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    agent.stop()
    plane.mode = "unavailable"
    plane.desired = [remove(9)]
    toy.objects.clear()
    start()
    await eventually_async(lambda: toy.kinds() == set(STEPS))
    plane.mode = "available"
    await eventually_async(lambda: "slice.removed" in plane.kinds(), 20)


async def test_agent_with_a_full_disk_keeps_running_and_renews_its_session_once_space_is_free(
    start: Callable[..., Running], plane: FakeControlPlane, control: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = start(renewal_seconds=0.2)
    await await_enrolment(plane)
    await eventually_async(lambda: bool(plane.renewals))
    with monkeypatch.context() as full:
        refused = fill_disk(full)
        await eventually_async(lambda: len(refused) > 1, 20)
        assert not agent.end.done()
        asked = len(plane.renewals)
    await eventually_async(lambda: len(plane.renewals) > asked + 1, 20)
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())


async def test_agent_starts_and_takes_orders_on_a_full_disk(
    agent: Running,
    start: Callable[[], Running],
    plane: FakeControlPlane,
    control: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await eventually_async(lambda: bool(plane.heartbeats))
    agent.stop()
    beats = len(plane.heartbeats)
    refused = fill_disk(monkeypatch)
    start()
    await eventually_async(lambda: bool(refused) and len(plane.heartbeats) > beats)
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())


def fill_disk(patch: pytest.MonkeyPatch) -> list[Path]:
    """Make every write of a session file fail until `patch` is undone; return the list of attempted paths."""
    attempts: list[Path] = []

    def refuse(path: Path, _content: bytes) -> None:
        attempts.append(path)
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    patch.setattr("node_agent.transport.sessions.replace_file", refuse)
    return attempts


async def test_restarted_agent_changes_nothing_of_a_running_slice_and_does_not_report_it_ready_again(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    agent.stop()
    beats = len(plane.heartbeats)
    start()
    await eventually_async(lambda: len(plane.heartbeats) > beats + 3)
    assert toy.done == CREATION_STEPS
    assert plane.kinds().count("slice.ready") == 1


async def test_node_rejected_by_the_control_plane_takes_no_orders_and_keeps_its_slices(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    await await_empty_queue(control)
    plane.mode = "refusing"
    refused = two_further_rejections(plane)
    await eventually_async(refused)
    await send(control, remove())

    async def is_held_back() -> bool:
        return await queue_depth(control, NODE) == Depth(0, 1)

    await eventually_async(is_held_back)
    assert toy.kinds() == set(STEPS)
    plane.mode = "available"
    await eventually_async(lambda: "slice.removed" in plane.kinds())


def two_further_rejections(plane: FakeControlPlane) -> Callable[[], bool]:
    before = plane.rejected_requests
    return lambda: plane.rejected_requests > before + 1


async def test_survey_that_hangs_delays_neither_heartbeats_nor_orders_nor_reports(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await eventually_async(lambda: any(beat.resynced for beat in plane.heartbeats))
    toy.survey_blocks_until = threading.Event()
    await eventually_async(toy.hangs.is_set)
    beats = len(plane.heartbeats)
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    await eventually_async(lambda: len(plane.heartbeats) > beats + 3)
    toy.survey_blocks_until.set()


async def test_second_agent_with_the_same_state_folder_is_refused(
    agent: Running, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node_agent.runtime.single_agent._LOCK_TIMEOUT_SECONDS", 0.1)
    with pytest.raises(StateFolderInUse), single_agent_lock(settings.state_folder):
        pass


async def test_agent_with_a_refused_enrolment_token_ends_with_the_reason(
    start: Callable[[], Running], settings: Settings, plane: FakeControlPlane
) -> None:
    settings.enrolment_token_file.write_text("a-different-enrolment-token")
    agent = start()
    await eventually_async(agent.end.done)
    with pytest.raises(EnrolmentRefused, match="the token is not valid"):
        agent.end.result()


@pytest.mark.parametrize("content", ["", "\n", "too-short", "x" * 257])
async def test_enrolment_token_file_without_a_valid_token_ends_the_agent(
    start: Callable[[], Running], settings: Settings, content: str
) -> None:
    settings.enrolment_token_file.write_text(content)
    agent = start()
    await eventually_async(agent.end.done)
    with pytest.raises(EnrolmentRefused, match="no enrolment token"):
        agent.end.result()


async def test_running_agent_with_a_refused_session_and_an_empty_token_file_keeps_its_slices(
    start: Callable[..., Running], settings: Settings, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    agent = start(renewal_seconds=0.2)
    await await_enrolment(plane)
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    settings.enrolment_token_file.write_text("")
    plane.number += 2
    asked = len(plane.renewals)
    await eventually_async(lambda: len(plane.renewals) > asked + 2)
    assert not agent.end.done()
    assert toy.objects


async def test_session_secrets_are_readable_by_their_owner_only_and_sent_as_digests(
    agent: Running, settings: Settings, plane: FakeControlPlane
) -> None:
    state = settings.state_folder
    assert state.stat().st_mode & 0o777 == 0o700
    eventually((state / "session.json").exists)
    assert (state / "session.json").stat().st_mode & 0o777 == 0o600
    eventually(lambda: not (state / "next-session.json").exists())
    kept = SessionFiles(state).kept()
    assert kept is not None
    credential = hashlib.sha256(kept.secrets.credential.encode()).hexdigest()
    assert plane.enrolments[0].credential_sha256 == credential


async def test_agent_with_a_session_that_another_host_renewed_does_not_restore_the_slices_of_its_stored_orders(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    agent.stop()
    plane.number += 2
    toy.objects.clear()
    again = start()
    await eventually_async(again.end.done)
    with pytest.raises(EnrolmentRefused, match="not valid"):
        again.end.result()
    assert toy.objects == {}, "the slices of its disk may already run on another host"


async def test_agent_with_a_refused_session_enrols_with_a_new_token(
    agent: Running, start: Callable[[], Running], settings: Settings, plane: FakeControlPlane, control: Redis
) -> None:
    await eventually_async(lambda: bool(plane.heartbeats))
    agent.stop()
    plane.number += 2
    plane.token = "another-token-for-one-use"
    settings.enrolment_token_file.write_text(plane.token)
    start()
    await eventually_async(lambda: len(plane.enrolments) == 2)
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())


async def test_idle_agent_stops_within_five_seconds(agent: Running, plane: FakeControlPlane) -> None:
    await eventually_async(lambda: len(plane.heartbeats) > 2)
    began = datetime.now(UTC)
    agent.stop()
    assert datetime.now(UTC) - began < timedelta(seconds=5)
