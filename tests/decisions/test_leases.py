"""The end of a lease is announced once for each lead time, by the times of the database only."""

from datetime import datetime, timedelta
from typing import Final

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from control_plane.decisions import allocation as life
from control_plane.decisions.allocation_states import fold
from control_plane.decisions.leases import term_of
from control_plane.processes.allocation import AnnounceEnd, Due, Expire, MissDeadline, Wait, due
from events.allocations import (
    AllocationFact,
    AllocationStopping,
    LeaseExpiring,
    LeaseGranted,
    LeaseRenewed,
)
from events.envelope import Cause, Recorded
from events.values import Epoch, Position, new_uuid, stream_of_allocation
from tasks.orders import Order, StopSlice
from tests.decisions.histories import ACTIVE, ID, NOW, REASON, STOPPED

HOUR: Final = timedelta(hours=1)
LEADS: Final = (HOUR, 24 * HOUR)
END: Final = NOW + 30 * HOUR
LONG: Final = (*ACTIVE[:-1], LeaseGranted(ID, NOW, END))
"""History of an allocation with a lease of 30 hours."""
AT_24_HOURS: Final = LeaseExpiring(ID, END, 24 * 3600)


def recorded(*facts: AllocationFact, at: datetime = NOW) -> list[Recorded[AllocationFact]]:
    """Return these facts as the recorded events of one allocation, all with the recording time `at`."""
    cause = Cause("key:test", "test", new_uuid(), NOW)
    return [
        Recorded(Position(place), new_uuid(), stream_of_allocation(ID), place, fact, cause, at, Epoch(1))
        for place, fact in enumerate(facts, 1)
    ]


def due_at(now: datetime, *facts: AllocationFact) -> tuple[Due, ...]:
    return due(recorded(*facts), now, LEADS)


def test_end_of_a_lease_is_announced_once_for_each_lead_time() -> None:
    assert due_at(NOW, *LONG) == (Wait("the end of the lease", END - 24 * HOUR),)
    assert due_at(END - 24 * HOUR, *LONG) == (AnnounceEnd(24 * HOUR),)
    announced = (*LONG, AT_24_HOURS)
    assert due_at(END - 24 * HOUR, *announced) == (Wait("the end of the lease", END - HOUR),)
    assert due_at(END - HOUR, *announced) == (AnnounceEnd(HOUR),)
    announced = (*announced, LeaseExpiring(ID, END, 3600))
    assert due_at(END - HOUR, *announced) == (Wait("the end of the lease", END),)
    assert due_at(END, *announced) == (Expire(),)


def test_only_the_shortest_of_several_passed_lead_times_is_announced_after_an_outage() -> None:
    late = END - timedelta(minutes=30)
    assert due_at(late, *LONG) == (AnnounceEnd(HOUR),)
    assert due_at(late, *LONG, LeaseExpiring(ID, END, 3600)) == (Wait("the end of the lease", END),)
    assert due_at(END, *LONG) == (Expire(),)


def test_lead_time_that_is_not_shorter_than_the_lease_is_not_announced() -> None:
    assert due_at(NOW, *ACTIVE) == (Wait("the end of the lease", NOW + HOUR),)
    assert due_at(NOW + HOUR - timedelta(seconds=1), *STOPPED) == (Wait("a start request", NOW + HOUR),)


def test_renewed_lease_is_announced_again_for_lead_times_shorter_than_the_time_since_the_renewal() -> None:
    at = END - HOUR
    renewal = recorded(*LONG, AT_24_HOURS, LeaseRenewed(ID, at + 2 * HOUR), at=at)
    [wait] = due(renewal, at, LEADS)
    assert wait == Wait("the end of the lease", at + HOUR)
    assert due(renewal, at + HOUR, LEADS) == (AnnounceEnd(HOUR),)


def test_lease_announcement_delays_no_order_and_is_followed_at_once_by_a_missed_deadline() -> None:
    stopping = (*LONG, AllocationStopping(ID, REASON, END - HOUR))
    *orders, announcement = due_at(END - 24 * HOUR, *stopping)
    assert [type(each.body) for each in orders if isinstance(each, Order)] == [StopSlice, StopSlice]
    assert announcement == AnnounceEnd(24 * HOUR)
    assert due_at(END - HOUR, *stopping, AT_24_HOURS)[-1] == AnnounceEnd(HOUR)
    assert due_at(END - HOUR, *stopping, AT_24_HOURS, LeaseExpiring(ID, END, 3600)) == (MissDeadline(),)


leads = st.lists(st.integers(1, 40).map(lambda each: timedelta(minutes=each)), max_size=4).map(tuple)
steps = st.lists(
    st.tuples(st.integers(0, 30).map(lambda each: timedelta(minutes=each)), st.none() | st.integers(1, 60)),
    max_size=25,
)


@given(leads, st.integers(1, 60), steps)
def test_each_evaluation_announces_at_most_once_and_the_lead_times_of_a_term_only_become_shorter(
    lead_times: tuple[timedelta, ...],
    minutes: int,
    done: list[tuple[timedelta, int | None]],
) -> None:
    """Evaluate a lease at arbitrary times, and renew it at some of them."""
    granted = LeaseGranted(ID, NOW, NOW + timedelta(minutes=minutes))
    history, now, announced = recorded(*ACTIVE[:-1], granted), NOW, list[timedelta]()
    for passed, renewal in done:
        now += passed
        state, term = fold(tuple(each.fact for each in history)), term_of(history)
        assert state is not None
        assert term is not None
        match due(history, now, lead_times):
            case (*_, AnnounceEnd(lead=lead)):
                assert term.ends_at - lead <= now < term.ends_at
                assert lead < min([term.ends_at - term.began_at, *announced])
                missed = [each for each in lead_times if each < lead and term.ends_at - each <= now]
                assert missed == []
                new: tuple[AllocationFact, ...] = life.announce_end(state, term, lead, now)
                assert new == (LeaseExpiring(ID, term.ends_at, int(lead.total_seconds())),)
                announced.append(lead)
            case (*_, Wait(until=until)):
                left = [
                    term.ends_at - each
                    for each in lead_times
                    if each < min([term.ends_at - term.began_at, *announced])
                ]
                assert until == min([term.ends_at, *left])
                assert now < until
                new = ()
            case (*_, Expire()):
                assert term.ends_at <= now
                return
            case unexpected:
                raise AssertionError(f"not expected for an active allocation: {unexpected}")
        history = _appended(history, new, now)
        assert not isinstance(due(history, now, lead_times)[-1], AnnounceEnd)
        if renewal is not None:
            renewed = life.renew(state, now, timedelta(minutes=renewal), ())
            history = _appended(history, renewed, now)
            announced = [] if renewed else announced


def _appended(
    history: list[Recorded[AllocationFact]], facts: tuple[AllocationFact, ...], now: datetime
) -> list[Recorded[AllocationFact]]:
    template = history[-1]
    return [
        *history,
        *(
            msgspec.structs.replace(
                template, fact=fact, recorded_at=now, position=Position(template.position + place)
            )
            for place, fact in enumerate(facts, 1)
        ),
    ]


def test_announcement_of_a_lease_that_was_renewed_or_announced_meanwhile_is_not_recorded() -> None:
    now = END - HOUR
    history = recorded(*LONG)
    state, term = fold(LONG), term_of(history)
    assert state is not None
    assert term is not None
    assert life.announce_end(state, term, HOUR, now) == (LeaseExpiring(ID, END, 3600),)
    assert life.announce_end(state, term._replace(announced=HOUR), HOUR, now) == ()
    assert life.announce_end(state, term._replace(ends_at=END + HOUR), HOUR, now) == ()
    assert life.announce_end(state, term, HOUR, END) == ()
