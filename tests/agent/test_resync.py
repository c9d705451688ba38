"""A node that restarts or was cut off compares digests, and touches only what differs (NOD-10, P26)."""

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from node_agent.contact import Contact
from node_agent.fence import Held, digest_of
from node_agent.host import Host
from node_agent.looks import look
from node_agent.settings import Settings
from node_agent.slices import Slice, Step
from node_agent.trust import proved_by
from tasks.operations import DriftReport
from tasks.orders import Order
from tests.agent.control_plane import FakeControlPlane, Mood, text_digest
from tests.agent.eventually import eventually, eventually_async
from tests.agent.operations import on_slot
from tests.agent.orders import apply, remove
from tests.agent.queue import enrolled, send
from tests.agent.sealing import held, sealed
from tests.agent.test_accept import Node
from tests.agent.test_agent import Running
from tests.agent.toy_host import STEPS, TAKING, Toy, ToyAspect

SLICE = set(STEPS)
NEVER = 3600.0


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def start(settings: Settings, toy: Toy) -> Iterator[Callable[[], Running]]:
    """An agent whose surveys never come: what is not noticed by comparing is not noticed."""
    started: list[Running] = []

    def start() -> Running:
        started.append(Running(settings.model_copy(update={"survey_seconds": NEVER}), toy))
        return started[-1]

    yield start
    for agent in started:
        agent.stop()


@pytest.fixture
def agent(start: Callable[[], Running], plane: FakeControlPlane, settings: Settings) -> Running:
    """With a slice on each of its two slots."""
    plane.desired = [apply(7), apply(8, index=1)]
    agent = start()
    plane.await_kind("slice.ready", 2)
    # What was said is noted a moment later, and one that ends before that says it again.
    eventually(lambda: '"told":false' not in "".join(fences(settings)))
    return agent


def fences(settings: Settings) -> list[str]:
    return [path.read_text() for path in (settings.state_folder / "fence").glob("slot-*.json")]


def files(settings: Settings) -> dict[str, int]:
    """Each is a new one when it was written anew."""
    return {path.name: path.stat().st_ino for path in (settings.state_folder / "fence").iterdir()}


def settled(plane: FakeControlPlane) -> Callable[[], bool]:
    """Whether an agent that starts now has compared, and said so."""
    beats = len(plane.heartbeats)
    return lambda: any(beat.resynced for beat in plane.heartbeats[beats:])


def test_an_agent_that_restarts_says_what_it_holds_and_touches_nothing(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, settings: Settings, toy: Toy
) -> None:
    agent.stop()
    before, done, told = files(settings), list(toy.done), plane.kinds()
    is_settled = settled(plane)
    start()
    eventually(is_settled)
    assert [each.sha256 for each in plane.asked[-1].held] == [text_digest(each) for each in plane.desired]
    assert [(each.index, each.epoch, each.position) for each in plane.asked[-1].held] == [
        (0, 1, 7),
        (1, 1, 8),
    ]
    assert files(settings) == before, "no fence was written"
    assert toy.done == done
    assert plane.kinds() == told


def test_only_the_slot_that_differs_is_touched(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, settings: Settings, toy: Toy
) -> None:
    agent.stop()
    before, done = files(settings), list(toy.done)
    plane.desired[1] = remove(9, index=1)
    start()
    plane.await_kind("slice.removed")
    assert toy.done[len(done) :] == [*TAKING]
    assert (toy.kinds(0), toy.kinds(1)) == (SLICE, set())
    assert files(settings)["slot-0.json"] == before["slot-0.json"]
    assert plane.kinds().count("slice.ready") == 2, "the other slice is not told of"


def test_what_the_control_plane_does_not_know_is_kept_and_said(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, toy: Toy
) -> None:
    agent.stop()
    done = list(toy.done)
    plane.desired = [apply(3), apply(8, index=1)]
    is_settled = settled(plane)
    with capture_logs() as told:
        start()
        eventually(is_settled)
    assert [(line["slots"], line["count"]) for line in told if line["event"] == "held_is_unknown"] == [
        ((0,), 1)
    ]
    assert toy.done == done
    assert "order.refused" not in plane.kinds()


@pytest.mark.parametrize("mood", ["away", "refusing"])
def test_an_agent_that_was_cut_off_compares_when_it_is_back(
    agent: Running, plane: FakeControlPlane, toy: Toy, mood: Mood
) -> None:
    cut(plane, mood)
    plane.desired[1] = remove(9, index=1)
    plane.mood = "well"
    plane.await_kind("slice.removed")
    assert (toy.kinds(0), toy.kinds(1)) == (SLICE, set())


def test_an_order_found_by_comparing_halts_the_work_for_an_older_one(
    agent: Running, plane: FakeControlPlane, settings: Settings, toy: Toy
) -> None:
    let_go = toy.slow["machine.destroy"] = threading.Event()
    toy.begun.clear()
    replace_by(plane, remove(9))
    eventually(toy.begun.is_set)
    before = files(settings)
    replace_by(plane, apply(11))
    eventually(lambda: files(settings)["slot-0.json"] != before["slot-0.json"])
    beats = len(plane.heartbeats)
    eventually(lambda: len(plane.heartbeats) > beats + 2)
    let_go.set()
    plane.await_kind("slice.ready", 3)
    assert toy.kinds(0) == SLICE


def test_a_control_plane_that_lost_reports_is_asked_again(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, toy: Toy
) -> None:
    asked = len(plane.asked)
    plane.forget_reports()
    toy.missing = ("program nft",)
    agent.stop()
    start()
    eventually(lambda: len(plane.asked) > asked + 1)


def cut(plane: FakeControlPlane, mood: Mood = "away") -> None:
    """Long enough for the agent to count as cut off."""
    plane.mood = mood
    beats = plane.turned_away
    eventually(lambda: plane.turned_away > beats + 5)


def replace_by(plane: FakeControlPlane, order: Order) -> None:
    """What the first slot should carry, while the node is cut off, and have the node compare."""
    asked = len(plane.asked)
    cut(plane)
    plane.desired[0] = order
    plane.mood = "well"
    eventually(lambda: len(plane.asked) > asked)


# A host reboots, with or without its disk, with or without the control plane (P26).


@pytest.mark.parametrize("disk", ["with-disk", "without-fences", "without-disk"])
@pytest.mark.parametrize("mood", ["well", "away"])
async def test_a_host_that_rebooted_carries_again_what_was_last_ordered(
    start: Callable[[], Running],
    plane: FakeControlPlane,
    control: Redis,
    settings: Settings,
    toy: Toy,
    *,
    mood: Mood,
    disk: str,
) -> None:
    agent = start()
    await enrolled(plane)
    plane.desired = [apply(7), remove(8, index=1)]
    for order in plane.desired:
        await send(control, order)
    await eventually_async(lambda: {"slice.ready", "slice.removed"} <= set(plane.kinds()))
    agent.stop()
    toy.there.clear()
    if disk == "without-fences":
        shutil.rmtree(settings.state_folder / "fence")
    if disk == "without-disk":
        shutil.rmtree(settings.state_folder)
        # It is another host now: a person must say that this one may be the node.
        plane.token = "another-token-for-one-use"
        settings.enrolment_token_file.write_text(plane.token)
    await send(control, apply(5, index=1))  # what an old copy of the queue may hold
    plane.mood = mood
    turned_away = plane.turned_away
    start()
    if mood == "away" and disk != "with-disk":
        await eventually_async(lambda: plane.turned_away > turned_away + 2)
        assert toy.there == {}, "nobody knows what it should carry"
        plane.mood = "well"
    await eventually_async(lambda: toy.kinds(0) == SLICE)
    plane.mood = "well"
    await eventually_async(lambda: "order.refused" in plane.kinds())
    assert toy.kinds(1) == set()
    assert toy.counts()["machine.start"] == 2
    assert len(plane.enrolments) == len(plane.incarnations) == (2 if disk == "without-disk" else 1)


# What is said of a slot.


def test_a_digest_is_that_of_the_text_that_was_signed() -> None:
    assert digest_of(held(apply())) == text_digest(apply())
    spaced = apply().model_dump_json().replace(",", ", ", 1)
    assert digest_of(Held(order=apply(), signed=sealed(spaced))) == sha256(spaced.encode()).hexdigest()


def test_an_order_that_an_operation_brought_has_the_digest_of_the_order() -> None:
    brought = Held(order=apply(), signed=sealed(on_slot(DriftReport)))
    assert digest_of(brought) == text_digest(apply())


def test_an_order_that_was_overtaken_while_it_was_asked_for_is_no_refusal(tmp_path: Path, toy: Toy) -> None:
    node = Node(tmp_path, toy)
    node.accept(remove(9))
    told = node.kinds()
    with proved_by(sealed(apply(7))):
        assert node.acceptance.admit(apply(7), was_sent=False) is None
    assert node.kinds() == told


# Whether the node was cut off.


@dataclass
class Silence:
    """A node that beats every second, by a clock that the test sets."""

    now: float = 100.0
    doubts: int = 0
    contact: Contact = field(init=False)

    def __post_init__(self) -> None:
        self.contact = Contact(lambda: 1.0, lambda: self.now)
        self.contact.on_doubt(self._note)

    def _note(self) -> None:
        self.doubts += 1

    def heard_after(self, *seconds: float) -> int:
        for each in seconds:
            self.now += each
            self.contact.heard()
        return self.doubts


def test_a_beat_that_got_lost_is_no_cut() -> None:
    assert Silence().heard_after(0, 1, 1.1, 2.1, 1) == 0


def test_a_silence_of_some_beats_is_a_cut_once() -> None:
    assert Silence().heard_after(0, 1, 3, 1, 1) == 1


def test_who_was_never_heard_was_not_cut_off() -> None:
    assert Silence().heard_after(3600) == 0


def test_a_memory_that_was_lost_is_doubted_at_once() -> None:
    silence = Silence()
    silence.contact.forgotten()
    assert silence.doubts == 1


# How the host is looked at.


@dataclass
class ListedLinks(ToyAspect):
    """The host's links, which it lists all at once."""

    lists: list[str]

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        look(("links",), lambda: self.lists.append("links"))
        return super().to_apply(wanted)


@dataclass
class Listing(Toy):
    """A host that notes what it was asked to list."""

    lists: list[str] = field(default_factory=list)

    def host(self) -> Host:
        host = super().host()
        return replace(host, aspects=(ListedLinks("link", self, self.lists), *host.aspects[1:]))


def test_a_start_looks_once_at_what_all_slots_share(
    agent: Running, settings: Settings, plane: FakeControlPlane, toy: Toy
) -> None:
    agent.stop()
    listing, is_settled = Listing(there=toy.there), settled(plane)
    again = Running(settings.model_copy(update={"survey_seconds": NEVER}), listing)
    eventually(is_settled)
    again.stop()
    assert listing.lists == ["links"]
