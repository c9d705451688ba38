"""The readiness check of an image in the orders for its slices and in the endpoints of the allocation."""

import msgspec

from control_plane.api.views.allocation_views import Endpoint, allocation_view
from control_plane.processes.allocation import due, newest_order_of
from deploy.embedded.lab_catalogue import GUEST, SMALL
from events.allocations import AllocationFact, SliceReady
from events.entries import ReadinessCheck
from events.envelope import Cause, Recorded
from events.values import Epoch, Position, new_uuid, stream_of_allocation
from tasks.orders import ApplySlice, Order, Readiness
from tests.decisions.histories import (
    ACTIVE,
    ID,
    NETWORK,
    NOW,
    PROVISIONING,
    STARTING,
    A,
    B,
    with_specification,
)

WEB = ReadinessCheck(8080, "")
SSH_ELSEWHERE = ReadinessCheck(2222, "SSH-2.0")


def recorded(facts: tuple[AllocationFact, ...]) -> list[Recorded[AllocationFact]]:
    cause, stream = Cause("key:test", "test", new_uuid(), NOW), stream_of_allocation(ID)
    return [
        Recorded(Position(at), new_uuid(), stream, at, fact, cause, NOW, Epoch(1))
        for at, fact in enumerate(facts, 1)
    ]


def with_check(check: ReadinessCheck, facts: tuple[AllocationFact, ...]) -> tuple[AllocationFact, ...]:
    """Return the allocation history `facts` with an image that has this readiness check."""
    return with_specification(facts, SMALL, msgspec.structs.replace(GUEST, readiness=check))


def orders(facts: tuple[AllocationFact, ...]) -> list[Order]:
    return [each for each in due(recorded(facts), NOW) if isinstance(each, Order)]


def readiness(facts: tuple[AllocationFact, ...]) -> list[Readiness]:
    return [order.body.readiness for order in orders(facts) if isinstance(order.body, ApplySlice)]


def endpoints(facts: tuple[AllocationFact, ...]) -> list[Endpoint]:
    return allocation_view(facts, NOW).endpoints


def test_apply_order_contains_the_readiness_check_of_its_image() -> None:
    expected = Readiness(port=8080, banner="", deadline_seconds=120)
    assert readiness(with_check(WEB, PROVISIONING)) == [expected] * 2
    assert readiness(with_check(WEB, STARTING)) == [expected] * 2


def test_orders_with_different_readiness_checks_have_different_content_digests() -> None:
    made = [newest_order_of(recorded(with_check(check, PROVISIONING)), A) for check in (WEB, SSH_ELSEWHERE)]
    assert len({order.content_digest() for order in made if order is not None}) == 2


def active_at(port: int, banner: str, check: ReadinessCheck) -> tuple[AllocationFact, ...]:
    up = tuple(SliceReady(ID, slot, NETWORK.private_ip, port, banner) for slot in (A, B))
    return with_check(check, (*PROVISIONING, *up, *ACTIVE[4:]))


def test_endpoint_has_the_kind_and_port_of_the_passed_readiness_check() -> None:
    assert {(each.kind, each.port) for each in endpoints(ACTIVE)} == {("ssh", 22)}
    assert {(each.kind, each.port) for each in endpoints(active_at(8080, "", WEB))} == {("tcp", 8080)}
    elsewhere = endpoints(active_at(2222, "SSH-2.0-x", SSH_ELSEWHERE))
    assert {(each.kind, each.port) for each in elsewhere} == {("ssh", 2222)}
