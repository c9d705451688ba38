"""Allocations that permit the SSH gateway to log in to their slices: the key of the gateway, and the orders with it."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from deploy.embedded.postgres import PostgresServer
from events.ledger.personal import MasterKey
from events.ssh_keys import ssh_public_key
from node_agent.slots.resync import order_of
from tasks.orders import ApplySlice
from tasks.sealed import task_in
from tests.api.node import KEY, admit, allocate, desired_orders
from tests.servers.plane import RunningPlane, running
from tests.waiting import until


@pytest.fixture(scope="module")
def plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    with running(postgres_server) as plane:
        yield plane


@pytest.fixture(scope="module")
def node(plane: RunningPlane) -> httpx.Client:
    return admit(plane, "n1", slots=4)


def ordered_keys(node: httpx.Client, made: dict[str, Any]) -> tuple[str, ...]:
    """Return the SSH keys in the order for the only slot of an allocation."""

    def bodies() -> list[ApplySlice]:
        orders = [order_of(task_in(signed)) for signed in desired_orders(node)]
        found = (order.body for order in orders if order.allocation_id == made["id"])
        return [each for each in found if isinstance(each, ApplySlice)]

    until(lambda: len(bodies()) == 1, "the order is derived")
    return bodies()[0].machine.ssh_authorized_keys


def recorded_key(plane: RunningPlane, allocation: str) -> str | None:
    first = plane.client().get(f"/allocations/{allocation}/events").json()["items"][0]
    assert first["type"] == "allocation.requested"
    key: str | None = first["data"].get("gateway_key")
    return key


def test_slices_with_gateway_access_accept_the_recorded_gateway_key_and_certificates_signed_with_it(
    plane: RunningPlane, node: httpx.Client
) -> None:
    made = [allocate(plane, gateway_access=True).json() for _ in range(2)]
    keys = [recorded_key(plane, each["id"]) for each in made]
    assert None not in keys
    assert keys[0] != keys[1], "each allocation must have a key of its own"
    for each, key in zip(made, keys, strict=True):
        assert each["gateway_access"] is True
        assert ssh_public_key(str(key)) == key
        authority = f'cert-authority,principals="{each["id"]}" {key}'
        assert ordered_keys(node, each) == (KEY, key, authority)


def test_order_of_an_allocation_without_gateway_access_has_only_the_keys_of_the_request(
    plane: RunningPlane, node: httpx.Client
) -> None:
    made = allocate(plane).json()
    assert made["gateway_access"] is False
    assert recorded_key(plane, made["id"]) is None
    assert ordered_keys(node, made) == (KEY,)


@pytest.mark.parametrize(("keys", "status"), [(14, 202), (15, 422)])
def test_allocation_with_gateway_access_can_have_at_most_fourteen_ssh_keys_of_its_request(
    plane: RunningPlane, node: httpx.Client, keys: int, status: int
) -> None:
    answer = allocate(plane, gateway_access=True, ssh_authorized_keys=[KEY] * keys)
    assert answer.status_code == status, answer.text
    if status == httpx.codes.ACCEPTED:
        assert len(ordered_keys(node, answer.json())) == keys + 2
    else:
        [reason] = answer.json()["reasons"]
        assert (reason["code"], reason["field"]) == ("too_many_ssh_keys", "/ssh_authorized_keys")


def test_secret_derived_for_a_purpose_is_the_same_each_time_and_differs_for_other_purposes_and_master_keys() -> (
    None
):
    first, second = MasterKey(b"m" * 32), MasterKey(b"n" * 32)
    assert first.derived("a") == MasterKey(b"m" * 32).derived("a")
    assert len({first.derived("a"), first.derived("b"), second.derived("a")}) == 3
