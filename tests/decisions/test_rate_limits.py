"""The rate limit of a SKU in the orders for its slices, and orders without a rate limit."""

import msgspec

from control_plane.processes.allocation import due
from deploy.embedded.lab_catalogue import SMALL
from events.allocations import AllocationFact
from events.envelope import Cause, Recorded
from events.values import Epoch, Position, new_uuid, stream_of_allocation
from tasks.orders import ApplySlice, Order, SliceNetwork, StopSlice
from tests.decisions.histories import ID, NOW, PROVISIONING, STOPPING, with_specification

LIMITED = msgspec.structs.replace(SMALL, rate_mbit=100)


def orders(*facts: AllocationFact) -> list[Order]:
    cause, stream = Cause("key:test", "test", new_uuid(), NOW), stream_of_allocation(ID)
    history = [
        Recorded(Position(at), new_uuid(), stream, at, fact, cause, NOW, Epoch(1))
        for at, fact in enumerate(facts, 1)
    ]
    return [each for each in due(history, NOW) if isinstance(each, Order)]


def networks(kind: type, *facts: AllocationFact) -> list[SliceNetwork]:
    bodies = [each.body for each in orders(*facts)]
    assert {type(body) for body in bodies} == {kind}
    return [body.network for body in bodies]


def test_apply_order_contains_the_rate_limit_of_its_sku() -> None:
    made = networks(ApplySlice, *with_specification(PROVISIONING, LIMITED))
    assert [network.rate_mbit for network in made] == [100, 100]


def test_order_without_a_rate_limit_omits_the_rate_limit_field() -> None:
    unlimited = networks(ApplySlice, *with_specification(PROVISIONING))
    unlimited += networks(StopSlice, *with_specification(STOPPING, LIMITED))
    assert [network.rate_mbit for network in unlimited] == [None] * 4
    assert all("rate_mbit" not in network.model_dump_json() for network in unlimited)
