"""Reports that follow from reachability probes of a slot: open drift of the slot, and lost ingress rules."""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from events.values import IngressId
from node_agent.host.slices import Difference
from tasks.drift import LocatedEvidence
from tasks.orders import Order
from tasks.reports import SliceIngressObserved
from tests.agent.orders import apply, remove, ssh_ingress, stop
from tests.agent.slots.test_accept import Node
from tests.agent.toy_host import Toy

INGRESS: Final = ssh_ingress()
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
    return [(each.slot, each.kind, each.ingress_id, each.observed) for each in node.drifts.open()]


def lost(node: Node) -> tuple[IngressId, ...] | None:
    observed = [each.lost for each in node.reports() if isinstance(each, SliceIngressObserved)]
    return observed[-1] if observed else None


def test_slice_that_does_not_answer_is_open_drift_without_a_repair_until_it_answers(
    node: Node, toy: Toy
) -> None:
    node.accept(apply(ingress=(INGRESS,)))
    done = [*toy.done]
    toy.findings = {None: OF_SLICE}
    node.survey()
    assert open_in(node) == [(0, "slice.unreachable", None, OF_SLICE.observed)]
    assert (toy.done, lost(node)) == (done, None)
    toy.findings = {None: None, INGRESS.ingress_id: None}
    node.survey()
    assert open_in(node) == []
    assert "repaired" not in node.kinds()


def test_slice_with_unchanged_probe_findings_is_not_surveyed_again(node: Node, toy: Toy) -> None:
    node.accept(apply())
    toy.findings = {None: OF_SLICE}
    node.survey()
    assert node.acceptance.due() == ([], [])


def test_unreachable_slice_with_another_failed_hop_is_reported_again_with_the_new_hop(
    node: Node, toy: Toy
) -> None:
    node.accept(apply())
    toy.findings = {None: OF_SLICE}
    node.survey()
    toy.findings = {None: Difference("slice.unreachable", "an answer of port 22", "none (hop: port)")}
    node.survey()
    assert [each.observed for each in node.drifts.open()] == ["none (hop: port)"]


def test_ingress_that_does_not_answer_is_reported_lost_until_it_answers(node: Node, toy: Toy) -> None:
    node.accept(apply(ingress=(INGRESS,)))
    toy.findings = {None: None, INGRESS.ingress_id: OF_INGRESS}
    node.survey()
    assert open_in(node) == [(0, "slice.unreachable", INGRESS.ingress_id, OF_INGRESS.observed)]
    assert lost(node) == (INGRESS.ingress_id,)
    toy.findings = {None: None, INGRESS.ingress_id: None}
    node.survey()
    assert (open_in(node), lost(node)) == ([], ())


def test_ingress_that_was_lost_stays_lost_while_the_slice_itself_does_not_answer(
    node: Node, toy: Toy
) -> None:
    node.accept(apply(ingress=(INGRESS,)))
    toy.findings = {None: None, INGRESS.ingress_id: OF_INGRESS}
    node.survey()
    toy.findings = {None: OF_SLICE}
    node.survey()
    assert lost(node) == (INGRESS.ingress_id,)
    assert len(open_in(node)) == 2


def test_slice_unreachable_before_an_agent_restart_stays_unreachable_until_it_is_probed(
    node: Node, toy: Toy
) -> None:
    node.accept(apply())
    after, since = node.restarted(), datetime(2026, 3, 1, tzinfo=UTC)
    old_drift = LocatedEvidence(
        slot=0, kind=OF_SLICE.kind, desired=OF_SLICE.desired, observed=OF_SLICE.observed, since=since
    )
    after.drifts.restore([old_drift])
    toy.findings = {}
    for slot in after.acceptance.report_interrupted():
        after.acceptance.reconcile_slot(slot)
    after.survey()
    assert after.drifts.open() == (old_drift,)
    toy.findings = {None: None}
    after.survey()
    assert after.drifts.open() == ()


def test_slice_is_probed_once_it_is_ready_and_again_after_an_agent_restart(node: Node, toy: Toy) -> None:
    toy.slow["machine.start"] = threading.Event()
    begun = node.begin(apply())
    assert toy.begun.wait(10)
    assert toy.watched == {}
    toy.slow["machine.start"].set()
    begun.join(10)
    assert [*toy.watched] == [0]
    toy.watched.clear()
    node.restarted().acceptance.report_interrupted()
    assert [*toy.watched] == [0]


@pytest.mark.parametrize("order", [remove(), stop()], ids=["removed", "stopped"])
def test_slice_is_no_longer_probed_once_the_first_step_of_its_removal_or_stop_begins(
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


def test_slice_with_a_restarted_machine_is_probed_again_once_it_is_ready(node: Node, toy: Toy) -> None:
    node.accept(apply())
    del toy.objects["machine", 0]
    toy.silent = True
    node.acceptance.report_interrupted()
    assert toy.watched == {}
    toy.silent = False
    node.survey()
    assert [*toy.watched] == [0]


def test_repair_of_other_drift_keeps_unreachable_drift_open(node: Node, toy: Toy) -> None:
    node.accept(apply())
    toy.findings = {None: OF_SLICE}
    del toy.objects["port", 0]
    node.survey()
    assert [kind for _, kind, _, _ in open_in(node)] == ["slice.unreachable"]
    assert "repaired" in node.kinds()
