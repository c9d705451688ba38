"""What an image's sign of being ready does to the orders for its slices, and to where they are told to answer."""

import pytest

from control_plane.api.allocation_views import Endpoint, allocation_view
from control_plane.decisions.readiness import SSH, Check, check_of, named
from control_plane.processes.allocation import due, wish_of
from events.allocations import AllocationFact, ReadinessNamed, SliceReady
from events.envelope import Cause, Recorded
from events.values import Epoch, Position, new_uuid, stream_of_allocation
from tasks.orders import ApplySlice, Order, Readiness
from tests.decisions.histories import (
    ACTIVE,
    ID,
    NETWORK,
    NOW,
    PROVISIONING,
    RELEASING,
    STARTING,
    STOPPED,
    A,
    B,
)

WEB = ReadinessNamed(ID, 8080, "")
SSH_ELSEWHERE = ReadinessNamed(ID, 2222, "SSH-2.0")


def recorded(facts: tuple[AllocationFact, ...]) -> list[Recorded[AllocationFact]]:
    cause, stream = Cause("key:test", "test", new_uuid(), NOW), stream_of_allocation(ID)
    return [
        Recorded(Position(at), new_uuid(), stream, at, fact, cause, NOW, Epoch(1))
        for at, fact in enumerate(facts, 1)
    ]


def of_image(sign: ReadinessNamed, facts: tuple[AllocationFact, ...]) -> tuple[AllocationFact, ...]:
    """The same history, of an image that has this sign."""
    return (facts[0], sign, *facts[1:])


def orders(facts: tuple[AllocationFact, ...]) -> list[Order]:
    return [each for each in due(recorded(facts), NOW) if isinstance(each, Order)]


def readiness(facts: tuple[AllocationFact, ...]) -> list[Readiness]:
    return [order.body.readiness for order in orders(facts) if isinstance(order.body, ApplySlice)]


def endpoints(facts: tuple[AllocationFact, ...]) -> list[Endpoint]:
    return allocation_view(facts, NOW).endpoints


def test_an_order_of_a_history_that_names_no_sign_is_what_it_always_was() -> None:
    made = orders(PROVISIONING)
    assert len(made) == 2
    told = '"readiness":{"port":22,"banner":"SSH-","deadline_seconds":120}'
    assert all(told in order.model_dump_json() for order in made)


def test_an_order_to_carry_a_slice_has_the_sign_of_its_image() -> None:
    wanted = Readiness(port=8080, banner="", deadline_seconds=120)
    assert readiness(of_image(WEB, PROVISIONING)) == [wanted] * 2
    assert readiness(of_image(WEB, STARTING)) == [wanted] * 2


def test_the_sign_takes_part_in_what_an_order_wants() -> None:
    wishes = [wish_of(recorded(of_image(sign, PROVISIONING)), A) for sign in (WEB, SSH_ELSEWHERE)]
    assert len({wish.content_digest() for wish in wishes if wish is not None}) == 2


def test_the_sign_moves_no_state() -> None:
    for facts in (ACTIVE, STOPPED, RELEASING):
        one, other = allocation_view(facts, NOW), allocation_view(of_image(WEB, facts), NOW)
        assert (one.state, one.slots, one.lease) == (other.state, other.slots, other.lease)


def test_ssh_on_its_own_port_is_not_recorded() -> None:
    assert named(ID, SSH) == named(ID, Check(22, "SSH-")) == ()
    assert check_of(PROVISIONING) == SSH


@pytest.mark.parametrize("check", [Check(22, ""), Check(2222, "SSH-"), Check(8080, ""), Check(2525, "220 ")])
def test_every_other_sign_is_recorded_and_read_back(check: Check) -> None:
    assert check_of((PROVISIONING[0], *named(ID, check), *PROVISIONING[1:])) == check


def active_at(port: int, banner: str, sign: ReadinessNamed) -> tuple[AllocationFact, ...]:
    up = tuple(SliceReady(ID, slot, NETWORK.private_ip, port, banner) for slot in (A, B))
    return of_image(sign, (*PROVISIONING, *up, *ACTIVE[4:]))


def test_an_endpoint_is_of_the_kind_that_was_proved_to_answer() -> None:
    assert {(each.kind, each.port) for each in endpoints(ACTIVE)} == {("ssh", 22)}
    assert {(each.kind, each.port) for each in endpoints(active_at(8080, "", WEB))} == {("tcp", 8080)}
    elsewhere = endpoints(active_at(2222, "SSH-2.0-x", SSH_ELSEWHERE))
    assert {(each.kind, each.port) for each in elsewhere} == {("ssh", 2222)}
