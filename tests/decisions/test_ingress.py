"""Tests of the decision functions for ingress rules: states from events, events from reports of nodes, and due
orders.
"""

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from control_plane.decisions import ingress
from control_plane.decisions.allocation_states import Placed, Requested, Waiting, fold
from control_plane.decisions.ingress import IngressStates, ingress_states_of
from control_plane.decisions.refusals import UnknownName
from control_plane.processes.allocation import MissDeadline, Wait
from events.allocations import AllocationActivated, AllocationFact, SliceStopped
from events.ingress import (
    IngressLost,
    IngressPublished,
    IngressRemoved,
    IngressReserved,
    IngressRule,
    IngressWithdrawn,
    Service,
)
from events.values import Ipv4Address, SlotId, ingress_of, new_uuid
from tasks.orders import MOST_MAPPINGS, ApplySlice, PortMapping
from tests.decisions.histories import (
    ACTIVE,
    GRANTED,
    ID,
    INTERRUPTED,
    NOW,
    PLACEMENT,
    PROVISIONING,
    REASON,
    RELEASING,
    REQUESTED,
    SOON,
    STARTING,
    STOPPED,
    STOPPING,
    A,
    B,
    ready,
)
from tests.decisions.test_due_actions import due_actions, orders

NAME = ingress_of(new_uuid())
SSH = IngressRule(Ipv4Address("203.0.113.7"), Service("tcp", 20022, 22), ())
LIMIT = NOW + timedelta(minutes=2)
RESERVED = IngressReserved(ID, A, NAME, SSH, LIMIT)
PUBLISHED = IngressPublished(ID, NAME)
LOST = IngressLost(ID, NAME)
WITHDRAWN = IngressWithdrawn(ID, A, NAME, REASON)
REMOVED = IngressRemoved(ID, NAME, SSH)
OPEN = (*ACTIVE, RESERVED, PUBLISHED)


def state_of(*facts: AllocationFact) -> Placed:
    state = fold(facts)
    assert state is not None
    assert not isinstance(state, Requested | Waiting)
    return state


def ingress_states(*facts: AllocationFact) -> IngressStates:
    return ingress_states_of(facts)


def ordered(*facts: AllocationFact) -> dict[SlotId, list[str]]:
    """Return the ids of the ingress rules in the newest order of each slot."""
    bodies = {each.slot_id: each.body for each in orders(*facts)}
    return {
        slot: [rule.ingress_id for rule in body.ingress]
        for slot, body in bodies.items()
        if isinstance(body, ApplySlice)
    }


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ((RESERVED,), "Reserved"),
        ((RESERVED, PUBLISHED), "Published"),
        ((RESERVED, PUBLISHED, LOST), "Lost"),
        ((RESERVED, PUBLISHED, LOST, PUBLISHED), "Published"),
        ((RESERVED, PUBLISHED, WITHDRAWN), "Withdrawn"),
        ((RESERVED, WITHDRAWN, REMOVED), "Removed"),
    ],
)
def test_events_of_an_ingress_rule_are_folded_to_its_state(
    facts: tuple[AllocationFact, ...], state: str
) -> None:
    assert type(ingress_states(*facts)[NAME]).__name__ == state


def test_ingress_rule_events_do_not_change_the_state_of_the_allocation() -> None:
    assert state_of(*OPEN, LOST, WITHDRAWN, REMOVED) == state_of(*ACTIVE)


def test_first_order_of_a_slot_contains_the_ingress_rules_requested_with_the_allocation() -> None:
    requested = (REQUESTED, RESERVED, PLACEMENT)
    assert ordered(*requested) == {A: [NAME], B: []}
    assert {each.token.position for each in orders(*requested)} == {3}


def test_order_with_a_reserved_ingress_rule_is_due_for_its_slot_until_the_rule_is_reported_as_applied() -> (
    None
):
    [order] = orders(*ACTIVE, RESERVED)
    assert (order.slot_id, order.token.position) == (A, len(ACTIVE) + 1)
    assert isinstance(order.body, ApplySlice)
    [rule] = order.body.ingress
    assert isinstance(rule, PortMapping)
    assert (rule.public_address, rule.protocol, rule.public_port, rule.port) == (
        "203.0.113.7",
        "tcp",
        20022,
        22,
    )
    assert orders(*OPEN) == []


def test_slot_has_a_due_order_without_its_withdrawn_ingress_rule_until_the_removal_of_the_rule_is_proved() -> (
    None
):
    assert ordered(*OPEN, WITHDRAWN) == {A: []}
    assert orders(*OPEN, WITHDRAWN, REMOVED) == []


def test_slot_with_a_lost_ingress_rule_has_no_due_order_because_the_node_repairs_the_rule() -> None:
    assert orders(*OPEN, LOST) == []


def test_orders_of_a_restarted_allocation_contain_its_ingress_rules() -> None:
    stopped = (*OPEN, *STOPPING[len(ACTIVE) :], *STOPPED[len(STOPPING) :])
    assert ordered(*stopped) == {}
    assert ordered(*stopped, *STARTING[len(STOPPED) :]) == {A: [NAME], B: []}


def test_release_of_an_allocation_orders_the_removal_of_its_slices_with_ingress_rules() -> None:
    released = (*OPEN, *RELEASING[len(ACTIVE) :], WITHDRAWN)
    assert [(each.slot_id, each.body.kind) for each in orders(*released)] == [
        (A, "slice.remove"),
        (B, "slice.remove"),
    ]
    assert {each.token.position for each in orders(*released)} == {len(OPEN) + 1}


def test_ingress_rule_that_is_not_published_by_its_deadline_is_withdrawn() -> None:
    assert due_actions(*ACTIVE, RESERVED)[-1] == Wait("ingress rules in place on the node", LIMIT)
    assert due_actions(*ACTIVE, RESERVED, now=LIMIT) == (MissDeadline(),)
    [fact] = ingress.withdraw_overdue(state_of(*ACTIVE), ingress_states(RESERVED), LIMIT)
    assert isinstance(fact, IngressWithdrawn)
    assert fact.reason.code == "deadline_missed"
    assert ingress.withdraw_overdue(state_of(*OPEN), ingress_states(RESERVED, PUBLISHED), LIMIT) == ()


def test_unapplied_ingress_rule_without_a_deadline_is_withdrawn_two_minutes_after_its_slices_deadline() -> (
    None
):
    """The slice became ready with an older order, and the node does not execute the newest order."""
    reserved = replace(RESERVED, deadline=None)
    active = (REQUESTED, reserved, *ACTIVE[1:])
    limit = PLACEMENT.deadline + ingress.IN_PLACE_WITHIN
    assert due_actions(*active)[-1] == Wait("ingress rules in place on the node", limit)
    assert due_actions(*active, now=limit) == (MissDeadline(),)
    [fact] = ingress.withdraw_overdue(state_of(*active), ingress_states(*active), limit)
    assert isinstance(fact, IngressWithdrawn)


@pytest.mark.parametrize("deadline", [None, LIMIT])
def test_ingress_rule_that_is_not_applied_yet_gets_a_new_deadline_when_its_allocation_is_started(
    deadline: datetime | None,
) -> None:
    reserved = replace(RESERVED, deadline=deadline)
    again = (ready(A), ready(B), AllocationActivated(ID))
    stopped = (*ACTIVE, reserved, *STOPPING[len(ACTIVE) :], *STOPPED[len(STOPPING) :])
    assert due_actions(*stopped)[-1] == Wait("a start request", GRANTED.expires_at)
    started = (*stopped, *STARTING[len(STOPPED) :], *again)
    assert due_actions(*started)[-1] == Wait(
        "ingress rules in place on the node", SOON + ingress.IN_PLACE_WITHIN
    )


def test_ingress_rule_that_is_not_applied_yet_gets_a_new_deadline_when_its_slice_is_interrupted() -> None:
    """The node was unreachable: it first restarts the slice with the older order, then executes the newest order."""
    other = ingress_of(new_uuid())
    waiting = ingress_states(*ACTIVE, RESERVED, replace(RESERVED, slot_id=B, ingress_id=other), INTERRUPTED)
    assert waiting[other] == ingress.Reserved(replace(RESERVED, slot_id=B, ingress_id=other), LIMIT)
    restarted = (*ACTIVE, RESERVED, INTERRUPTED, ready(A), AllocationActivated(ID))
    limit = INTERRUPTED.deadline + ingress.IN_PLACE_WITHIN
    assert due_actions(*restarted, now=LIMIT)[-1] == Wait("ingress rules in place on the node", limit)
    assert ingress.withdraw_overdue(state_of(*restarted), ingress_states(*restarted), LIMIT) == ()
    assert due_actions(*restarted, now=limit) == (MissDeadline(),)


@pytest.mark.parametrize(
    ("facts", "until"),
    [
        (ACTIVE, NOW + ingress.IN_PLACE_WITHIN),
        (PROVISIONING, PLACEMENT.deadline + ingress.IN_PLACE_WITHIN),
        (STARTING, SOON + ingress.IN_PLACE_WITHIN),
        (STOPPING, None),
        (STOPPED, None),
    ],
)
def test_deadline_of_a_new_ingress_rule_depends_on_the_state_of_the_allocation(
    facts: tuple[AllocationFact, ...], until: datetime | None
) -> None:
    assert ingress.ingress_deadline(state_of(*facts), NOW) == until


def test_executed_order_publishes_its_ingress_rules_and_removes_withdrawn_ones() -> None:
    assert ingress.applied(ingress_states(RESERVED), A) == (PUBLISHED,)
    assert ingress.applied(ingress_states(RESERVED, WITHDRAWN), A) == (REMOVED,)
    assert (
        ingress.applied(ingress_states(RESERVED, PUBLISHED), A)
        == ingress.applied(ingress_states(RESERVED), B)
        == ()
    )


def test_published_ingress_rule_is_lost_while_its_node_reports_it_missing() -> None:
    for newest in (True, False):
        assert ingress.observe(
            ingress_states(RESERVED, PUBLISHED), A, [NAME], newest=newest, others=True
        ) == (LOST,)
        assert ingress.observe(
            ingress_states(RESERVED, PUBLISHED, LOST), A, [], newest=newest, others=True
        ) == (PUBLISHED,)


def test_reserved_ingress_rule_is_published_if_a_report_under_the_newest_order_does_not_list_it_as_lost() -> (
    None
):
    assert ingress.observe(ingress_states(RESERVED), A, [], newest=True, others=True) == (PUBLISHED,)
    assert ingress.observe(ingress_states(RESERVED), A, [NAME], newest=True, others=True) == ()
    assert ingress.observe(ingress_states(RESERVED), A, [], newest=False, others=True) == ()


def test_withdrawn_ingress_rule_is_removed_if_a_report_shows_that_only_rules_of_the_newest_order_remain() -> (
    None
):
    withdrawn = ingress_states(RESERVED, PUBLISHED, WITHDRAWN)
    lost = [ingress_of(new_uuid())]
    assert ingress.observe(withdrawn, A, lost, newest=True, others=False) == (REMOVED,)
    assert ingress.observe(withdrawn, A, [], newest=True, others=True) == ()
    assert ingress.observe(withdrawn, A, lost, newest=False, others=False) == ()
    assert ingress.observe(withdrawn, B, lost, newest=True, others=False) == ()


def test_withdrawal_of_an_ingress_rule_is_recorded_once_if_it_is_requested_twice() -> None:
    state = state_of(*OPEN)
    assert ingress.withdraw(state, ingress_states(*OPEN), NAME, REASON) == (WITHDRAWN,)
    assert ingress.withdraw(state, ingress_states(*OPEN, WITHDRAWN), NAME, REASON) == ()


def test_ingress_rule_of_a_stopped_allocation_is_removed_when_it_is_withdrawn() -> None:
    assert ingress.withdraw(state_of(*STOPPED), ingress_states(*OPEN), NAME, REASON) == (WITHDRAWN, REMOVED)
    assert ingress.closed(ingress_states(RESERVED, WITHDRAWN), A) == (REMOVED,)
    assert ingress.closed(ingress_states(RESERVED, PUBLISHED), A) == ()


def test_ingress_rule_of_a_stopped_slice_is_removed_at_once_while_another_slice_still_runs() -> None:
    half = (*OPEN, *STOPPING[len(ACTIVE) :], SliceStopped(ID, A, False))
    assert ingress.withdraw(state_of(*half), ingress_states(*half), NAME, REASON) == (WITHDRAWN, REMOVED)
    other = (*OPEN, *STOPPING[len(ACTIVE) :], SliceStopped(ID, B, False))
    assert ingress.withdraw(state_of(*other), ingress_states(*other), NAME, REASON) == (WITHDRAWN,)


def test_overdue_ingress_rule_of_a_stopping_allocation_is_not_withdrawn() -> None:
    """The deadline of the rule passed while the allocation was still active."""
    stopping = (*ACTIVE, RESERVED, *STOPPING[len(ACTIVE) :])
    assert ingress.withdraw_overdue(state_of(*stopping), ingress_states(*stopping), LIMIT) == ()


@pytest.mark.parametrize(
    ("before", "was_published"),
    [((RESERVED,), False), ((RESERVED, PUBLISHED), True), ((RESERVED, PUBLISHED, LOST), True)],
)
def test_ingress_rules_of_a_slice_that_is_proved_stopped_are_reserved(
    before: tuple[AllocationFact, ...], was_published: bool
) -> None:
    stopping = (*ACTIVE, *before, *STOPPING[len(ACTIVE) :])
    assert ingress_states(*stopping, SliceStopped(ID, B, False))[NAME] == ingress_states(*stopping)[NAME]
    assert ingress_states(*stopping, SliceStopped(ID, A, False))[NAME] == ingress.Reserved(
        RESERVED, None, was_published
    )


def test_only_ingress_rules_that_were_published_are_published_again_when_their_slice_restarts() -> None:
    started = (*OPEN, *STOPPING[len(ACTIVE) :], *STOPPED[len(STOPPING) :], *STARTING[len(STOPPED) :])
    assert ingress_states(*started, ready(B)) == ingress_states(*started)
    assert ingress_states(*started, ready(A)) == ingress_states(*OPEN)
    assert ingress.applied(ingress_states(*started), A) == ()
    never_published = (*ACTIVE, RESERVED, *started[len(OPEN) :])
    assert isinstance(ingress_states(*never_published, ready(A))[NAME], ingress.Reserved)
    assert ingress.applied(ingress_states(*never_published), A) == (PUBLISHED,)


def test_ingress_rules_of_an_emptied_slot_are_removed() -> None:
    for before in ((RESERVED,), (RESERVED, PUBLISHED), (RESERVED, WITHDRAWN)):
        assert ingress.emptied(ingress_states(*before), A) == (REMOVED,)
    assert (
        ingress.emptied(ingress_states(RESERVED, REMOVED), A)
        == ingress.emptied(ingress_states(RESERVED), B)
        == ()
    )


def test_withdrawal_of_an_unknown_ingress_rule_is_refused() -> None:
    with pytest.raises(UnknownName, match=NAME):
        ingress.withdraw(state_of(*ACTIVE), {}, NAME, REASON)


def public(*facts: AllocationFact) -> Placed:
    """Return the state after events of an allocation with public NAT, which permits ingress rules."""
    assert facts[0] == REQUESTED
    return state_of(replace(REQUESTED, network_mode="public-nat"), *facts[1:])


def test_ingress_rule_above_the_limit_of_a_slot_or_after_the_release_is_refused() -> None:
    many = [IngressReserved(ID, A, ingress_of(new_uuid()), SSH, None) for _ in range(MOST_MAPPINGS)]
    [full] = ingress.against_opening(public(*ACTIVE), ingress_states(*many), A)
    assert (full.code, "16 ingress rules" in full.message) == ("too_many_ingresses", True)
    assert ingress.against_opening(public(*ACTIVE), ingress_states(*many), B) == []
    assert ingress.against_opening_any(public(*ACTIVE), ingress_states(*many)) == []
    others = [IngressReserved(ID, B, ingress_of(new_uuid()), SSH, None) for _ in range(MOST_MAPPINGS)]
    assert ingress.against_opening_any(public(*ACTIVE), ingress_states(*many, *others)) == [full]
    [ending] = ingress.against_opening(public(*RELEASING), {}, A)
    assert (ending.code, "releasing" in ending.message) == ("wrong_state", True)
