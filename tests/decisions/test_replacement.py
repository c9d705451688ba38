"""Replacement of an allocation on a different node: states, orders and late reports."""

from datetime import timedelta

import msgspec
import pytest

from control_plane.decisions import allocation as life
from control_plane.decisions import ingress
from control_plane.decisions.allocation_states import Provisioning, awaiting_proof, fold, state_name
from control_plane.decisions.fleet.slots import network_of
from control_plane.decisions.public_addresses import AddressRequest, IngressRequest, PortRequest
from control_plane.processes.allocation import due, is_newest, is_superseded, newest_order_of
from events.allocations import (
    AllocationActivated,
    AllocationFact,
    AllocationFailed,
    AllocationReleased,
    AllocationReleasing,
    AllocationReplaced,
    AllocationStopped,
    AllocationStopping,
    PlacedSlot,
    SliceRemovalIncomplete,
    SliceRemovalOverridden,
    SliceRemovalRetried,
    SliceRemoved,
    SliceStarting,
    SliceStopped,
)
from events.envelope import Cause, Recorded
from events.facts import Reason
from events.ingress import IngressReserved, IngressRule, IngressWithdrawn, Service
from events.values import (
    Epoch,
    Position,
    ingress_of,
    ipv4_address,
    ipv4_subnet,
    new_uuid,
    slot_id,
    stream_of_allocation,
)
from tasks.orders import ApplySlice, Order, RemoveSlice
from tests.decisions.histories import (
    DERIVED,
    GRANTED,
    ID,
    NOW,
    PLACEMENT,
    PROVISIONING,
    REASON,
    REQUESTED,
    SOON,
    A,
    B,
    ready,
)

C, D = slot_id("lab-b/0"), slot_id("lab-b/1")
REFUSED = Reason("step_refused", "machine.start: refused")
NEW = tuple(PlacedSlot(slot, network_of(slot, ipv4_subnet("10.100.2.0/24"), DERIVED)) for slot in (C, D))
REPLACED = AllocationReplaced(ID, (A, B), NEW, REFUSED, 2, PLACEMENT.deadline)
AGAIN: tuple[AllocationFact, ...] = (*PROVISIONING, REPLACED)
ACTIVE_AGAIN = (*AGAIN, ready(C), ready(D), AllocationActivated(ID), GRANTED)
EMPTIED = (SliceRemoved(ID, A), SliceRemoved(ID, B))


def recorded(*facts: AllocationFact) -> list[Recorded[AllocationFact]]:
    cause = Cause("key:test", "test", new_uuid(), NOW)
    return [
        Recorded(Position(at), new_uuid(), stream_of_allocation(ID), at, fact, cause, NOW, Epoch(1))
        for at, fact in enumerate(facts, 1)
    ]


def orders(*facts: AllocationFact) -> dict[str, Order]:
    return {each.slot_id: each for each in due(recorded(*facts), NOW) if isinstance(each, Order)}


def test_replaced_allocation_has_the_new_slots_and_awaits_proof_that_the_old_slots_are_empty() -> None:
    state = fold(AGAIN)
    assert isinstance(state, Provisioning)
    assert (state_name(state), state.slots, state.deadline) == ("placed", NEW, PLACEMENT.deadline)
    assert awaiting_proof(state) == {A, B}


def test_allocation_with_a_failed_slice_start_is_replaced_once_before_its_deadline_unless_forbidden() -> None:
    state = fold(PROVISIONING)
    assert isinstance(state, Provisioning)
    assert life.may_be_replaced(state, A, NOW)
    assert life.replace_slots(state, NEW, REFUSED) == REPLACED
    assert not life.may_be_replaced(state, A, PLACEMENT.deadline)
    assert not life.may_be_replaced(state, C, NOW)
    again = fold(AGAIN)
    assert again is not None
    assert not life.may_be_replaced(again, C, NOW)
    stays = msgspec.structs.replace(REQUESTED, replace_on_failure=False)
    forbidden = fold((stays, PLACEMENT))
    assert forbidden is not None
    assert not life.may_be_replaced(forbidden, A, NOW)


def test_replaced_allocation_has_a_removal_order_for_each_old_slot_and_an_apply_order_for_each_new_slot() -> (
    None
):
    found = orders(*AGAIN)
    assert {slot: type(each.body) for slot, each in found.items()} == {
        A: RemoveSlice,
        B: RemoveSlice,
        C: ApplySlice,
        D: ApplySlice,
    }
    assert {each.token.position for each in found.values()} == {len(AGAIN)}
    assert found[C].node_id == "lab-b"
    assert found[A].node_id == "lab-a"


@pytest.mark.parametrize(
    "later",
    [
        (),
        (ready(C), ready(D), AllocationActivated(ID), GRANTED),
        (ready(C), ready(D), AllocationActivated(ID), GRANTED, AllocationStopping(ID, REASON, SOON)),
        (AllocationReleasing(ID, REASON),),
        (AllocationFailed(ID, REASON),),
    ],
)
def test_removal_order_for_an_old_slot_of_a_replaced_allocation_stays_the_same_in_every_later_state(
    later: tuple[AllocationFact, ...],
) -> None:
    first = orders(*AGAIN)[A]
    found = orders(*AGAIN, *later)
    assert (found[A].order_id, found[A].body) == (first.order_id, first.body)
    history = recorded(*AGAIN, *later)
    assert is_newest(history, A, first.order_id)
    assert not is_superseded(history, A, first.order_id)
    assert A not in orders(*AGAIN, *later, SliceRemoved(ID, A))
    assert (newest_order_of(recorded(*AGAIN, *later, *EMPTIED), A) or first).order_id == first.order_id


def test_apply_order_for_an_old_slot_of_a_replaced_allocation_is_superseded() -> None:
    first = orders(*PROVISIONING)[A]
    assert is_superseded(recorded(*AGAIN), A, first.order_id)
    new = orders(*AGAIN)[C]
    assert not is_superseded(recorded(*AGAIN), C, new.order_id)
    assert is_superseded(recorded(*AGAIN, AllocationReleasing(ID, REASON)), C, new.order_id)


def test_retried_removal_from_an_old_slot_of_a_replaced_allocation_is_a_new_order() -> None:
    state = fold(AGAIN)
    assert state is not None
    retried = SliceRemovalRetried(ID, A)
    assert life.retry_removal(state, A) == (retried,)
    assert orders(*AGAIN, retried)[A].order_id != orders(*AGAIN)[A].order_id
    assert orders(*AGAIN, retried)[B].order_id == orders(*AGAIN)[B].order_id


def test_late_reports_about_old_slots_of_a_replaced_allocation_do_not_change_the_new_placement() -> None:
    state = fold(AGAIN)
    assert state is not None
    assert life.slice_ready(state, ready(A), NOW) == ()
    assert life.start_slice(state, A) == ()
    assert life.fail_slice(state, A, REASON) == ()
    assert life.slice_stopped(state, A, forced=False) == ()


def test_removal_proof_of_an_old_slot_of_a_replaced_allocation_is_recorded_once_before_its_release() -> None:
    stopping = (*ACTIVE_AGAIN, AllocationStopping(ID, REASON, SOON))
    stopped = (*stopping, SliceStopped(ID, C, False), SliceStopped(ID, D, False), AllocationStopped(ID))
    for facts in (AGAIN, (*AGAIN, SliceStarting(ID, C)), ACTIVE_AGAIN, stopping, stopped):
        state, after = fold(facts), fold((*facts, SliceRemoved(ID, A)))
        assert state is not None
        assert after is not None
        assert life.slice_removed(state, A) == (SliceRemoved(ID, A),)
        assert awaiting_proof(after) == {B}
        assert life.slice_removed(after, A) == ()
        assert state_name(after) == state_name(state)
        incomplete = SliceRemovalIncomplete(ID, A, ("tap slice0",))
        assert life.slice_removal_incomplete(state, incomplete) == (incomplete,)
        overridden = SliceRemovalOverridden(ID, A, "its host was destroyed")
        assert life.override_removal(state, A, overridden.reason) == (overridden,)
        assert fold((*facts, overridden)) == after


def test_replaced_allocation_is_released_when_the_slots_of_both_placements_are_proved_empty() -> None:
    releasing = (*ACTIVE_AGAIN, AllocationReleasing(ID, REASON), SliceRemoved(ID, C), SliceRemoved(ID, D))
    state = fold((*releasing, SliceRemoved(ID, A)))
    assert state is not None
    assert life.slice_removed(state, B) == (SliceRemoved(ID, B), AllocationReleased(ID))
    before = fold((*ACTIVE_AGAIN, *EMPTIED, AllocationReleasing(ID, REASON), SliceRemoved(ID, C)))
    assert before is not None
    assert life.slice_removed(before, D) == (SliceRemoved(ID, D), AllocationReleased(ID))


def test_second_failed_slice_start_fails_the_allocation_and_empties_the_slots_of_both_placements() -> None:
    state = fold(AGAIN)
    assert state is not None
    assert life.fail_slice(state, C, REFUSED) == (AllocationFailed(ID, REFUSED),)
    failed = fold((*AGAIN, AllocationFailed(ID, REFUSED)))
    assert failed is not None
    assert awaiting_proof(failed) == {A, B, C, D}


PORT = IngressRule(ipv4_address("203.0.113.7"), Service("tcp", 20001, 22), ())
ADDRESS = IngressRule(ipv4_address("203.0.113.9"), None, (ipv4_subnet("198.51.100.0/24"),))


def test_ingress_rules_of_a_replaced_allocation_are_withdrawn_and_requested_again_at_the_same_public_port() -> (
    None
):
    port, address, closed = (ingress_of(new_uuid()) for _ in range(3))
    facts = (
        REQUESTED,
        IngressReserved(ID, A, port, PORT, None),
        IngressReserved(ID, B, address, ADDRESS, None),
        IngressReserved(ID, B, closed, PORT, None),
        PLACEMENT,
        IngressWithdrawn(ID, B, closed, REASON),
    )
    states = ingress.ingress_states_of(facts)
    assert ingress.ingress_requests_of(states, (A, B)) == (
        IngressRequest(0, PortRequest("tcp", 22, 20001), ()),
        IngressRequest(1, AddressRequest(), ADDRESS.sources),
    )
    assert ingress.withdraw_all(states, REASON) == (
        IngressWithdrawn(ID, A, port, REASON),
        IngressWithdrawn(ID, B, address, REASON),
    )


def test_deadline_of_an_ingress_rule_in_the_new_slot_follows_from_the_replacement_of_the_allocation() -> None:
    name = ingress_of(new_uuid())
    states = ingress.ingress_states_of((*PROVISIONING, IngressReserved(ID, C, name, PORT, None), REPLACED))
    state = states[name]
    assert isinstance(state, ingress.Reserved)
    assert state.until == PLACEMENT.deadline + ingress.IN_PLACE_WITHIN
    assert state.until > NOW + timedelta(minutes=2)
    assert ingress.ordered_ingress_of(states, C) == (state.asked,)
