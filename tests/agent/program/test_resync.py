"""A node that restarted or lost contact compares order digests and changes only differing slots (NOD-10, P26)."""

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from node_agent.host.host import Host
from node_agent.host.slices import Slice, Step
from node_agent.host.snapshots import look
from node_agent.settings import Settings
from node_agent.slots.fence import FenceEntry, digest_of
from node_agent.transport.contact import Contact
from node_agent.transport.trust import proved_by
from tasks.operations import DriftReport
from tasks.orders import Order
from tests.agent.control_plane import FakeControlPlane, Mode, text_digest
from tests.agent.eventually import eventually, eventually_async
from tests.agent.operations import on_slot
from tests.agent.orders import apply, remove
from tests.agent.program.test_agent import Running
from tests.agent.queue import await_enrolment, send
from tests.agent.slots.test_accept import Node
from tests.agent.task_signing import held, sealed
from tests.agent.toy_host import REMOVAL_STEPS, STEPS, Toy, ToyAspect

SLICE = set(STEPS)
NEVER = 3600.0


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def start(settings: Settings, toy: Toy) -> Iterator[Callable[[], Running]]:
    """Return a function that starts an agent without surveys, so that only the resync can detect a difference."""
    started: list[Running] = []

    def start() -> Running:
        started.append(Running(settings.model_copy(update={"survey_seconds": NEVER}), toy))
        return started[-1]

    yield start
    for agent in started:
        agent.stop()


@pytest.fixture
def agent(start: Callable[[], Running], plane: FakeControlPlane, settings: Settings) -> Running:
    """A running agent with a slice on each of its two slots."""
    plane.desired = [apply(7), apply(8, index=1)]
    agent = start()
    plane.await_kind("slice.ready", 2)
    # The agent records a report shortly after sending it, and sends it again if it ends before that.
    eventually(lambda: '"reported":false' not in "".join(fences(settings)))
    return agent


def fences(settings: Settings) -> list[str]:
    return [path.read_text() for path in (settings.state_folder / "fence").glob("slot-*.json")]


def files(settings: Settings) -> dict[str, int]:
    """Return the inode of each file that stores a slot's newest order; a rewritten file has a new inode."""
    return {path.name: path.stat().st_ino for path in (settings.state_folder / "fence").iterdir()}


def resync_condition(plane: FakeControlPlane) -> Callable[[], bool]:
    """Return a condition that is true once an agent started after this call has reported a finished resync."""
    beats = len(plane.heartbeats)
    return lambda: any(beat.resynced for beat in plane.heartbeats[beats:])


def test_restarted_agent_sends_the_digests_of_its_orders_and_changes_nothing(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, settings: Settings, toy: Toy
) -> None:
    agent.stop()
    before, done, kinds = files(settings), list(toy.done), plane.kinds()
    is_settled = resync_condition(plane)
    start()
    eventually(is_settled)
    assert [each.sha256 for each in plane.comparisons[-1].held] == [
        text_digest(each) for each in plane.desired
    ]
    assert [(each.index, each.epoch, each.position) for each in plane.comparisons[-1].held] == [
        (0, 1, 7),
        (1, 1, 8),
    ]
    assert files(settings) == before, "no fence was written"
    assert toy.done == done
    assert plane.kinds() == kinds


def test_resync_changes_only_the_slot_with_a_different_order(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, settings: Settings, toy: Toy
) -> None:
    agent.stop()
    before, done = files(settings), list(toy.done)
    plane.desired[1] = remove(9, index=1)
    start()
    plane.await_kind("slice.removed")
    assert toy.done[len(done) :] == [*REMOVAL_STEPS]
    assert (toy.kinds(0), toy.kinds(1)) == (SLICE, set())
    assert files(settings)["slot-0.json"] == before["slot-0.json"]
    assert plane.kinds().count("slice.ready") == 2, "the unchanged slice must not be reported again"


def test_stored_order_that_is_unknown_to_the_control_plane_is_kept_and_logged(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, toy: Toy
) -> None:
    agent.stop()
    done = list(toy.done)
    plane.desired = [apply(3), apply(8, index=1)]
    is_settled = resync_condition(plane)
    with capture_logs() as log:
        start()
        eventually(is_settled)
    assert [
        (line["slots"], line["count"])
        for line in log
        if line["event"] == "slot_orders_unknown_to_control_plane"
    ] == [((0,), 1)]
    assert toy.done == done
    assert "order.refused" not in plane.kinds()


@pytest.mark.parametrize("mode", ["unavailable", "refusing"])
def test_agent_that_lost_contact_compares_its_orders_with_the_control_plane_once_it_answers(
    agent: Running, plane: FakeControlPlane, toy: Toy, mode: Mode
) -> None:
    lose_contact(plane, mode)
    plane.desired[1] = remove(9, index=1)
    plane.mode = "available"
    plane.await_kind("slice.removed")
    assert (toy.kinds(0), toy.kinds(1)) == (SLICE, set())


def test_order_found_by_resync_stops_the_work_for_an_older_order(
    agent: Running, plane: FakeControlPlane, settings: Settings, toy: Toy
) -> None:
    unblock = toy.slow["machine.destroy"] = threading.Event()
    toy.begun.clear()
    replace_first_order(plane, remove(9))
    eventually(toy.begun.is_set)
    before = files(settings)
    replace_first_order(plane, apply(11))
    eventually(lambda: files(settings)["slot-0.json"] != before["slot-0.json"])
    beats = len(plane.heartbeats)
    eventually(lambda: len(plane.heartbeats) > beats + 2)
    unblock.set()
    plane.await_kind("slice.ready", 3)
    assert toy.kinds(0) == SLICE


def test_agent_fetches_its_desired_state_again_when_the_control_plane_lost_reports(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, toy: Toy
) -> None:
    asked = len(plane.comparisons)
    plane.forget_reports()
    toy.missing = ("program nft",)
    agent.stop()
    start()
    eventually(lambda: len(plane.comparisons) > asked + 1)


def lose_contact(plane: FakeControlPlane, mode: Mode = "unavailable") -> None:
    """Make the fake control plane unavailable until the agent considers the contact with it as lost."""
    plane.mode = mode
    beats = plane.rejected_requests
    eventually(lambda: plane.rejected_requests > beats + 5)


def replace_first_order(plane: FakeControlPlane, order: Order) -> None:
    """Replace the order of the first slot while the node has no contact, and wait for the next resync."""
    asked = len(plane.comparisons)
    lose_contact(plane)
    plane.desired[0] = order
    plane.mode = "available"
    eventually(lambda: len(plane.comparisons) > asked)


# A host reboots, with or without its disk, with or without the control plane (P26).


@pytest.mark.parametrize("disk", ["with-disk", "without-fences", "without-disk"])
@pytest.mark.parametrize("mode", ["available", "unavailable"])
async def test_rebooted_host_restores_the_slices_of_the_newest_orders(
    start: Callable[[], Running],
    plane: FakeControlPlane,
    control: Redis,
    settings: Settings,
    toy: Toy,
    *,
    mode: Mode,
    disk: str,
) -> None:
    agent = start()
    await await_enrolment(plane)
    plane.desired = [apply(7), remove(8, index=1)]
    for order in plane.desired:
        await send(control, order)
    await eventually_async(lambda: {"slice.ready", "slice.removed"} <= set(plane.kinds()))
    agent.stop()
    toy.objects.clear()
    if disk == "without-fences":
        shutil.rmtree(settings.state_folder / "fence")
    if disk == "without-disk":
        shutil.rmtree(settings.state_folder)
        # Without its disk it counts as another host, which an operator must admit with a new token.
        plane.token = "another-token-for-one-use"
        settings.enrolment_token_file.write_text(plane.token)
    await send(control, apply(5, index=1))  # an old order of which the queue may still have a copy
    plane.mode = mode
    rejected_requests = plane.rejected_requests
    start()
    if mode == "unavailable" and disk != "with-disk":
        await eventually_async(lambda: plane.rejected_requests > rejected_requests + 2)
        assert toy.objects == {}, "without a control plane, no desired state is available"
        plane.mode = "available"
    await eventually_async(lambda: toy.kinds(0) == SLICE)
    plane.mode = "available"
    await eventually_async(lambda: "order.refused" in plane.kinds())
    assert toy.kinds(1) == set()
    assert toy.counts()["machine.start"] == 2
    assert len(plane.enrolments) == len(plane.incarnations) == (2 if disk == "without-disk" else 1)


# Digests of stored orders.


def test_digest_of_an_order_that_a_node_stores_is_computed_from_the_signed_text_of_the_order() -> None:
    assert digest_of(held(apply())) == text_digest(apply())
    spaced = apply().model_dump_json().replace(",", ", ", 1)
    assert digest_of(FenceEntry(order=apply(), signed=sealed(spaced))) == sha256(spaced.encode()).hexdigest()


def test_order_that_was_embedded_in_a_signed_operation_has_the_same_digest_as_if_it_was_sent_alone() -> None:
    brought = FenceEntry(order=apply(), signed=sealed(on_slot(DriftReport)))
    assert digest_of(brought) == text_digest(apply())


def test_order_superseded_during_its_resync_is_not_reported_as_refused(tmp_path: Path, toy: Toy) -> None:
    node = Node(tmp_path, toy)
    node.accept(remove(9))
    kinds = node.kinds()
    with proved_by(sealed(apply(7))):
        assert node.acceptance.admit(apply(7), was_sent=False) is None
    assert node.kinds() == kinds


# Detection of lost contact.


@dataclass
class ContactClock:
    """An agent's record of its contact with the control plane, with one heartbeat a second, on a clock of the test."""

    now: float = 100.0
    due_comparisons: int = 0
    contact: Contact = field(init=False)

    def __post_init__(self) -> None:
        self.contact = Contact(lambda: 1.0, lambda: self.now)
        self.contact.on_comparison_due(self._note)

    def _note(self) -> None:
        self.due_comparisons += 1

    def answers_after(self, *seconds: float) -> int:
        """Record one control plane answer after each of these pauses. Return how many order comparisons became due."""
        for each in seconds:
            self.now += each
            self.contact.record_answer()
        return self.due_comparisons


def test_agent_without_an_answer_to_a_single_heartbeat_does_not_consider_its_contact_lost() -> None:
    assert ContactClock().answers_after(0, 1, 1.1, 2.1, 1) == 0


def test_agent_without_an_answer_for_three_heartbeat_intervals_counts_one_loss_of_contact() -> None:
    assert ContactClock().answers_after(0, 1, 3, 1, 1) == 1


def test_control_plane_that_never_answered_does_not_count_as_lost_contact() -> None:
    assert ContactClock().answers_after(3600) == 0


def test_agent_compares_its_orders_with_the_control_plane_immediately_if_either_side_lost_state() -> None:
    clock = ContactClock()
    clock.contact.record_lost_state()
    assert clock.due_comparisons == 1


# Reads of the host.


@dataclass
class ListedLinks(ToyAspect):
    """Link aspect of a toy host that lists all links of the host at once and records each listing."""

    lists: list[str]

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        look(("links",), lambda: self.lists.append("links"))
        return super().to_apply(wanted)


@dataclass
class ListingToy(Toy):
    """Toy host that records every listing of its links."""

    lists: list[str] = field(default_factory=list)

    def host(self) -> Host:
        host = super().host()
        return replace(host, aspects=(ListedLinks("link", self, self.lists), *host.aspects[1:]))


def test_starting_agent_lists_the_network_links_of_its_host_once_for_all_slots(
    agent: Running, settings: Settings, plane: FakeControlPlane, toy: Toy
) -> None:
    agent.stop()
    listing, is_settled = ListingToy(objects=toy.objects), resync_condition(plane)
    again = Running(settings.model_copy(update={"survey_seconds": NEVER}), listing)
    eventually(is_settled)
    again.stop()
    assert listing.lists == ["links"]
