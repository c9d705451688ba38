"""From what probes find to what a slot reports: drift of the slot, and ingresses that are lost."""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from events.values import IngressId
from node_agent.slices import Difference
from tasks.drift import DriftSeen
from tasks.orders import Order
from tasks.reports import SliceExposed
from tests.agent.orders import apply, remove, ssh_from_outside, stop
from tests.agent.test_accept import Node
from tests.agent.toy_host import Toy

INGRESS: Final = ssh_from_outside()
OF_SLICE: Final = Difference("slice.unreachable", "an answer to ARP", "none for 5 s (hop: address)")
OF_INGRESS: Final = Difference(
    "slice.unreachable", "an answer", "none for 5 s (hop: ingress)", INGRESS.ingress_id
)


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def node(tmp_path: Path, toy: Toy) -> Node:
    return Node(tmp_path, toy)


def open_in(node: Node) -> list[tuple[int | None, str, IngressId | None, str]]:
    return [(each.slot, each.kind, each.ingress_id, each.found) for each in node.drifts.open()]


def lost(node: Node) -> tuple[IngressId, ...] | None:
    told = [each.lost for each in node.told() if isinstance(each, SliceExposed)]
    return told[-1] if told else None


def test_slice_that_does_not_answer_is_drift_of_its_slot_until_it_does_and_nothing_is_done(
    node: Node, toy: Toy
) -> None:
    node.accept(apply(ways=(INGRESS,)))
    done = [*toy.done]
    toy.findings = {None: OF_SLICE}
    node.survey()
    assert open_in(node) == [(0, "slice.unreachable", None, OF_SLICE.found)]
    assert (toy.done, lost(node)) == (done, None)
    toy.findings = {None: None, INGRESS.ingress_id: None}
    node.survey()
    assert open_in(node) == []
    assert "mended" not in node.kinds()


def test_slice_whose_findings_stay_makes_no_more_work(node: Node, toy: Toy) -> None:
    node.accept(apply())
    toy.findings = {None: OF_SLICE}
    node.survey()
    assert node.acceptance.due() == ([], [])


def test_hop_that_changes_replaces_the_one_that_was_reported(node: Node, toy: Toy) -> None:
    node.accept(apply())
    toy.findings = {None: OF_SLICE}
    node.survey()
    toy.findings = {None: Difference("slice.unreachable", "an answer of port 22", "none (hop: port)")}
    node.survey()
    assert [each.found for each in node.drifts.open()] == ["none (hop: port)"]


def test_ingress_that_does_not_answer_is_lost_until_it_does(node: Node, toy: Toy) -> None:
    node.accept(apply(ways=(INGRESS,)))
    toy.findings = {None: None, INGRESS.ingress_id: OF_INGRESS}
    node.survey()
    assert open_in(node) == [(0, "slice.unreachable", INGRESS.ingress_id, OF_INGRESS.found)]
    assert lost(node) == (INGRESS.ingress_id,)
    toy.findings = {None: None, INGRESS.ingress_id: None}
    node.survey()
    assert (open_in(node), lost(node)) == ([], ())


def test_ingress_that_was_lost_stays_lost_while_the_slice_itself_does_not_answer(
    node: Node, toy: Toy
) -> None:
    node.accept(apply(ways=(INGRESS,)))
    toy.findings = {None: None, INGRESS.ingress_id: OF_INGRESS}
    node.survey()
    toy.findings = {None: OF_SLICE}
    node.survey()
    assert lost(node) == (INGRESS.ingress_id,)
    assert len(open_in(node)) == 2


def test_slice_that_was_unreachable_before_a_restart_stays_so_until_it_was_probed(
    node: Node, toy: Toy
) -> None:
    node.accept(apply())
    after, since = node.restarted(), datetime(2026, 3, 1, tzinfo=UTC)
    of_old = DriftSeen(slot=0, kind=OF_SLICE.kind, wanted=OF_SLICE.wanted, found=OF_SLICE.found, since=since)
    after.drifts.remember([of_old])
    toy.findings = {}
    for slot in after.acceptance.notice_all():
        after.acceptance.look_after(slot)
    after.survey()
    assert after.drifts.open() == (of_old,)
    toy.findings = {None: None}
    after.survey()
    assert after.drifts.open() == ()


def test_slice_is_probed_from_its_readiness_and_after_a_restart_of_the_agent(node: Node, toy: Toy) -> None:
    toy.slow["machine.start"] = threading.Event()
    begun = node.begin(apply())
    assert toy.begun.wait(10)
    assert toy.watched == {}
    toy.slow["machine.start"].set()
    begun.join(10)
    assert [*toy.watched] == [0]
    toy.watched.clear()
    node.restarted().acceptance.notice_all()
    assert [*toy.watched] == [0]


@pytest.mark.parametrize("order", [remove(), stop()], ids=["removed", "stopped"])
def test_slice_that_is_to_go_is_no_longer_probed_when_its_first_step_begins(
    node: Node, toy: Toy, order: Order
) -> None:
    node.accept(apply())
    toy.begun.clear()
    toy.slow["translation.delete_rules"] = threading.Event()
    begun = node.begin(order)
    assert toy.begun.wait(10)
    assert toy.watched == {}
    toy.slow["translation.delete_rules"].set()
    begun.join(10)


def test_slice_whose_machine_ended_is_probed_again_once_it_is_ready_again(node: Node, toy: Toy) -> None:
    node.accept(apply())
    del toy.there["machine", 0]
    toy.silent = True
    node.acceptance.notice_all()
    assert toy.watched == {}
    toy.silent = False
    node.survey()
    assert [*toy.watched] == [0]


def test_repair_of_other_drift_leaves_what_probes_found_open(node: Node, toy: Toy) -> None:
    node.accept(apply())
    toy.findings = {None: OF_SLICE}
    del toy.there["port", 0]
    node.survey()
    assert [kind for _, kind, _, _ in open_in(node)] == ["slice.unreachable"]
    assert "mended" in node.kinds()
