"""What the rate of a SKU does to the orders for its slices: nothing at all where there is none."""

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


def of_limited(*facts: AllocationFact) -> tuple[AllocationFact, ...]:
    return (msgspec.structs.replace(REQUESTED, sku=LIMITED), *facts[1:])


def networks(kind: type, *facts: AllocationFact) -> list[SliceNetwork]:
    bodies = [each.body for each in orders(*facts)]
    assert {type(body) for body in bodies} == {kind}
    return [body.network for body in bodies]


def test_an_order_to_carry_a_slice_has_the_rate_of_its_sku() -> None:
    made = networks(ApplySlice, *of_limited(REQUESTED, PLACEMENT))
    assert [network.rate_mbit for network in made] == [SKUS[LIMITED].rate_mbit] * 2 == [100, 100]


def test_an_order_without_a_rate_does_not_speak_of_it() -> None:
    free = networks(ApplySlice, *PROVISIONING) + networks(StopSlice, *of_limited(*STOPPING))
    assert [network.rate_mbit for network in free] == [None] * 4
    assert all("rate_mbit" not in network.model_dump_json() for network in free)


def test_every_sku_makes_an_order_that_a_node_reads() -> None:
    for sku in SKUS:
        for order in orders(msgspec.structs.replace(REQUESTED, sku=sku), PLACEMENT):
            assert Order.model_validate_json(order.model_dump_json()) == order


def test_a_slot_carries_the_largest_sku_that_fits_it() -> None:
    fits = {memory: best_fit(SlotHardware(1, memory, "slice0")) for memory in (95, 96, 191, 192, 4096)}
    named = {memory: sku.name if sku else None for memory, sku in fits.items()}
    small, medium = SkuName("lab.small"), LIMITED
    assert named == {95: None, 96: small, 191: small, 192: medium, 4096: medium}
