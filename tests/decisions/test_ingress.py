"""Ways in from outside: what each fact and each word of a node means, and what is due for them."""

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from control_plane.decisions import ingress
from control_plane.decisions.allocation_states import Placed, Requested, fold
from control_plane.decisions.ingress import Ways, ways_of
from control_plane.decisions.refusals import Conflict, UnknownName
from control_plane.processes.allocation import MissDeadline, Wait
from events.allocations import AllocationActivated, AllocationFact, SliceStopped
from events.ingress import (
    IngressLost,
    IngressMapping,
    IngressPublished,
    IngressRemoved,
    IngressReserved,
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
    RELEASING,
    REQUESTED,
    SOON,
    STARTING,
    STOPPED,
    STOPPING,
    WHY,
    A,
    B,
    ready,
)
from tests.decisions.test_due import orders, what_is_due

NAME = ingress_of(new_uuid())
SSH = IngressMapping(Ipv4Address("203.0.113.7"), Service("tcp", 20022, 22), ())
LIMIT = NOW + timedelta(minutes=2)
RESERVED = IngressReserved(ID, A, NAME, SSH, LIMIT)
PUBLISHED = IngressPublished(ID, NAME)
LOST = IngressLost(ID, NAME)
WITHDRAWN = IngressWithdrawn(ID, A, NAME, WHY)
REMOVED = IngressRemoved(ID, NAME, SSH)
OPEN = (*ACTIVE, RESERVED, PUBLISHED)


def state_of(*facts: AllocationFact) -> Placed:
    state = fold(facts)
    assert state is not None
    assert not isinstance(state, Requested)
    return state


def ways(*facts: AllocationFact) -> Ways:
    return ways_of(facts)


def ordered(*facts: AllocationFact) -> dict[SlotId, list[str]]:
    """The ways in that each order has."""
    bodies = {each.slot_id: each.body for each in orders(*facts)}
    return {
        slot: [way.ingress_id for way in body.ingress]
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
def test_its_state_follows_from_its_facts(facts: tuple[AllocationFact, ...], state: str) -> None:
    assert type(ways(*facts)[NAME]).__name__ == state


def test_a_way_in_moves_no_allocation() -> None:
    assert state_of(*OPEN, LOST, WITHDRAWN, REMOVED) == state_of(*ACTIVE)


def test_the_first_order_of_a_slot_has_the_ways_in_that_were_asked_for_with_it() -> None:
    asked = (REQUESTED, RESERVED, PLACEMENT)
    assert ordered(*asked) == {A: [NAME], B: []}
    assert {each.token.position for each in orders(*asked)} == {3}


def test_a_way_in_makes_a_new_order_for_its_slot_alone_until_its_node_did_it() -> None:
    [order] = orders(*ACTIVE, RESERVED)
    assert (order.slot_id, order.token.position) == (A, len(ACTIVE) + 1)
    assert isinstance(order.body, ApplySlice)
    [way] = order.body.ingress
    assert isinstance(way, PortMapping)
    assert (way.public_address, way.protocol, way.public_port, way.port) == ("203.0.113.7", "tcp", 20022, 22)
    assert orders(*OPEN) == []


def test_a_withdrawal_makes_an_order_without_it_until_it_is_proved_gone() -> None:
    assert ordered(*OPEN, WITHDRAWN) == {A: []}
    assert orders(*OPEN, WITHDRAWN, REMOVED) == []


def test_what_was_lost_is_the_nodes_to_mend_and_no_new_order() -> None:
    assert orders(*OPEN, LOST) == []


def test_started_again_its_slices_have_their_ways_in_as_before() -> None:
    stopped = (*OPEN, *STOPPING[len(ACTIVE) :], *STOPPED[len(STOPPING) :])
    assert ordered(*stopped) == {}
    assert ordered(*stopped, *STARTING[len(STOPPED) :]) == {A: [NAME], B: []}


def test_a_slice_that_is_to_go_is_ordered_away_whatever_led_to_it() -> None:
    released = (*OPEN, *RELEASING[len(ACTIVE) :], WITHDRAWN)
    assert [(each.slot_id, each.body.kind) for each in orders(*released)] == [
        (A, "slice.remove"),
        (B, "slice.remove"),
    ]
    assert {each.token.position for each in orders(*released)} == {len(OPEN) + 1}


def test_what_does_not_come_to_lead_anywhere_is_given_up_at_its_deadline() -> None:
    assert what_is_due(*ACTIVE, RESERVED)[-1] == Wait("its ways in", LIMIT)
    assert what_is_due(*ACTIVE, RESERVED, now=LIMIT) == (MissDeadline(),)
    [fact] = ingress.give_up(state_of(*ACTIVE), ways(RESERVED), LIMIT)
    assert isinstance(fact, IngressWithdrawn)
    assert fact.reason.code == "deadline_missed"
    assert ingress.give_up(state_of(*OPEN), ways(RESERVED, PUBLISHED), LIMIT) == ()


def test_one_without_a_deadline_of_its_own_has_its_slices_and_the_time_that_others_have() -> None:
    """Its slice came up by an older order, and the newest is not carried out."""
    asked = replace(RESERVED, deadline=None)
    active = (REQUESTED, asked, *ACTIVE[1:])
    limit = PLACEMENT.deadline + ingress.IN_PLACE_WITHIN
    assert what_is_due(*active)[-1] == Wait("its ways in", limit)
    assert what_is_due(*active, now=limit) == (MissDeadline(),)
    [fact] = ingress.give_up(state_of(*active), ways(*active), limit)
    assert isinstance(fact, IngressWithdrawn)


@pytest.mark.parametrize("deadline", [None, LIMIT])
def test_after_a_start_what_waits_is_waited_for_anew(deadline: datetime | None) -> None:
    asked = replace(RESERVED, deadline=deadline)
    again = (ready(A), ready(B), AllocationActivated(ID))
    stopped = (*ACTIVE, asked, *STOPPING[len(ACTIVE) :], *STOPPED[len(STOPPING) :])
    assert what_is_due(*stopped)[-1] == Wait("being started", GRANTED.expires_at)
    started = (*stopped, *STARTING[len(STOPPED) :], *again)
    assert what_is_due(*started)[-1] == Wait("its ways in", SOON + ingress.IN_PLACE_WITHIN)


def test_what_waits_is_waited_for_anew_when_its_slice_goes_down() -> None:
    """Its node was away, and does what is newest after it has the slice up by the order before."""
    other = ingress_of(new_uuid())
    waiting = ways(*ACTIVE, RESERVED, replace(RESERVED, slot_id=B, ingress_id=other), INTERRUPTED)
    assert waiting[other] == ingress.Reserved(replace(RESERVED, slot_id=B, ingress_id=other), LIMIT)
    back = (*ACTIVE, RESERVED, INTERRUPTED, ready(A), AllocationActivated(ID))
    limit = INTERRUPTED.deadline + ingress.IN_PLACE_WITHIN
    assert what_is_due(*back, now=LIMIT)[-1] == Wait("its ways in", limit)
    assert ingress.give_up(state_of(*back), ways(*back), LIMIT) == ()
    assert what_is_due(*back, now=limit) == (MissDeadline(),)


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
def test_it_has_its_time_from_when_its_slice_is_to_be_up(
    facts: tuple[AllocationFact, ...], until: datetime | None
) -> None:
    assert ingress.in_place_by(state_of(*facts), NOW) == until


def test_an_order_that_was_carried_out_publishes_what_it_has_and_frees_what_it_has_not() -> None:
    assert ingress.applied(ways(RESERVED), A) == (PUBLISHED,)
    assert ingress.applied(ways(RESERVED, WITHDRAWN), A) == (REMOVED,)
    assert ingress.applied(ways(RESERVED, PUBLISHED), A) == ingress.applied(ways(RESERVED), B) == ()


def test_what_its_node_finds_lost_is_no_endpoint_until_it_finds_it_again() -> None:
    for newest in (True, False):
        assert ingress.seen(ways(RESERVED, PUBLISHED), A, [NAME], newest=newest, others=True) == (LOST,)
        assert ingress.seen(ways(RESERVED, PUBLISHED, LOST), A, [], newest=newest, others=True) == (
            PUBLISHED,
        )


def test_what_the_newest_order_has_is_published_unless_its_node_says_that_it_is_lost() -> None:
    assert ingress.seen(ways(RESERVED), A, [], newest=True, others=True) == (PUBLISHED,)
    assert ingress.seen(ways(RESERVED), A, [NAME], newest=True, others=True) == ()
    assert ingress.seen(ways(RESERVED), A, [], newest=False, others=True) == ()


def test_what_was_withdrawn_is_gone_once_nothing_but_the_newest_orders_leads_in() -> None:
    withdrawn = ways(RESERVED, PUBLISHED, WITHDRAWN)
    lost = [ingress_of(new_uuid())]
    assert ingress.seen(withdrawn, A, lost, newest=True, others=False) == (REMOVED,)
    assert ingress.seen(withdrawn, A, [], newest=True, others=True) == ()
    assert ingress.seen(withdrawn, A, lost, newest=False, others=False) == ()
    assert ingress.seen(withdrawn, B, lost, newest=True, others=False) == ()


def test_withdrawn_twice_it_is_withdrawn_once() -> None:
    state = state_of(*OPEN)
    assert ingress.withdraw(state, ways(*OPEN), NAME, WHY) == (WITHDRAWN,)
    assert ingress.withdraw(state, ways(*OPEN, WITHDRAWN), NAME, WHY) == ()


def test_of_a_slice_that_is_off_it_is_gone_at_once() -> None:
    assert ingress.withdraw(state_of(*STOPPED), ways(*OPEN), NAME, WHY) == (WITHDRAWN, REMOVED)
    assert ingress.closed(ways(RESERVED, WITHDRAWN), A) == (REMOVED,)
    assert ingress.closed(ways(RESERVED, PUBLISHED), A) == ()


def test_of_a_slot_that_is_off_it_is_gone_at_once_though_another_is_still_on() -> None:
    half = (*OPEN, *STOPPING[len(ACTIVE) :], SliceStopped(ID, A, False))
    assert ingress.withdraw(state_of(*half), ways(*half), NAME, WHY) == (WITHDRAWN, REMOVED)
    other = (*OPEN, *STOPPING[len(ACTIVE) :], SliceStopped(ID, B, False))
    assert ingress.withdraw(state_of(*other), ways(*other), NAME, WHY) == (WITHDRAWN,)


def test_nothing_is_given_up_of_an_allocation_that_is_being_stopped() -> None:
    """Its deadline was found to be over while it still was active."""
    stopping = (*ACTIVE, RESERVED, *STOPPING[len(ACTIVE) :])
    assert ingress.give_up(state_of(*stopping), ways(*stopping), LIMIT) == ()


@pytest.mark.parametrize(
    ("before", "led"),
    [((RESERVED,), False), ((RESERVED, PUBLISHED), True), ((RESERVED, PUBLISHED, LOST), True)],
)
def test_where_a_slice_is_proved_off_its_ways_in_are_reserved_and_lead_nowhere(
    before: tuple[AllocationFact, ...], led: bool
) -> None:
    stopping = (*ACTIVE, *before, *STOPPING[len(ACTIVE) :])
    assert ways(*stopping, SliceStopped(ID, B, False))[NAME] == ways(*stopping)[NAME]
    assert ways(*stopping, SliceStopped(ID, A, False))[NAME] == ingress.Reserved(RESERVED, None, led)


def test_what_led_to_a_slice_leads_there_again_when_that_is_back_and_nothing_else_does() -> None:
    started = (*OPEN, *STOPPING[len(ACTIVE) :], *STOPPED[len(STOPPING) :], *STARTING[len(STOPPED) :])
    assert ways(*started, ready(B)) == ways(*started)
    assert ways(*started, ready(A)) == ways(*OPEN)
    assert ingress.applied(ways(*started), A) == ()
    asked = (*ACTIVE, RESERVED, *started[len(OPEN) :])
    assert isinstance(ways(*asked, ready(A))[NAME], ingress.Reserved)
    assert ingress.applied(ways(*asked), A) == (PUBLISHED,)


def test_an_emptied_slot_has_no_ways_in() -> None:
    for before in ((RESERVED,), (RESERVED, PUBLISHED), (RESERVED, WITHDRAWN)):
        assert ingress.emptied(ways(*before), A) == (REMOVED,)
    assert ingress.emptied(ways(RESERVED, REMOVED), A) == ingress.emptied(ways(RESERVED), B) == ()


def test_one_that_nobody_asked_for_is_unknown() -> None:
    with pytest.raises(UnknownName, match=NAME):
        ingress.withdraw(state_of(*ACTIVE), {}, NAME, WHY)


def test_no_more_are_granted_than_an_order_holds_nor_to_one_that_is_over() -> None:
    many = [IngressReserved(ID, A, ingress_of(new_uuid()), SSH, None) for _ in range(MOST_MAPPINGS)]
    with pytest.raises(Conflict, match="16 ways in"):
        ingress.check_room(state_of(*ACTIVE), ways(*many), A)
    ingress.check_room(state_of(*ACTIVE), ways(*many), B)
    with pytest.raises(Conflict, match="releasing"):
        ingress.check_room(state_of(*RELEASING), {}, A)
