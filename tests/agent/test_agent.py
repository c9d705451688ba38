"""The whole agent in this process: real queue, real HTTP, and a toy in place of the host."""

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
from node_agent.enrol import EnrolmentRefused
from node_agent.halt import Halt, Halted
from node_agent.pci import PciDevice
from node_agent.sessions import SessionFiles
from node_agent.settings import Settings, SlotSettings
from node_agent.sole import AnotherAgent, sole_agent
from node_agent.wiring import run
from tasks.orders import Order
from tasks.reports import MOST_IMAGES, NodeSurveyed, OrderRefused
from tasks.signing import Signer, new_private_key
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually, eventually_async
from tests.agent.orders import NODE, apply, remove
from tests.agent.queue import drained, enrolled, send
from tests.agent.sealing import SIGNER, sealed
from tests.agent.toy_host import STEPS, Toy
from tests.servers.redis import Depth, queue_depth

MAKING = [steps[0] for steps in STEPS.values()]


class Running:
    """An agent in a thread; `stop` ends it and raises what it raised."""

    def __init__(self, settings: Settings, toy: Toy) -> None:
        self._halt = Halt()
        self._pool = ThreadPoolExecutor(1)
        self.end = self._pool.submit(run, settings, self._halt, lambda *_: toy.host())

    def stop(self) -> None:
        self._halt.ask()
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
    """Enrolled, and taking orders."""
    agent = start()
    await enrolled(plane)
    return agent


async def test_an_order_goes_all_the_way(
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
    assert toy.there == {}
    await drained(control)


async def test_an_agent_prepares_its_node_in_one_look(agent: Running, toy: Toy) -> None:
    await eventually_async(lambda: toy.ahead != [])
    assert toy.ahead[0] == 1


async def test_the_node_describes_itself_once_until_it_changes(
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


async def test_the_node_describes_what_its_slots_have_of_the_host_and_what_they_lack(
    start: Callable[..., Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    gpu = PciDevice(PciAddress("0000:1b:00.0"), 0x10DE, 0x2330, 0x030200, numa_node=1)
    start(slots=(SlotSettings(index=SlotIndex(0), vcpus=1, memory_mib=96, gpus=(gpu.address,), numa_node=1),))

    async def described(times: int) -> tuple[list[tuple[str | None, str | None]], list[str]]:
        await eventually_async(lambda: plane.kinds() == ["node.surveyed"] * times)
        said = plane.reports[-1].body
        assert isinstance(said, NodeSurveyed)
        (slot,) = said.slots
        assert slot.numa_node == 1
        return [(each.number, each.kind) for each in slot.devices], [each.kind for each in said.drift]

    assert await described(1) == ([(None, None)], ["slot.device"])
    toy.pci = (gpu,)
    assert await described(2) == ([("10de:2330", "gpu")], [])
    toy.unreadable.add("pci")
    assert await described(3) == ([("10de:2330", "gpu")], ["host.unreadable"])
    toy.unreadable.clear()
    assert await described(4) == ([("10de:2330", "gpu")], [])


async def test_a_node_that_starts_again_describes_only_what_changed(
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


async def test_a_node_that_enrols_anew_describes_itself_anew(
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


async def test_a_node_that_may_have_been_forgotten_describes_itself_again(
    agent: Running, plane: FakeControlPlane, control: Redis
) -> None:
    await eventually_async(lambda: plane.kinds() == ["node.surveyed"])
    plane.forget_reports()
    await send(control, apply())
    await eventually_async(lambda: plane.kinds().count("node.surveyed") == 2)


async def test_what_was_said_and_cannot_be_read_is_said_again(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, settings: Settings
) -> None:
    await eventually_async(lambda: plane.kinds() == ["node.surveyed"])
    agent.stop()
    (settings.state_folder / "described.json").write_text("{")
    start()
    await eventually_async(lambda: plane.kinds() == ["node.surveyed"] * 2)


async def test_a_node_with_more_images_than_a_report_holds_tells_of_those_that_fit(
    start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    toy.images = tuple(f"image-{number:03}" for number in range(100))
    start()
    await eventually_async(lambda: bool(plane.reports))
    surveyed = plane.reports[0].body
    assert isinstance(surveyed, NodeSurveyed)
    assert surveyed.images == toy.images[:MOST_IMAGES]


async def test_reports_are_stamped_with_the_control_planes_time(
    start: Callable[[], Running], plane: FakeControlPlane, control: Redis
) -> None:
    plane.now = datetime.now(UTC) + timedelta(hours=1)
    start()
    await enrolled(plane)
    await eventually_async(lambda: bool(plane.reports))
    assert abs(plane.reports[0].observed_at - plane.now) < timedelta(seconds=30)


@pytest.mark.parametrize(
    ("payload", "code", "said"),
    [
        (sealed(json.dumps({"slot_id": "lab-a/0"})), "malformed", "is no task"),
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
async def test_what_is_no_order_is_refused_in_words_and_never_half_applied(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy, *, payload: str, code: str, said: str
) -> None:
    await send(control, apply(), payload=payload)
    await eventually_async(lambda: "order.refused" in plane.kinds())
    refused = plane.reports[-1].body
    assert isinstance(refused, OrderRefused)
    assert (refused.reason.code, refused.order_id) == (code, apply().order_id)
    assert said in refused.reason.message
    assert toy.done == []
    await drained(control)


def altered(text: str) -> str:
    """The same text with one byte of what was signed changed."""
    header, payload, signature = text.split(".")
    other = "A" if payload[40] != "A" else "B"
    return ".".join((header, payload[:40] + other + payload[41:], signature))


STRANGER = Signer.of_pem(new_private_key())


@pytest.mark.parametrize(
    ("payload", "actor", "code"),
    [
        ("no signed text at all", None, "forged"),
        (apply().model_dump_json(), None, "forged"),
        (altered(sealed(apply())), None, "forged"),
        (sealed(apply(), signer=STRANGER), None, "unknown_key"),
        (sealed(apply(), until=datetime.now(UTC) - timedelta(seconds=2)), None, "expired"),
        (sealed(apply()), "slice.remove", "forged"),
        (sealed(apply()), "slice.reboot", "forged"),
        (sealed("[]"), None, "malformed"),
    ],
    ids=["text", "unsigned", "altered", "stranger", "expired", "other-actor", "no-actor", "list"],
)
async def test_a_copy_that_is_not_to_be_believed_is_refused_told_and_has_no_effect(
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
    await drained(control)
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())


async def test_a_good_copy_under_another_id_ends_nothing(
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


async def test_a_key_that_is_new_is_asked_for_and_believed(
    agent: Running, plane: FakeControlPlane, control: Redis
) -> None:
    await eventually_async(lambda: len(plane.heartbeats) > 11)
    plane.order_keys = (SIGNER.public, STRANGER.public)
    await send(control, apply(), payload=sealed(apply(), signer=STRANGER))
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    assert len(plane.renewals) == 1


async def test_orders_signed_by_the_old_key_and_by_the_new_are_believed_while_keys_change(
    start: Callable[[], Running], plane: FakeControlPlane, control: Redis
) -> None:
    plane.order_keys = (STRANGER.public, SIGNER.public)
    start()
    await enrolled(plane)
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    await send(control, remove(), payload=sealed(remove(), signer=STRANGER))
    await eventually_async(lambda: "slice.removed" in plane.kinds())


async def test_what_stands_on_the_disk_is_believed_after_its_key_was_retired(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    agent.stop()
    plane.order_keys = (STRANGER.public,)
    toy.there.clear()
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


def has_told(plane: FakeControlPlane, kind: str, order: Order) -> bool:
    """Once or more: an order that comes again, its settling lost with the connection, is told of again."""
    return any(told.body.kind == kind and told.order_id == order.order_id for told in plane.reports)


async def test_a_session_is_renewed_again_and_again_and_no_order_is_lost_or_done_twice(
    start: Callable[..., Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    start(renewal_seconds=0.4)
    await enrolled(plane)
    for number in range(1, 16):
        for order, end in ((apply(2 * number), "slice.ready"), (remove(2 * number + 1), "slice.removed")):
            await send(control, order)
            await eventually_async(partial(has_told, plane, end, order))
    await eventually_async(lambda: len(plane.renewals) > 5)
    assert toy.counts()["machine.start"] == 15
    assert "order.refused" not in plane.kinds()


async def test_a_new_node_takes_no_order_before_it_knows_what_is_wanted(
    start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    plane.desired = [remove(9)]
    await send(control, apply(7))
    start()
    await enrolled(plane)
    await eventually_async(lambda: "order.refused" in plane.kinds())
    assert toy.done == []


async def test_slices_are_kept_and_restored_while_the_control_plane_is_away(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    agent.stop()
    assert toy.kinds() == set(STEPS), "an agent that ends leaves its slices"
    plane.mood = "away"
    toy.there.clear()
    start()
    await eventually_async(lambda: toy.kinds() == set(STEPS))
    plane.mood = "well"
    await eventually_async(lambda: plane.kinds().count("slice.ready") == 2)
    assert plane.kinds()[-3:] == ["slice.interrupted", "slice.starting", "slice.ready"]


async def test_a_node_that_went_on_from_its_disk_asks_once_the_control_plane_is_heard(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    agent.stop()
    plane.mood = "away"
    plane.desired = [remove(9)]
    toy.there.clear()
    start()
    await eventually_async(lambda: toy.kinds() == set(STEPS))
    plane.mood = "well"
    await eventually_async(lambda: "slice.removed" in plane.kinds(), 20)


async def test_an_agent_whose_disk_is_full_goes_on_and_renews_its_session_when_it_can(
    start: Callable[..., Running], plane: FakeControlPlane, control: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = start(renewal_seconds=0.2)
    await enrolled(plane)
    await eventually_async(lambda: bool(plane.renewals))
    with monkeypatch.context() as full:
        refused = fill_disk(full)
        await eventually_async(lambda: len(refused) > 1, 20)
        assert not agent.end.done()
        asked = len(plane.renewals)
    await eventually_async(lambda: len(plane.renewals) > asked + 1, 20)
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())


async def test_an_agent_starts_on_a_full_disk(
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
    """Until the patch is undone nothing of a session can be written; the tries."""
    tried: list[Path] = []

    def refuse(path: Path, _content: bytes) -> None:
        tried.append(path)
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    patch.setattr("node_agent.sessions.replace_file", refuse)
    return tried


async def test_a_restarted_agent_does_not_touch_what_runs(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    agent.stop()
    beats = len(plane.heartbeats)
    start()
    await eventually_async(lambda: len(plane.heartbeats) > beats + 3)
    assert toy.done == MAKING
    assert plane.kinds().count("slice.ready") == 1


async def test_a_node_that_is_turned_away_takes_no_orders_and_keeps_its_slices(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    await drained(control)
    plane.mood = "refusing"
    refused = agent_gate_closed(plane)
    await eventually_async(refused)
    await send(control, remove())

    async def held() -> bool:
        return await queue_depth(control, NODE) == Depth(0, 1)

    await eventually_async(held)
    assert toy.kinds() == set(STEPS)
    plane.mood = "well"
    await eventually_async(lambda: "slice.removed" in plane.kinds())


def agent_gate_closed(plane: FakeControlPlane) -> Callable[[], bool]:
    before = plane.turned_away
    return lambda: plane.turned_away > before + 1


async def test_a_survey_that_hangs_holds_up_neither_heartbeats_nor_orders_nor_reports(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await eventually_async(lambda: any(beat.resynced for beat in plane.heartbeats))
    toy.hangs_until = threading.Event()
    await eventually_async(toy.hangs.is_set)
    beats = len(plane.heartbeats)
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    await eventually_async(lambda: len(plane.heartbeats) > beats + 3)
    toy.hangs_until.set()


async def test_two_agents_never_share_a_state_folder(
    agent: Running, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node_agent.sole._PATIENCE_SECONDS", 0.1)
    with pytest.raises(AnotherAgent), sole_agent(settings.state_folder):
        pass


async def test_a_refused_token_ends_the_agent_with_the_reason(
    start: Callable[[], Running], settings: Settings, plane: FakeControlPlane
) -> None:
    settings.enrolment_token_file.write_text("some-other-token-than-that")
    agent = start()
    await eventually_async(agent.end.done)
    with pytest.raises(EnrolmentRefused, match="the token is not valid"):
        agent.end.result()


@pytest.mark.parametrize("content", ["", "\n", "too-short", "x" * 257])
async def test_a_file_without_a_token_is_as_good_as_none(
    start: Callable[[], Running], settings: Settings, content: str
) -> None:
    settings.enrolment_token_file.write_text(content)
    agent = start()
    await eventually_async(agent.end.done)
    with pytest.raises(EnrolmentRefused, match="no enrolment token"):
        agent.end.result()


async def test_a_refused_agent_whose_token_file_was_emptied_keeps_its_slices(
    start: Callable[..., Running], settings: Settings, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    agent = start(renewal_seconds=0.2)
    await enrolled(plane)
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    settings.enrolment_token_file.write_text("")
    plane.number += 2
    asked = len(plane.renewals)
    await eventually_async(lambda: len(plane.renewals) > asked + 2)
    assert not agent.end.done()
    assert toy.there


async def test_secrets_stay_on_the_node(agent: Running, settings: Settings, plane: FakeControlPlane) -> None:
    state = settings.state_folder
    assert state.stat().st_mode & 0o777 == 0o700
    eventually((state / "session.json").exists)
    assert (state / "session.json").stat().st_mode & 0o777 == 0o600
    eventually(lambda: not (state / "next-session.json").exists())
    kept = SessionFiles(state).kept()
    assert kept is not None
    credential = hashlib.sha256(kept.secrets.credential.encode()).hexdigest()
    assert plane.enrolments[0].credential_sha256 == credential


async def test_an_agent_whose_session_somebody_went_on_from_does_not_start_from_its_disk(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    agent.stop()
    plane.number += 2
    toy.there.clear()
    again = start()
    await eventually_async(again.end.done)
    with pytest.raises(EnrolmentRefused, match="not valid"):
        again.end.result()
    assert toy.there == {}, "what it remembers may be somewhere else by now"


async def test_a_refused_agent_takes_the_new_token_that_it_is_given(
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


async def test_an_idle_agent_stops_at_once(agent: Running, plane: FakeControlPlane) -> None:
    await eventually_async(lambda: len(plane.heartbeats) > 2)
    began = datetime.now(UTC)
    agent.stop()
    assert datetime.now(UTC) - began < timedelta(seconds=5)
