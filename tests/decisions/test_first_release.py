"""Allocations of the first release, which have no recorded specification: the content of their orders never changes."""

import msgspec
import pytest

from control_plane.api.views.allocation_views import allocation_view
from control_plane.commands.past_placements import newest_placement
from control_plane.decisions.allocation_states import Provisioning, fold
from control_plane.decisions.first_release import implied_specification
from control_plane.processes.allocation import due
from events.allocations import AllocationFact, ReadinessCheckSet
from events.envelope import Cause, Recorded
from events.values import Epoch, Position, SkuName, new_uuid, stream_of_allocation
from tasks.orders import ApplySlice, Order
from tests.decisions.histories import (
    ACTIVE,
    ID,
    NOW,
    PROVISIONING,
    RELEASING,
    REQUESTED,
    STOPPED,
    A,
    B,
    specified,
)

WEB = ReadinessCheckSet(ID, 8080, "")


def recorded(facts: tuple[AllocationFact, ...]) -> list[Recorded[AllocationFact]]:
    cause, stream = Cause("key:test", "test", new_uuid(), NOW), stream_of_allocation(ID)
    return [
        Recorded(Position(at), new_uuid(), stream, at, fact, cause, NOW, Epoch(1))
        for at, fact in enumerate(facts, 1)
    ]


def applied(facts: tuple[AllocationFact, ...]) -> list[ApplySlice]:
    orders = [each for each in due(recorded(facts), NOW) if isinstance(each, Order)]
    return [order.body for order in orders if isinstance(order.body, ApplySlice)]


@pytest.mark.parametrize(
    ("sku", "memory_mib", "rate_mbit"), [("lab.small", 96, None), ("lab.medium", 192, 100)]
)
def test_order_of_an_allocation_that_the_first_release_recorded_has_the_fixed_vm_size_of_that_release(
    sku: str, memory_mib: int, rate_mbit: int | None
) -> None:
    request = msgspec.structs.replace(REQUESTED, sku=SkuName(sku))
    [first, _] = applied((request, *PROVISIONING[1:]))
    assert (first.machine.vcpus, first.machine.memory_mib, first.machine.image) == (
        1,
        memory_mib,
        "lab-guest",
    )
    assert first.network.rate_mbit == rate_mbit
    assert '"readiness":{"port":22,"banner":"SSH-","deadline_seconds":120}' in first.model_dump_json()


def test_order_of_an_allocation_that_the_first_release_recorded_has_the_readiness_check_from_its_events() -> (
    None
):
    bodies = applied((PROVISIONING[0], WEB, *PROVISIONING[1:]))
    assert [(body.readiness.port, body.readiness.banner) for body in bodies] == [(8080, "")] * 2


@pytest.mark.parametrize("facts", [ACTIVE, STOPPED, RELEASING])
def test_readiness_check_in_events_of_the_first_product_release_does_not_change_the_state_of_the_allocation(
    facts: tuple[AllocationFact, ...],
) -> None:
    one, other = allocation_view(facts, NOW), allocation_view((facts[0], WEB, *facts[1:]), NOW)
    assert (one.state, one.slots, one.lease) == (other.state, other.slots, other.lease)


def test_view_of_an_allocation_of_the_first_release_has_no_versions_of_the_catalogue() -> None:
    view = allocation_view(ACTIVE, NOW)
    assert (view.sku_version, view.image_version, view.app_profile, view.price_per_hour) == (
        None,
        None,
        None,
        "0",
    )


def test_placement_of_an_allocation_of_the_first_release_has_the_size_of_that_release() -> None:
    placement = newest_placement(recorded(PROVISIONING))
    assert placement.specified == implied_specification(REQUESTED)
    assert [each.slot_id for each in placement.slots] == [A, B]


def test_recorded_specification_replaces_the_sizes_of_the_first_release() -> None:
    state = fold((PROVISIONING[0], specified(), *PROVISIONING[1:]))
    assert isinstance(state, Provisioning)
    assert state.specification == specified()


def test_allocation_with_a_recorded_specification_can_have_a_sku_unknown_to_the_first_release() -> None:
    request = msgspec.structs.replace(REQUESTED, sku=SkuName("h200.one"))
    assert isinstance(fold((request, specified(), *PROVISIONING[1:])), Provisioning)
