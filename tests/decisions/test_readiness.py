"""The readiness check of an image in the orders for its slices and in the endpoints of the allocation."""

import pytest

from control_plane.api.views.allocation_views import Endpoint, allocation_view
from control_plane.decisions.readiness import SSH, Check, check_of, named
from control_plane.processes.allocation import due, newest_order_of
from events.allocations import AllocationFact, ReadinessCheckSet, SliceReady
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

WEB = ReadinessCheckSet(ID, 8080, "")
SSH_ELSEWHERE = ReadinessCheckSet(ID, 2222, "SSH-2.0")


def recorded(facts: tuple[AllocationFact, ...]) -> list[Recorded[AllocationFact]]:
    cause, stream = Cause("key:test", "test", new_uuid(), NOW), stream_of_allocation(ID)
    return [
        Recorded(Position(at), new_uuid(), stream, at, fact, cause, NOW, Epoch(1))
        for at, fact in enumerate(facts, 1)
    ]


def with_check(check: ReadinessCheckSet, facts: tuple[AllocationFact, ...]) -> tuple[AllocationFact, ...]:
    """Return the allocation history `facts` with this readiness check recorded after its first event."""
    return (facts[0], check, *facts[1:])


def orders(facts: tuple[AllocationFact, ...]) -> list[Order]:
    return [each for each in due(recorded(facts), NOW) if isinstance(each, Order)]


def readiness(facts: tuple[AllocationFact, ...]) -> list[Readiness]:
    return [order.body.readiness for order in orders(facts) if isinstance(order.body, ApplySlice)]


def endpoints(facts: tuple[AllocationFact, ...]) -> list[Endpoint]:
    return allocation_view(facts, NOW).endpoints


def test_order_without_a_recorded_readiness_check_contains_the_ssh_check() -> None:
    made = orders(PROVISIONING)
    assert len(made) == 2
    expected = '"readiness":{"port":22,"banner":"SSH-","deadline_seconds":120}'
    assert all(expected in order.model_dump_json() for order in made)


def test_apply_order_contains_the_readiness_check_of_its_image() -> None:
    expected = Readiness(port=8080, banner="", deadline_seconds=120)
    assert readiness(with_check(WEB, PROVISIONING)) == [expected] * 2
    assert readiness(with_check(WEB, STARTING)) == [expected] * 2


def test_orders_with_different_readiness_checks_have_different_content_digests() -> None:
    made = [newest_order_of(recorded(with_check(check, PROVISIONING)), A) for check in (WEB, SSH_ELSEWHERE)]
    assert len({order.content_digest() for order in made if order is not None}) == 2


def test_readiness_check_does_not_change_the_state_of_the_allocation() -> None:
    for facts in (ACTIVE, STOPPED, RELEASING):
        one, other = allocation_view(facts, NOW), allocation_view(with_check(WEB, facts), NOW)
        assert (one.state, one.slots, one.lease) == (other.state, other.slots, other.lease)


def test_default_ssh_readiness_check_is_not_recorded() -> None:
    assert named(ID, SSH) == named(ID, Check(22, "SSH-")) == ()
    assert check_of(PROVISIONING) == SSH


@pytest.mark.parametrize("check", [Check(22, ""), Check(2222, "SSH-"), Check(8080, ""), Check(2525, "220 ")])
def test_readiness_check_different_from_the_default_is_recorded_and_read_back(check: Check) -> None:
    assert check_of((PROVISIONING[0], *named(ID, check), *PROVISIONING[1:])) == check


def active_at(port: int, banner: str, check: ReadinessCheckSet) -> tuple[AllocationFact, ...]:
    up = tuple(SliceReady(ID, slot, NETWORK.private_ip, port, banner) for slot in (A, B))
    return with_check(check, (*PROVISIONING, *up, *ACTIVE[4:]))


def test_endpoint_has_the_kind_and_port_of_the_passed_readiness_check() -> None:
    assert {(each.kind, each.port) for each in endpoints(ACTIVE)} == {("ssh", 22)}
    assert {(each.kind, each.port) for each in endpoints(active_at(8080, "", WEB))} == {("tcp", 8080)}
    elsewhere = endpoints(active_at(2222, "SSH-2.0-x", SSH_ELSEWHERE))
    assert {(each.kind, each.port) for each in elsewhere} == {("ssh", 2222)}
