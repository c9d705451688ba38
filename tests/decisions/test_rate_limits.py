"""The rate limit of a SKU in the orders for its slices, and orders without a rate limit."""

import msgspec

from control_plane.decisions.skus import SKUS, best_fit
from control_plane.processes.allocation import due
from events.allocations import AllocationFact
from events.envelope import Cause, Recorded
from events.slots import SlotHardware
from events.values import Epoch, Position, SkuName, new_uuid, stream_of_allocation
from tasks.orders import ApplySlice, Order, SliceNetwork, StopSlice
from tests.decisions.histories import ID, NOW, PLACEMENT, PROVISIONING, REQUESTED, STOPPING

LIMITED = SkuName("lab.medium")


def orders(*facts: AllocationFact) -> list[Order]:
    cause, stream = Cause("key:test", "test", new_uuid(), NOW), stream_of_allocation(ID)
    history = [
        Recorded(Position(at), new_uuid(), stream, at, fact, cause, NOW, Epoch(1))
        for at, fact in enumerate(facts, 1)
    ]
    return [each for each in due(history, NOW) if isinstance(each, Order)]


def with_limited_sku(*facts: AllocationFact) -> tuple[AllocationFact, ...]:
    return (msgspec.structs.replace(REQUESTED, sku=LIMITED), *facts[1:])


def networks(kind: type, *facts: AllocationFact) -> list[SliceNetwork]:
    bodies = [each.body for each in orders(*facts)]
    assert {type(body) for body in bodies} == {kind}
    return [body.network for body in bodies]


def test_apply_order_contains_the_rate_limit_of_its_sku() -> None:
    made = networks(ApplySlice, *with_limited_sku(REQUESTED, PLACEMENT))
    assert [network.rate_mbit for network in made] == [SKUS[LIMITED].rate_mbit] * 2 == [100, 100]


def test_order_without_a_rate_limit_omits_the_rate_limit_field() -> None:
    unlimited = networks(ApplySlice, *PROVISIONING) + networks(StopSlice, *with_limited_sku(*STOPPING))
    assert [network.rate_mbit for network in unlimited] == [None] * 4
    assert all("rate_mbit" not in network.model_dump_json() for network in unlimited)


def test_orders_of_every_sku_can_be_parsed_by_a_node() -> None:
    for sku in SKUS:
        for order in orders(msgspec.structs.replace(REQUESTED, sku=sku), PLACEMENT):
            assert Order.model_validate_json(order.model_dump_json()) == order


def test_best_fitting_sku_of_a_slot_is_the_largest_sku_that_its_hardware_allows() -> None:
    fits = {memory: best_fit(SlotHardware(1, memory, "slice0")) for memory in (95, 96, 191, 192, 4096)}
    named = {memory: sku.name if sku else None for memory, sku in fits.items()}
    small, medium = SkuName("lab.small"), LIMITED
    assert named == {95: None, 96: small, 191: small, 192: medium, 4096: medium}
