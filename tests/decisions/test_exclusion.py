"""Exclusion of a slot or node from placement after failed starts of slices, and its readmission."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest

from control_plane.decisions.fleet.device_health import DEVICE_FAULT, FAULT_REPORTED
from control_plane.decisions.fleet.exclusion import (
    KEPT,
    LIMIT,
    is_of_node,
    node_failed,
    node_succeeded,
    readmit_node,
    readmit_slot,
    slot_failed,
    slot_succeeded,
)
from control_plane.decisions.placing.choice import Candidate, choose
from control_plane.decisions.placing.suitability import Demand, Suited
from control_plane.decisions.refusals import Conflict
from deploy.embedded.lab_catalogue import SMALL
from events.facts import FailedBringUp, Reason
from events.nodes import NodeBringUpFailed, NodeBringUpSucceeded, NodeExcluded, NodeReadmitted
from events.offers import Locality
from events.slots import SlotBringUpFailed, SlotBringUpSucceeded, SlotExcluded, SlotReadmitted
from events.values import SkuName, SlotId, node_id, node_of, slot_id
from tasks.reasons import SliceFailureCode, codes
from tests.decisions.histories import ID, NOW

NODE = node_id("lab-a")
S0, S1, S2 = slot_id("lab-a/0"), slot_id("lab-a/1"), slot_id("lab-a/2")
REFUSED = Reason("step_refused", "machine.start: refused")
EXCLUDED = Reason("bring_ups_failed", "3 consecutive bring-ups failed")


def failure(slot: SlotId, number: int = 0) -> FailedBringUp:
    return FailedBringUp(slot, ID, REFUSED, NOW + timedelta(seconds=number))


def failures_on_node(*slots: SlotId) -> tuple[tuple[FailedBringUp, ...], tuple[FailedBringUp, ...] | None]:
    """Record one failed start of a slice in each slot, in turn. Return the consecutive failures of the node, and the
    failures for which the node is then excluded from placement, or None if it is not.
    """
    run: Sequence[FailedBringUp] = ()
    evidence: tuple[FailedBringUp, ...] | None = None
    for number, slot in enumerate(slots):
        failed, *further = node_failed(NODE, failure(slot, number), run, EXCLUDED if evidence else None)
        assert isinstance(failed, NodeBringUpFailed)
        run = failed.failures
        for fact in further:
            assert isinstance(fact, NodeExcluded)
            evidence = fact.failures
    return tuple(run), evidence


def test_failure_codes_are_classified_as_node_faults_or_not() -> None:
    of_node = {code for code in codes(SliceFailureCode) if is_of_node(Reason(code, "reason"))}
    assert of_node == {"step_refused", "host_unreadable", "lease_mismatch"}
    assert not is_of_node(Reason("image_unusable", "reason"))
    assert not is_of_node(Reason("code_of_a_newer_node", "reason"))


def test_slot_is_excluded_by_its_third_consecutive_failure_with_the_failures_as_evidence() -> None:
    two = (failure(S0, 0), failure(S0, 1))
    assert slot_failed(failure(S0, 1), two[:1], None) == (SlotBringUpFailed(S0, two),)
    failed, excluded = slot_failed(failure(S0, 2), two, None)
    three = (*two, failure(S0, 2))
    assert failed == SlotBringUpFailed(S0, three)
    assert isinstance(excluded, SlotExcluded)
    assert (excluded.reason.code, excluded.failures) == ("bring_ups_failed", three)
    assert "machine.start: refused [step_refused]" in excluded.reason.message


def test_slot_that_is_already_excluded_from_placement_is_not_excluded_again() -> None:
    assert len(slot_failed(failure(S0), (failure(S0),) * LIMIT, EXCLUDED)) == 1


@pytest.mark.parametrize("slots", [(S0, S1, S2), (S0, S1, S0)])
def test_node_is_excluded_by_three_consecutive_failures_in_several_slots(slots: tuple[SlotId, ...]) -> None:
    run, evidence = failures_on_node(*slots)
    assert evidence == run
    assert [each.slot_id for each in run] == [*slots]
    assert failures_on_node(*slots[:2])[1] is None


def test_node_is_not_excluded_for_one_slot_that_fails_alone() -> None:
    assert failures_on_node(*[S0] * 5)[1] is None
    assert failures_on_node(*[S0] * 3, S1, S2)[1] is None
    _, evidence = failures_on_node(*[S0] * 3, S1, S2, S1)
    assert evidence is not None
    assert S0 not in {each.slot_id for each in evidence}


def test_exclusion_evidence_of_a_node_is_bounded_however_many_slices_fail_to_start() -> None:
    run, _ = failures_on_node(*[S0, S1, S2] * KEPT)
    assert len(run) == KEPT


def test_slice_that_becomes_ready_after_failures_resets_the_failure_count_and_ends_the_exclusion() -> None:
    before = (failure(S0),)
    assert slot_succeeded(S0, ID, (), None) == ()
    assert node_succeeded(S0, ID, NODE, (), None) == ()
    assert slot_succeeded(S0, ID, before, None) == (SlotBringUpSucceeded(S0, ID),)
    assert node_succeeded(S0, ID, NODE, before, None) == (NodeBringUpSucceeded(NODE, S0, ID),)
    in_slot, on_node = (
        slot_succeeded(S0, ID, before, EXCLUDED),
        node_succeeded(S0, ID, NODE, before, EXCLUDED),
    )
    assert isinstance(in_slot[1], SlotReadmitted)
    assert isinstance(on_node[1], NodeReadmitted)
    assert in_slot[1].reason == on_node[1].reason
    assert in_slot[1].reason.code == "bring_up_succeeded"


def test_slice_that_becomes_ready_does_not_end_the_exclusion_of_a_slot_with_a_fault() -> None:
    succeeded = (SlotBringUpSucceeded(S0, ID),)
    for code in (DEVICE_FAULT, FAULT_REPORTED):
        assert slot_succeeded(S0, ID, (failure(S0),), Reason(code, "a GPU does not respond")) == succeeded
        assert slot_succeeded(S0, ID, (), Reason(code, "a GPU does not respond")) == ()


def test_readmission_without_an_exclusion_is_a_conflict() -> None:
    reason = Reason("readmitted_by_admin", "repaired")
    assert readmit_node(NODE, EXCLUDED, "repaired") == NodeReadmitted(NODE, reason)
    assert readmit_slot(S0, EXCLUDED, "repaired") == SlotReadmitted(S0, reason)
    with pytest.raises(Conflict, match="node lab-a is not excluded"):
        readmit_node(NODE, None, "repaired")
    with pytest.raises(Conflict, match="slot lab-a/0 is not excluded"):
        readmit_slot(S0, None, "repaired")


def test_placement_prefers_slots_in_which_the_last_slice_did_not_fail_to_start() -> None:
    demand = Demand(SkuName("lab.small"), SMALL, ("none",))

    def chosen(count: int, failures: Mapping[SlotId, int]) -> tuple[SlotId, ...]:
        suited = Suited(0, 0, Locality.ROOT_PORT)
        candidates = {slot: Candidate(suited, number) for slot, number in failures.items()}
        return choose(candidates, Counter(map(node_of, failures)), count, demand)

    assert chosen(2, {S0: 0, S1: 0, S2: 0}) == (S0, S1)
    assert chosen(2, {S0: 1, S1: 0, S2: 0}) == (S1, S2)
    assert chosen(2, {S0: 1, S1: 0}) == (S0, S1)
    assert chosen(1, {S0: 2, S1: 1}) == (S1,)
